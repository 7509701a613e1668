"""What a comparison tells: which columns it was about, why rows differ, and nothing of their values."""

import io
from dataclasses import replace

import orjson
from rich.console import Console

from cdc.model.table import TableName
from lockstep.verify.report import Difference, Kind, TableReport, VerifyReport, sentences, verify_table
from lockstep.verify.verify import compared_columns, explained, has_all_columns, made_otherwise
from sinks.redis.sink import RedisSettings
from tests.builders import column, table, tag

ORDERS = TableName("public", "orders")
EQUAL = TableReport(ORDERS, 10, 10, 8, 0)
DIFFERENT = Difference(Kind.DIFFERENT, b'{"id":1}', ("note",), tag(5), tag(7))
NOTHING = frozenset()


def report(*tables: TableReport, lsn: int | None = 0x16_B374D848) -> VerifyReport:
    return VerifyReport("search", 3, "source", lsn, tables)


def shown(of: VerifyReport) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(verify_table(of))
    return console.file.getvalue()


def test_only_a_complete_comparison_without_findings_is_equal():
    assert report(EQUAL, EQUAL).is_equal
    assert not report(EQUAL, replace(EQUAL, differences=(DIFFERENT,))).is_equal
    assert not report(replace(EQUAL, unsettled=(b'{"id":1}',))).is_equal
    assert not report(replace(EQUAL, is_complete=False)).is_equal


def test_row_counts_alone_make_no_difference():
    """Each side was counted at its own time."""
    assert replace(EQUAL, sink_rows=12).is_equal


def test_the_json_holds_everything():
    one = replace(
        EQUAL,
        differences=(DIFFERENT, Difference(Kind.MISSING, b'{"id":2}', note="rejected: too large")),
        unsettled=(b'{"id":3}',),
        left_out=(("secret", "the sink was built without it (setting exclude)"),),
        repaired=(b'{"id":4}',),
    )
    found = report(one).to_json()

    assert orjson.loads(orjson.dumps(found)) == found
    assert (found["sink"], found["generation"], found["against"], found["lsn"]) == (
        "search",
        3,
        "source",
        "16/B374D848",
    )
    (of_table,) = found["tables"]
    assert (of_table["table"], of_table["equal"]) == ("public.orders", False)
    assert (of_table["missing"], of_table["extra"], of_table["different"]) == (1, 0, 1)
    assert of_table["differences"][0] == {
        "kind": "different",
        "key": {"id": 1},
        "columns": ["note"],
        "sink_tag": tag(5),
        "topic_tag": tag(7),
        "note": None,
    }
    assert of_table["unsettled"] == [{"id": 3}]
    assert of_table["repaired"] == [{"id": 4}]
    assert of_table["left_out"].keys() == {"secret"}


def test_people_see_key_columns_and_both_tags():
    text = shown(report(replace(EQUAL, differences=(DIFFERENT,))))

    for part in ('{"id":1}', "note", tag(5), tag(7), "different", "differs from the source in 1 row"):
        assert part in text


def test_people_see_that_it_is_equal_and_as_of_when():
    assert "generation 3 of search equals the source (as of 16/B374D848 or later)" in shown(report(EQUAL))
    assert "generation 3 of search equals the source" in shown(report(EQUAL, lsn=None))


def test_markup_in_keys_is_shown_as_it_is():
    one = Difference(Kind.EXTRA, b'{"name":"[bold]x[/bold]"}')

    assert "[bold]x[/bold]" in shown(report(replace(EQUAL, differences=(one,))))


def test_only_the_first_of_many_differences_are_shown_to_people():
    many = tuple(Difference(Kind.MISSING, b'{"id":%d}' % n) for n in range(250))
    text = shown(report(replace(EQUAL, differences=many)))

    assert text.count("missing") <= 102
    assert "and 150 more" in text


def test_what_the_numbers_do_not_say_is_said():
    one = replace(
        EQUAL,
        unsettled=(b'{"id":3}',),
        is_complete=False,
        absent=(b'{"id":9}',),
        left_out=(("c", "no event has it yet"),),
    )
    text = "\n".join(sentences(one))

    for part in (
        "changed at every look",
        "--keys",
        "more rows that may differ",
        "neither side",
        "column 'c' was not compared",
    ):
        assert part in text
    assert list(sentences(EQUAL)) == []


def test_columns_that_both_sides_have_are_compared():
    shape = table(column("id", "int8"), column("a"), column("b"))

    assert compared_columns(shape, shape, NOTHING, NOTHING, against="source") == (["id", "a", "b"], ())


def test_a_column_that_one_side_leaves_out_is_named_with_the_side():
    shape = table(column("id", "int8"), column("a"), column("b"))
    columns, reasons = compared_columns(shape, shape, frozenset("a"), frozenset("b"), against="generation 2")

    assert columns == ["id"]
    assert [(name, reason.split(" was")[0]) for name, reason in reasons] == [("a", "the sink"), ("b", "generation 2")]


def test_a_column_that_no_event_has_yet_is_not_compared():
    logged = table(column("id", "int8"))
    columns, reasons = compared_columns(
        table(column("id", "int8"), column("new")), logged, NOTHING, NOTHING, against="source"
    )

    assert columns == ["id"]
    assert [name for name, _ in reasons] == ["new"]


def test_a_rejection_explains_a_missing_row():
    found = explained(Difference(Kind.MISSING, b"{}"), tag(7), "a field is too long")

    assert (found.topic_tag, found.note) == (tag(7), "rejected: a field is too long")


def test_a_tag_beyond_the_topic_cannot_be_repaired():
    one = Difference(Kind.DIFFERENT, b"{}", ("a",), tag(8))

    assert "rebuild" in explained(one, tag(7), None).note
    assert explained(one, tag(8), None).note == ""
    assert explained(one, None, None).note == ""


def test_what_was_known_before_is_kept():
    one = Difference(Kind.EXTRA, b"{}", sink_tag=tag(8), note="a second copy of the row")

    assert explained(one, tag(8), "too long").note == "a second copy of the row; rejected: too long"


def test_a_table_lacks_a_column_that_the_log_knows() -> None:
    logged = table(column("id", "int8"), column("a"))
    assert has_all_columns(table(column("id", "int8"), column("a"), column("b")), logged)
    assert not has_all_columns(table(column("id", "int8"), column("b")), logged)
    assert not has_all_columns(table(column("id", "int8"), column("a", "int4")), logged)


def test_columns_that_two_sinks_make_otherwise() -> None:
    plain = RedisSettings.model_validate({"computed": {"public.orders.c": {"sql": "id"}}})
    other = RedisSettings.model_validate(
        {
            "computed": {"public.orders.c": {"sql": "id"}},
            "mask": {"public.orders.c": {"truncate": 1}, "public.items.d": {"truncate": 1}},
        }
    )
    assert made_otherwise(plain, other, TableName("public", "orders")) == ["c"]
    assert made_otherwise(plain, plain, TableName("public", "orders")) == []
