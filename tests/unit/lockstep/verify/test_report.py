"""What a comparison tells people and programs: what differs, and nothing of the rows' values."""

import io
from dataclasses import replace

import orjson
from rich.console import Console

from cdc.model.table import TableName
from lockstep.verify.report import Difference, Kind, TableReport, VerifyReport, sentences, verify_table
from monitor.verification import VerifyOutcome
from tests.builders import tag

ORDERS = TableName("public", "orders")
EQUAL = TableReport(ORDERS, 10, 10, 8, 0)
DIFFERENT = Difference(Kind.DIFFERENT, b'{"id":1}', ("note",), tag(5), tag(7))


def report(*tables: TableReport, lsn: int | None = 0x16_B374D848) -> VerifyReport:
    return VerifyReport("search", 3, "source", lsn, tables)


def shown(of: VerifyReport, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(verify_table(of))
    return console.file.getvalue()


def test_the_verdict_is_of_everything_that_was_to_be_compared():
    assert report(EQUAL, EQUAL).outcome is VerifyOutcome.EQUAL
    assert report(EQUAL, replace(EQUAL, undecided=(b'{"id":1}',))).outcome is VerifyOutcome.INCOMPLETE
    assert report(replace(EQUAL, is_complete=False)).outcome is VerifyOutcome.INCOMPLETE
    with_findings = replace(EQUAL, differences=(DIFFERENT,), is_complete=False)
    assert report(with_findings).outcome is VerifyOutcome.DIFFERENT
    assert report(EQUAL, with_findings).to_json()["outcome"] == "different"


def test_row_counts_alone_make_no_difference():
    """Each side was counted at its own time."""
    assert replace(EQUAL, sink_rows=12).is_equal


def test_the_json_holds_everything():
    compared_table = replace(
        EQUAL,
        differences=(DIFFERENT, Difference(Kind.MISSING, b'{"id":2}', note="rejected: too large")),
        undecided=(b'{"id":3}',),
        left_out=(("secret", "the sink was built without it (setting exclude)"),),
        repaired=(b'{"id":4}',),
    )
    document = report(compared_table).to_json()

    assert orjson.loads(orjson.dumps(document)) == document
    assert (document["sink"], document["generation"], document["against"], document["lsn"]) == (
        "search",
        3,
        "source",
        "16/B374D848",
    )
    (table_document,) = document["tables"]
    assert (table_document["table"], table_document["equal"]) == ("public.orders", False)
    assert (table_document["missing"], table_document["extra"], table_document["different"]) == (1, 0, 1)
    assert table_document["differences"][0] == {
        "kind": "different",
        "key": {"id": 1},
        "columns": ["note"],
        "sink_tag": tag(5),
        "topic_tag": tag(7),
        "note": None,
    }
    assert table_document["undecided"] == [{"id": 3}]
    assert table_document["repaired"] == [{"id": 4}]
    assert table_document["left_out"].keys() == {"secret"}


def test_people_see_key_columns_and_both_tags():
    text = shown(report(replace(EQUAL, differences=(DIFFERENT,))))

    for part in ('{"id":1}', "note", tag(5), tag(7), "different", "differs from the source in 1 row"):
        assert part in text


def test_people_see_that_it_is_equal_and_as_of_when():
    assert "generation 3 of search equals the source (as of 16/B374D848 or later)" in shown(report(EQUAL))
    assert "generation 3 of search equals the source" in shown(report(EQUAL, lsn=None))


def test_only_the_first_of_many_differences_are_shown_to_people():
    many = tuple(Difference(Kind.MISSING, b'{"id":%d}' % n) for n in range(250))
    text = shown(report(replace(EQUAL, differences=many)))

    assert text.count("missing") <= 102
    assert "and 150 more" in text


def test_what_the_numbers_do_not_say_is_said():
    compared_table = replace(
        EQUAL,
        undecided=(b'{"id":3}',),
        is_complete=False,
        absent=(b'{"id":9}',),
        left_out=(("c", "no event has it yet"),),
    )
    text = "\n".join(sentences(compared_table))

    for part in (
        "changed at every look",
        "--keys",
        "more rows may differ",
        "neither side",
        "column 'c' was not compared",
    ):
        assert part in text
    assert list(sentences(EQUAL)) == []


def test_all_of_it_can_be_read_at_80_columns():
    """Nothing is cut off, and no heading or number is broken in two."""
    table = replace(
        EQUAL,
        table=TableName("warehouse_of_the_north", "order_line_discounts"),
        expected_rows=12_345_678,
        sink_rows=12_345_677,
        differences=(DIFFERENT,),
        undecided=(b'{"id":3}',),
        repaired=(b'{"id":4}',),
    )
    text = shown(report(table), width=80)

    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    for word in (
        "12,345,678",
        "12,345,677",
        "missing",
        "different",
        "changed at every look",
        "repaired",
        tag(5),
        tag(7),
    ):
        assert word in text, word


def test_dead_letters_that_cannot_be_read_are_told_where_they_may_be_the_reason():
    table = replace(EQUAL, unreadable_dead_letters=2)

    assert list(sentences(table)) == []
    (sentence,) = sentences(replace(table, differences=(DIFFERENT,)))
    assert "2 dead letters can't be read" in sentence


def test_a_table_that_was_not_compared_is_named_with_the_reason():
    lost = TableReport(ORDERS, not_compared="the beginning of topic shop.public.orders was deleted")
    assert "nothing of generation 3 of search was compared" in shown(report(lost))
    both = report(EQUAL, lost)
    assert both.outcome is VerifyOutcome.INCOMPLETE
    assert "public.orders was not compared: the beginning of topic" in shown(both)
    assert "the compared part of generation 3 of search equals the source (as of" in shown(both)
    assert [table["not_compared"] for table in both.to_json()["tables"]] == [None, lost.not_compared]


def test_what_else_is_to_be_known_of_a_comparison_is_said():
    assert list(sentences(replace(EQUAL, note="compared with its topic"))) == ["public.orders: compared with its topic"]


def test_a_sink_that_may_lack_rows_is_not_said_to_have_them_all():
    (said,) = sentences(replace(EQUAL, may_lack_rows=True))
    assert said.startswith("public.orders: rows that the sink lacks weren't counted")
    assert report(replace(EQUAL, may_lack_rows=True)).to_json()["tables"][0]["may_lack_rows"] is True
