"""sinks.warehouse.postgres.history: DDL and lines of COPY; its behaviour is in tests/contract"""

import pytest

from cdc.model.errors import LockstepError
from cdc.model.event import TableEvents
from sinks.columns.shape import Shape
from sinks.contract import TableVersions
from sinks.warehouse.postgres.history import HistoryStatements, create_history_sql, set_aside_sql
from sinks.warehouse.postgres.staging import Staging
from tests.builders import column, delete, table, tag, upsert


@pytest.mark.parametrize("name", ["_tag", "_committed_at", "_operation", "valid_from", "valid_to"])
def test_a_column_with_a_name_of_ours_is_refused(name: str) -> None:
    with pytest.raises(LockstepError, match=name):
        create_history_sql("s", Shape.of(table(column("id"), column(name))))


def test_the_key_has_the_tag_in_it() -> None:
    assert 'primary key ("id", "_tag")' in create_history_sql("s", Shape.of(table()))


def test_lines_have_commit_times_and_operations() -> None:
    events = [upsert({"id": 1, "note": "a"}, 1), upsert({"id": 2, "note": None}, 1), delete({"id": 1}, 2)]
    versions = TableVersions(TableEvents.of(table().name, events), "cud", (1_700_000_000_123, 1_700_000_000_123, -1))
    statements = HistoryStatements("t", Shape.of(table()), Staging("s", "t"))
    first, at = tag(1), "2023-11-14T22:13:20.123000+00:00"
    assert b"".join(statements.version_blocks(versions)).decode().splitlines(keepends=True) == [
        f"1\ta\t{first}\t{at}\tc\n",
        f"2\t\\N\t{first}\t{at}\tu\n",
        f"1\t\\N\t{tag(2)}\t1969-12-31T23:59:59.999000+00:00\td\n",
    ]
    assert [len(versions[:1]), versions[1:].operations, versions[1:].events.tags[0]] == [1, "ud", tag(1)]


def test_a_dropped_column_keeps_its_values_under_a_name_that_fits() -> None:
    assert set_aside_sql("t", "note", 3) == 'alter table t rename column "note" to "_dropped_3_note"'
    long = set_aside_sql("t", "ü" * 31, 12).split('"')[3]
    assert (len(long.encode()) <= 63, long.startswith("_dropped_12_ü")) == (True, True)
