"""The suite itself: its cases, its judgement of logs, and the table of docs/conformance.md."""

from dataclasses import replace

import pytest

from cdc.capture.questions import Event
from cdc.model.tag import TEXT_LENGTH
from tests.conformance.case import MAJORS, Case, Way
from tests.conformance.judge import (
    TOMBSTONE,
    Change,
    complaints_about_log,
    complaints_about_transactions,
    fold,
    message,
    parse,
    row_of,
    shapes,
)
from tests.conformance.report import Verdict, markdown, table_in_page, verdict
from tests.conformance.run import Complaints
from tests.conformance.suite import AT_EACH_CHANGE, LEFT_OUT, NOT_YET, cases

CASE = Case(id="X-1", about="something", setup=(), transactions=(("t c 1", "t u 1"), ("t d 1",)))


def change(op: str, lsn: int, seq: int = 1, *, key: bytes = b'{"id":1}', after: bytes | None = b'{"id":1}') -> Change:
    return Change("t", key, op, f"0000{lsn:016x}{seq:08x}", None if op in ("d", TOMBSTONE) else after)


GOOD = [change("c", 1), change("u", 1, 2), change("d", 2), change(TOMBSTONE, 2)]


def test_every_case_has_an_id_of_its_own() -> None:
    ids = [case.id for case in cases(MAJORS[-1])]
    assert sorted(set(ids)) == sorted(ids)
    assert set(ids) > AT_EACH_CHANGE


@pytest.mark.parametrize("major", MAJORS)
def test_every_version_has_the_same_cases(major: int) -> None:
    assert [case.id for case in cases(major)] == [case.id for case in cases(MAJORS[-1])]


def test_what_is_not_yet_supported_or_left_out_is_told_apart() -> None:
    ids = {case.id for case in cases(MAJORS[-1])}
    assert ids >= NOT_YET
    assert LEFT_OUT.keys() & ids == set()


def test_every_case_ends_in_a_comparison() -> None:
    # A case that is run in no way, or captures no table, would pass whatever capture does.
    assert [case.id for case in cases(MAJORS[-1]) if not case.ways or not case.tables] == []


def test_the_page_has_the_table_of_a_run_in_which_no_case_failed() -> None:
    supported = [case for case in cases(MAJORS[-1]) if case.id not in NOT_YET]
    passed: dict[int, Complaints] = {
        major: {case.id: [] for case in supported if case.since <= major} for major in MAJORS
    }
    assert table_in_page() == markdown(cases(MAJORS[-1]), passed)


def test_a_good_log_has_nothing_to_complain_about() -> None:
    assert complaints_about_log(GOOD) == []
    assert complaints_about_transactions(CASE, GOOD) == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (GOOD[1:], "isn't live"),
        (GOOD[:3], "no tombstone"),
        ([*GOOD[:2], GOOD[3]], "not right after its delete"),
        ([GOOD[0], GOOD[0]], "isn't newer"),
        ([change("c", 2), change("u", 1)], "isn't newer"),
        ([*GOOD, change("d", 3), change(TOMBSTONE, 3)], "isn't live"),
        ([*GOOD[:3], change(TOMBSTONE, 5)], "not right after its delete"),
        ([replace(GOOD[0], after=None)], "a row or no row"),
    ],
)
def test_a_wrong_log_is_noticed(changes: list[Change], complaint: str) -> None:
    assert [text for text in complaints_about_log(changes) if complaint in text] != []


@pytest.mark.parametrize(
    "changes",
    [
        GOOD[:2],
        [*GOOD, change("c", 3)],
        [replace(GOOD[0], key=b'{"id":2}'), *GOOD[1:]],
        [change("c", 1), change("u", 2), change("d", 2, 2), change(TOMBSTONE, 2, 2)],
        [change("c", 1), change("u", 1, 3), *GOOD[2:]],
    ],
)
def test_other_transactions_than_expected_are_noticed(changes: list[Change]) -> None:
    assert len(complaints_about_transactions(CASE, changes)) == 1


def test_a_fold_is_what_compaction_leaves() -> None:
    other = change("c", 1, key=b'{"id":2}', after=b"{}")
    newest = replace(other, after=b"[]")
    assert fold([*GOOD, other, newest]) == {b'{"id":2}': newest}


def test_an_event_is_parsed_with_the_rows_own_bytes() -> None:
    value = (
        b'{"op":"c","tag":"%s","before":null,"after":{"id":1.10,"a":"\\"after\\":"},"source":{"schema_id":"ab"}}'
        % (b"0" * TEXT_LENGTH)
    )
    parsed = parse("t", ("topic", b'{"id":1.10}', value, None))
    assert (parsed.op, parsed.after, str(parsed)) == ("c", b'{"id":1.10,"a":"\\"after\\":"}', "t c 1.10")
    assert parsed.schema_id == "ab"


def test_a_message_is_read_in_debeziums_form() -> None:
    value = b'{"op":"m","message":{"prefix":"p","content":"4oKsIHg="}}'
    assert message(("topic", b"", value, None)) == ("p", "\u20ac x")


def test_a_row_is_carried_to_the_newest_shape() -> None:
    history = [
        {"schema_id": "1", "columns": [{"name": "id"}, {"name": "gone"}, {"name": "old"}]},
        {
            "schema_id": "2",
            "columns": [{"name": "id"}, {"name": "new"}, {"name": "added"}, {"name": "null"}],
            "renamed": {"new": "old"},
            "defaults": {"added": "7"},
        },
    ]
    first = replace(change("c", 1, after=b'{"id":1,"gone":2,"old":3.0}'), schema_id="1")
    second = replace(change("c", 1, after=b'{"id":1,"new":2,"added":3,"null":4}'), schema_id="2")
    assert row_of(first, history) == {"id": "1", "new": "3.0", "added": "7", "null": None}
    assert row_of(second, history) == {"id": "1", "new": "2", "added": "3", "null": "4"}


def test_of_a_shape_that_came_back_only_the_newest_record_is_left() -> None:
    def record(schema_id: str, n: int) -> Event:
        value = f'{{"schema":"s","table":"t","schema_id":"{schema_id}","n":{n}}}'.encode()
        return "topic", schema_id.encode(), value, None

    history = shapes([record("a", 1), record("b", 2), record("a", 3)])
    assert [(record["schema_id"], record["n"]) for record in history["s", "t"]] == [("b", "2"), ("a", "3")]


def test_verdicts() -> None:
    assert verdict(CASE, 18, {"X-1": []}) is Verdict.OK
    assert verdict(CASE, 18, {"X-1": ["wrong"]}) is Verdict.FAILED
    assert verdict(CASE, 18, {}) is Verdict.FAILED
    assert verdict(CASE, 18, {}, not_yet={"X-1"}) is Verdict.NOT_YET
    assert verdict(CASE, 18, {"X-1": []}, not_yet={"X-1"}) is Verdict.OK
    assert verdict(replace(CASE, since=15), 14, {}) is Verdict.NONE


def test_the_table_names_the_versions_on_which_a_case_did_not_pass() -> None:
    assert markdown([CASE], {14: {"X-1": ["wrong"]}, 18: {"X-1": []}}).splitlines()[-1] == (
        "| X-1 | something (FAILED on 14) |"
    )
    assert markdown([CASE], {18: {"X-1": []}}).splitlines()[-1] == "| X-1 | something |"


def test_ways_have_schemas_of_their_own() -> None:
    assert len({CASE.schema(way) for way in Way}) == len(Way)
