"""Absence isn't knowledge: a column without a value that the catalogue keeps may have had one."""

from dataclasses import replace

import pytest

from cdc.protocol.added_column import Default, Holder, value_before
from cdc.protocol.membership import RecordedStorage

TABLE, FIRST, SECOND, NEW = 16400, 16410, 16420, 16430
RECORDED = RecordedStorage(
    file=TABLE, toast=0, columns="", attributes=3, partitions={"16410": "16410", "16420": "16420"}, attached=""
)
UNKNOWN = Default(None, is_known=False)
NULL = Default(None, is_known=True)


def holder(oid: int = TABLE, *, kept: str | None = None, moved: bool = False, oldest: int | None = None) -> Holder:
    file = "99999" if moved else str(oid)
    return Holder(oid, file, 4, kept is not None, kept, 4 if kept is not None and oldest is None else oldest)


@pytest.mark.parametrize(
    ("holders", "expected"),
    [
        ([holder()], NULL),
        ([holder(kept="eu")], Default("eu", is_known=True)),
        ([holder(moved=True)], UNKNOWN),
        ([holder(kept="eu", moved=True)], Default("eu", is_known=True)),
        ([holder(moved=True, oldest=3)], NULL),
        ([], NULL),
        ([holder(FIRST, kept="eu"), holder(SECOND, kept="eu")], Default("eu", is_known=True)),
        ([holder(FIRST, kept="eu"), holder(SECOND, moved=True)], UNKNOWN),
        ([holder(FIRST, kept="eu"), holder(SECOND, kept="us")], UNKNOWN),
        ([holder(FIRST, kept="eu"), holder(SECOND)], UNKNOWN),
        ([holder(FIRST, kept="eu"), holder(NEW, moved=True)], Default("eu", is_known=True)),
        ([replace(holder(FIRST), number=0)], UNKNOWN),
    ],
    ids=[
        "nothing kept, nothing rewritten", "kept", "rewritten", "kept since a rewrite", "rewritten before it came",
        "no rows from before", "in each partition", "one rewritten", "two values", "one without",
        "a partition that came later", "gone again",
    ],
)  # fmt: skip
def test_what_rows_from_before_have(holders: list[Holder], expected: Default) -> None:
    assert value_before(TABLE, 4, holders, RECORDED) == expected


def test_a_column_that_was_there_and_was_not_sent_has_values_of_its_own() -> None:
    assert value_before(TABLE, 3, [holder()], RECORDED) == UNKNOWN


def test_a_table_that_is_to_be_copied_has_no_rows_from_before() -> None:
    assert value_before(TABLE, 4, [holder(moved=True)], None) == NULL
