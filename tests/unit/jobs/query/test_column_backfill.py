"""Columns that a table gets while a generation holds rows of it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import Column, Table, TableName
from cdc.protocol.control_records import SchemaRecord, ShapeChange
from jobs.generations.columns import Columns, load_columns, save_columns
from jobs.query.column_backfill import ColumnBackfill, backfill_columns, next_columns
from sinks.contract import Sink
from sinks.memory import MemorySink, MemoryStore, open_memory
from sinks.wrappers.projection import Projection
from tests.builders import batch, column, table, upsert

ID, NOTE = replace(column("id", "int8"), number=1), replace(column("note"), number=2)
GRADE, PRICE = replace(column("grade", "int4"), number=3), replace(column("price", "numeric"), number=4)
FIRST = table(ID, NOTE)


def _of(*columns: Column) -> Table:
    return replace(FIRST, columns=columns)


GRADED = _of(ID, NOTE, GRADE)
PRICED = _of(ID, NOTE, GRADE, PRICE)
RECORDS = (
    SchemaRecord(FIRST, 1),
    SchemaRecord(GRADED, 2, ShapeChange(defaults={"grade": 5})),
    SchemaRecord(PRICED, 3, ShapeChange(defaults={"price": "1.50"})),
)


def _next(
    known: Columns | None, *records: SchemaRecord, has_rows: bool = True, exclude: tuple[str, ...] = ()
) -> Columns:
    shapes = {record.table.name: record.table for record in records}
    return next_columns(known, shapes.values(), records, projection=Projection.parse(exclude), has_rows=has_rows)


def _lacking(columns: Columns) -> Mapping[str, JsonValue]:
    assert columns.lacking.keys() <= {FIRST.name}
    return columns.lacking.get(FIRST.name, {})


FRESH = _next(None, *RECORDS[:1], has_rows=False)


def _done(columns: Columns) -> Columns:
    return replace(columns, lacking={}, is_filled=True)


def test_a_new_generation_lacks_nothing() -> None:
    assert _lacking(_next(None, *RECORDS, has_rows=False)) == {}


def test_columns_that_were_added_one_after_the_other_are_lacking_together_or_each_alone() -> None:
    assert _lacking(_next(FRESH, *RECORDS)) == {"grade": 5, "price": "1.50"}
    assert _lacking(_next(_done(_next(FRESH, *RECORDS[:2])), *RECORDS)) == {"price": "1.50"}


def test_what_was_begun_and_not_done_is_still_lacking() -> None:
    begun = _next(FRESH, *RECORDS[:2])
    assert _lacking(_next(begun, *RECORDS[:2])) == {"grade": 5}
    assert _lacking(_next(begun, *RECORDS)) == {"grade": 5, "price": "1.50"}


def test_what_is_lacking_is_known_by_its_number_when_it_has_another_name() -> None:
    begun = _next(FRESH, *RECORDS[:2])
    renamed = SchemaRecord(_of(ID, NOTE, replace(GRADE, name="mark")), 3)
    assert _lacking(_next(begun, *RECORDS[:2], renamed)) == {"mark": 5}


def test_where_nothing_is_known_of_a_generation_with_rows_every_added_column_may_be_lacking() -> None:
    assert _lacking(_next(None, *RECORDS)) == {"grade": 5, "price": "1.50"}


def test_a_table_that_joins_a_generation_has_no_rows_to_lack_anything() -> None:
    other = TableName("public", "other")
    records = [replace(record, table=replace(record.table, name=other)) for record in RECORDS]
    assert _next(FRESH, RECORDS[0], *records).lacking == {}


def test_a_column_that_is_left_out_is_not_reported() -> None:
    columns = _next(FRESH, *RECORDS, exclude=("public.orders.grade",))
    assert _lacking(columns) == {"price": "1.50"}
    assert "grade" not in columns.to_json()


def test_a_column_that_only_a_condition_reads_can_not_become_another_one() -> None:
    again = [
        SchemaRecord(_of(ID), 3),
        SchemaRecord(_of(ID, replace(NOTE, number=9)), 4, ShapeChange(defaults={"note": "x"})),
    ]
    hidden = Projection({FIRST.name: frozenset({"note"})})
    known = next_columns(None, [FIRST], RECORDS[:1], projection=hidden, has_rows=False)
    shown = next_columns(known, [again[-1].table], [RECORDS[0], *again], projection=hidden, has_rows=True)
    assert (_lacking(shown), shown.tables[FIRST.name].columns) == ({}, {"id": 1})
    filtered = replace(hidden, conditions={FIRST.name})
    known = next_columns(None, [FIRST], RECORDS[:1], projection=filtered, has_rows=False)
    with pytest.raises(LockstepError, match="column 'note' is another one than before"):
        next_columns(known, [again[-1].table], [RECORDS[0], *again], projection=filtered, has_rows=True)


SWAPPED = _of(ID, replace(NOTE, number=5), replace(column("other"), number=2))


@pytest.mark.parametrize(
    "since",
    [
        [SchemaRecord(_of(ID), 3), SchemaRecord(_of(ID, replace(NOTE, number=9)), 4)],
        [SchemaRecord(_of(ID), 3, ShapeChange(rewritten="x")), SchemaRecord(_of(ID, replace(NOTE, number=9)), 4)],
        [SchemaRecord(SWAPPED, 3, ShapeChange(renamed={"note": "other", "other": "note"}))],
    ],
    ids=["dropped and added again", "and a copy in between", "two names swapped"],
)
def test_a_column_under_another_ones_name_needs_a_new_generation(since: list[SchemaRecord]) -> None:
    with pytest.raises(LockstepError, match="column 'note' is another one than before") as raised:
        _next(FRESH, RECORDS[0], *since)
    assert "lockstep rebuild" in str(raised.value.hint)


def test_a_copy_before_the_shape_that_a_generation_was_prepared_for_replaces_none_of_its_rows() -> None:
    first, swapped = _of(ID, NOTE, replace(column("other"), number=5)), SWAPPED
    swap = ShapeChange(renamed={"note": "other", "other": "note"})
    records = [
        SchemaRecord(first, 1),
        SchemaRecord(swapped, 2, swap),
        SchemaRecord(first, 3, ShapeChange(rewritten="it was dropped and made again")),
    ]
    known = _next(None, *records, has_rows=False)
    with pytest.raises(LockstepError, match="column 'note' is another one than before"):
        _next(known, *records, SchemaRecord(swapped, 4, swap))


def test_a_column_under_another_ones_name_is_fine_where_all_rows_come_again() -> None:
    again = SchemaRecord(_of(ID, replace(NOTE, number=9)), 4, ShapeChange(rewritten="dropped and added again"))
    columns = _next(FRESH, RECORDS[0], again)
    assert columns.tables[FIRST.name].columns == {"id": 1, "note": 9}


def test_a_column_that_was_gone_before_its_number_was_known_is_not_the_next_one_of_its_name() -> None:
    """As of one that comes and goes in a transaction that writes rows: rows may have its values, or lack it."""
    passing = SchemaRecord(_of(ID, NOTE, replace(GRADE, number=0)), 2)
    records = [RECORDS[0], passing, replace(RECORDS[0], from_lsn=3)]
    known = _next(_next(_next(FRESH, *records[:2]), *records), *records, replace(passing, from_lsn=4))
    assert _lacking(known) == {}
    with pytest.raises(LockstepError, match="column 'grade' is another one than before"):
        _next(known, *records, replace(RECORDS[1], from_lsn=5))


COPIED = ShapeChange(rewritten="it was copied again")
PUT_BACK = SchemaRecord(replace(FIRST, epoch=1), 1, COPIED, from_epoch=1)
BONUS = replace(column("bonus", "int4"), number=GRADE.number)
AGAIN = SchemaRecord(replace(_of(ID, NOTE, BONUS), epoch=1), 2, ShapeChange(defaults={"bonus": 7}), from_epoch=1)


def test_a_column_that_has_a_number_again_after_a_recovery_is_lacking() -> None:
    """The source was put back to before ``grade`` was added, and a copy has brought every row without it."""
    graded = _done(_next(FRESH, *RECORDS[:2]))
    put_back = _next(graded, *RECORDS[:2], PUT_BACK)
    assert _lacking(put_back) == {}
    assert _lacking(_next(put_back, *RECORDS[:2], PUT_BACK, AGAIN)) == {"bonus": 7}
    assert _lacking(_next(graded, *RECORDS[:2], PUT_BACK, AGAIN)) == {"bonus": 7}  # nobody looked in between


def test_what_was_lacking_before_a_recovery_is_not_filled_into_the_column_that_has_its_number() -> None:
    lacking = _next(FRESH, *RECORDS[:2])
    at_once = SchemaRecord(AGAIN.table, 1, COPIED, from_epoch=1)
    assert _lacking(_next(lacking, *RECORDS[:2], at_once)) == {}


def test_a_column_that_has_a_number_of_the_table_that_was_dropped_is_lacking() -> None:
    before, after = (replace(GRADED, oid=7), replace(FIRST, oid=8))
    made_again = SchemaRecord(after, 3, ShapeChange(rewritten="it was dropped and made again"))
    added = SchemaRecord(replace(AGAIN.table, oid=8, epoch=0), 4, AGAIN.change)
    records = [SchemaRecord(before, 2), made_again]
    held = _next(_next(None, records[0], has_rows=False), *records)
    assert _lacking(_next(held, *records, added)) == {"bonus": 7}


def test_the_note_survives_its_json() -> None:
    store = MemoryStore()
    opened = open_memory(store, 1)
    assert load_columns(opened.records, 1) is None
    columns = _next(FRESH, *RECORDS)
    save_columns(opened.records, 1, columns)
    assert load_columns(opened.records, 1) == columns


# Carrying over


def _refusal(event: RowEvent, key: int | None) -> str | None:
    return "no" if event.key["id"] == key and event.row is not None and "grade" in event.row else None


class Kept:
    """A generation with rows from before and the steps that were carried out on it."""

    def __init__(self, notes: Iterable[str], *, refuse: int | None = None) -> None:
        self.store = MemoryStore()
        sink = MemorySink(self.store, 1, refuse=lambda event: _refusal(event, refuse))
        sink.prepare([FIRST])
        self.sink: Sink = sink
        sink.apply(batch(*(upsert({"id": number, "note": note}, 1) for number, note in enumerate(notes))))
        sink.prepare([GRADED])
        self.steps: list[ColumnBackfill] = []

    def backfill_columns(self, *, steps: int = 1000) -> ColumnBackfill:
        return backfill_columns(
            self.sink,
            GRADED,
            {"grade": 5},
            fence=0,
            enter=lambda: len(self.steps) < steps,
            leave=self.steps.append,
        )

    @property
    def grades(self) -> list[JsonValue]:
        return [stored.row["grade"] for stored in self.sink.scan(GRADED)]


def test_all_rows_are_carried_over_in_steps() -> None:
    kept = Kept(f"n{number}" for number in range(1200))
    assert kept.backfill_columns() == ColumnBackfill(1200, is_over=True)
    assert [step.rows for step in kept.steps] == [500, 1000, 1200]
    assert set(kept.grades) == {5}
    assert {stored.row["note"] for stored in kept.sink.scan(GRADED)} == {f"n{number}" for number in range(1200)}


def test_few_large_rows_are_a_step() -> None:
    kept = Kept("x" * 3_000_000 for _ in range(7))
    assert kept.backfill_columns() == ColumnBackfill(7, is_over=True)
    assert [step.rows for step in kept.steps] == [3, 6, 7]


def test_who_is_interrupted_goes_on_where_it_was() -> None:
    kept = Kept("n" for _ in range(1200))
    assert kept.backfill_columns(steps=1) == ColumnBackfill(500)
    assert kept.grades.count(None) == 700
    assert kept.backfill_columns() == ColumnBackfill(700, is_over=True)
    assert set(kept.grades) == {5}


def test_who_is_to_stop_does_not_look_at_all_rows_first() -> None:
    kept = Kept("n" for _ in range(1200))
    assert kept.backfill_columns() == ColumnBackfill(1200, is_over=True)
    looks = iter(range(3))
    done = backfill_columns(
        kept.sink,
        GRADED,
        {"grade": 5},
        fence=0,
        enter=lambda: True,
        leave=kept.steps.append,
        stopping=lambda: next(looks, None) is None,
    )
    assert done == ColumnBackfill()


def test_a_row_that_is_refused_does_not_keep_its_neighbours() -> None:
    kept = Kept(["a", "b", "c"], refuse=1)
    assert kept.backfill_columns() == ColumnBackfill(2, 1, "no", is_over=True)
    assert kept.grades == [5, None, 5]


def test_rows_are_read_again_just_before_they_are_written() -> None:
    """A destination's scan may be a snapshot, and one that takes hours: longer than it remembers a deletion."""
    kept = Kept(["a", "b"])
    stale = list(kept.sink.scan(GRADED))
    whole = kept.sink

    class Snapshot:
        def __getattr__(self, name: str) -> Any:
            return getattr(whole, name)

        def scan(self, _: Table) -> Any:
            return iter(stale)

    newer: dict[str, JsonValue] = {"id": 0, "note": "newer", "grade": None}
    whole.apply(batch(upsert(newer, 2)))
    del kept.store.generations[1].newest[FIRST.name][b"[1]"]  # deleted, and the deletion forgotten
    kept.sink = cast("Sink", Snapshot())
    assert kept.backfill_columns() == ColumnBackfill(0, is_over=True)
    assert [dict(stored.row) for stored in whole.scan(GRADED)] == [newer]
