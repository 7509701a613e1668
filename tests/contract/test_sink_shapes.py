"""What every sink promises when tables and columns come and go, or are left out."""

from dataclasses import replace
from typing import Any, cast

import pytest

from cdc.model.errors import LockstepError, NeedsRebuild
from cdc.model.event import JsonValue
from cdc.model.table import TableName
from sinks.contract import Batch, OpenedSink, Outcome, Sink
from sinks.wrappers.masks import Salt, Truncation
from sinks.wrappers.projecting import ProjectingSink
from sinks.wrappers.projection import Projection
from sinks.wrappers.renaming import Renaming
from tests.builders import batch, column, delete, tag, upsert
from tests.contract.destinations import ITEMS, Destination
from tests.contract.items import ODD, PLAIN, VALUES, carried, counts, gone, item, rows_of


def test_columns_come_and_go_and_a_job_that_runs_on_sees_what_another_one_added(
    destination: Destination, name: str
) -> None:
    worker = destination.sink(name, 1, ITEMS)
    worker.apply(batch(item(1, "a", 1)))
    worker.prepare([ITEMS])
    destination.sink(name, 1, ITEMS)
    assert rows_of(worker) == {"(1,)": "a"}
    wider = replace(ITEMS, columns=(*ITEMS.columns, column("added", "jsonb")))
    destination.sink(name, 1, wider)
    worker.apply(batch(upsert({"id": 2, "note": "b", "number": 1, "added": '{"x": 1}'}, 2, of=wider)))
    assert {stored.row["id"]: stored.row["added"] for stored in worker.scan(wider)} == {1: None, 2: '{"x": 1}'}
    narrower = replace(ITEMS, columns=ITEMS.columns[:2])
    worker.prepare([narrower])
    worker.apply(batch(upsert({"id": 1, "note": "c"}, 3, of=narrower)))
    assert rows_of(worker, narrower) == {"(1,)": "c", "(2,)": "b"}


GRADED = replace(ITEMS, columns=(*ITEMS.columns, column("grade", "int4")))


def test_rows_that_are_there_get_what_a_column_was_added_with(destination: Destination, name: str) -> None:
    _are_carried_over(destination.opened(name, 1), in_bulk=False)


@pytest.mark.needs("bulk")
def test_rows_of_a_bulk_load_get_what_a_column_was_added_with(destination: Destination, name: str) -> None:
    _are_carried_over(destination.opened(name, 1), in_bulk=True)


def _are_carried_over(opened: OpenedSink, *, in_bulk: bool) -> None:
    opened.sink.prepare([ITEMS], go_live=not in_bulk)
    if in_bulk:
        opened.bulk.begin_bulk()
    opened.sink.apply(batch(item(1, "a", 1), item(2, "b", 1), item(3, "c", 1), item(4, "d", 1)))
    opened.sink.apply(batch(gone(4, 2)))
    added = {ITEMS.name: {"grade": 5}}
    carried(opened.sink, GRADED, opened.sink.prepare([GRADED], go_live=not in_bulk, added=added))
    # Rows of the new shape bring their own values, including null.
    rows = [{"id": number, "note": "n", "number": 1, "grade": grade} for number, grade in ((2, None), (5, 7))]
    opened.sink.apply(batch(*(upsert(row, 3, of=GRADED) for row in rows)))
    assert carried(opened.sink, GRADED, opened.sink.prepare([GRADED], go_live=not in_bulk, added=added)) == 0
    if in_bulk:
        opened.bulk.end_bulk()
    assert {stored.row["id"]: stored.row["grade"] for stored in opened.sink.scan(GRADED)} == {1: 5, 2: None, 3: 5, 5: 7}
    assert rows_of(opened.sink) == {"(1,)": "a", "(2,)": "n", "(3,)": "c", "(5,)": "n"}


def test_a_newer_event_wins_over_a_row_that_is_carried_over(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(*(item(number, "old", 1) for number in range(6))))
    left = sink.prepare([GRADED], added={ITEMS.name: {"grade": 5}})

    class Overtaken:
        """Another job's newer events come after the rows have been read, and just before they are written."""

        def __getattr__(self, name: str) -> Any:
            return getattr(sink, name)

        def apply(self, given: Batch) -> Outcome:
            newer: dict[str, JsonValue] = {"id": 1, "note": "newer", "number": 1, "grade": 7}
            sink.apply(batch(upsert(newer, 2, of=GRADED), gone(2, 2)))
            return sink.apply(given)

    carried(cast("Sink", Overtaken()), GRADED, left)
    stored_rows = {stored.row["id"]: (stored.row["note"], stored.row["grade"]) for stored in sink.scan(GRADED)}
    if left:
        assert stored_rows == {0: ("old", 5), 1: ("newer", 7), 3: ("old", 5), 4: ("old", 5), 5: ("old", 5)}
    else:
        assert stored_rows == dict.fromkeys(range(6), ("old", 5))


def test_what_a_column_was_added_with_is_the_same_value_in_every_type(destination: Destination, name: str) -> None:
    pairs = [pair for row in (PLAIN, *ODD) for pair in row.items()]
    values = [
        (column_name, value)
        for column_name, value in pairs
        if column_name != "id" and value is not None and len(str(value)) < 50_000
    ]
    columns = [
        replace(VALUES.column(column_name), name=f"added {index}") for index, (column_name, _) in enumerate(values)
    ]
    wider = replace(ITEMS, columns=(*ITEMS.columns, *columns))
    added = {f"added {index}": value for index, (_, value) in enumerate(values)}
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "from before", 1)))
    carried(sink, wider, sink.prepare([wider], added={ITEMS.name: added}))
    sink.apply(batch(upsert({"id": 2, "note": "written", "number": 1, **added}, 2, of=wider)))
    before, written = sorted((dict(stored.row) for stored in sink.scan(wider)), key=lambda row: str(row["id"]))
    assert {name: before[name] for name in added} == {name: written[name] for name in added} == added


def test_a_row_with_null_is_told_from_one_that_lacks_the_column(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "a", 1)))
    wider = replace(ITEMS, columns=(*ITEMS.columns, column("number 2", "int4"), column("doc", "jsonb")))
    left = sink.prepare([wider], added={ITEMS.name: {"number 2": 5}})
    row: dict[str, JsonValue] = {"id": 2, "note": "b", "number": None, "number 2": None, "doc": None}
    sink.apply(batch(upsert(row, 2, of=wider)))
    lacks = {stored.row["id"]: sorted(stored.lacks) for stored in sink.scan(wider)}
    assert lacks == {1: ["doc", "number 2"] if left else [], 2: []}
    assert {stored.row["id"]: sorted(stored.lacks) for stored in sink.rows(wider, [{"id": 1}, {"id": 2}])} == lacks


@pytest.mark.soak
def test_a_text_goes_on_where_it_loses_its_limit(destination: Destination, name: str) -> None:
    limited = replace(ITEMS, columns=(ITEMS.columns[0], column("note", "varchar"), ITEMS.columns[2]))
    opened = destination.opened(name, 1, limited)
    opened.sink.apply(batch(item(1, "short", 1), fence=opened.sink.claim()))
    opened.sink.close()
    again = destination.opened(name, 1, ITEMS)
    long = "y" * 200
    again.sink.apply(batch(item(2, long, 2), fence=again.sink.claim()))
    assert rows_of(again.sink) == {"(1,)": "short", "(2,)": long}


def test_another_shape_needs_a_new_generation(destination: Destination, name: str) -> None:
    others = (
        replace(ITEMS, key=("id", "note")),
        replace(ITEMS, columns=(column("id", "text"), *ITEMS.columns[1:])),
        replace(ITEMS, columns=(ITEMS.columns[0], column("renamed"), ITEMS.columns[2])),
    )
    sink = destination.sink(name, 1, ITEMS)
    for other in others:
        with pytest.raises(LockstepError, match="lockstep rebuild"):
            sink.prepare([other])
    destination.sink(name, 2, others[1])


def test_a_table_that_is_not_prepared_is_an_error(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    with pytest.raises(LockstepError, match="not prepared"):
        destination.sink(name, 1).apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    assert list(sink.rows(ITEMS, ())) == []
    with pytest.raises(NeedsRebuild, match="not prepared"):
        list(sink.rows(replace(ITEMS, name=TableName("public", "others")), ()))


def test_tables_of_the_same_name_in_two_schemas_are_kept_apart(destination: Destination, name: str) -> None:
    tables = [replace(ITEMS, name=TableName(schema, "items")) for schema in ("public", "sales", "Sales")]
    if destination.folds_case:
        with pytest.raises(LockstepError, match="both have the name"):
            destination.sink(name, 1, *tables)
        tables = tables[:2]
    sink = destination.sink(name, 1, *tables)
    for number, shape in enumerate(tables):
        sink.apply(batch(upsert({"id": 1, "note": f"n{number}", "number": 1}, 1, of=shape)))
    assert [rows_of(sink, shape) for shape in tables] == [{"(1,)": f"n{number}"} for number, _ in enumerate(tables)]


PRIVATE = "secret-word"


def _projecting(destination: Destination, name: str, generation: int = 1) -> Sink:
    exclude = [f"public.values.{text}" for text in ("prose", "a_json", '"dotted.name"')]
    return ProjectingSink(destination.opened(name, generation), Projection.parse(exclude), generation)


def test_columns_that_are_left_out_never_reach_the_destination(destination: Destination, name: str) -> None:
    sink = _projecting(destination, name)
    sink.prepare([VALUES])
    private = {"prose": PRIVATE, "a_json": f'{{"a": "{PRIVATE}"}}', "dotted.name": f'{{"a": "{PRIVATE}"}}'}
    row = {**PLAIN, **private}
    sink.apply(batch(upsert(row, 1, of=VALUES), upsert({**row, "id": 2}, 1, of=VALUES)))
    sink.apply(batch(delete({"id": 2}, 2, of=VALUES)))
    expected = {key: value for key, value in row.items() if key not in private}
    assert [dict(stored.row) for stored in sink.scan(VALUES)] == [expected]
    assert [dict(stored.row) for stored in sink.rows(VALUES, [{"id": 1}, {"id": 2}])] == [expected]
    assert PRIVATE not in destination.everything(name)
    assert "bytes" in destination.everything(name)


def test_a_column_that_comes_later_passes_by_those_that_are_left_out(destination: Destination, name: str) -> None:
    _projecting(destination, name).prepare([VALUES])
    wider = replace(VALUES, columns=(*VALUES.columns, column("added")))
    sink = _projecting(destination, name)
    sink.prepare([wider])
    sink.apply(batch(upsert({**PLAIN, "prose": PRIVATE, "added": "x"}, 1, of=wider)))
    assert [stored.row["added"] for stored in sink.scan(wider)] == ["x"]
    assert PRIVATE not in destination.everything(name)


def test_what_a_column_was_added_with_stays_away_where_the_column_is_left_out(
    destination: Destination, name: str
) -> None:
    """A column that was dropped and comes again, with a name that the sink leaves out."""
    narrower = replace(VALUES, columns=tuple(column for column in VALUES.columns if column.name != "prose"))
    _projecting(destination, name).prepare([VALUES])
    sink = _projecting(destination, name)
    sink.prepare([narrower])
    row = {key: value for key, value in PLAIN.items() if key not in ("prose", "a_json", "dotted.name")}
    sink.apply(batch(upsert(row, 1, of=VALUES)))
    wider = replace(VALUES, columns=(*VALUES.columns, column("added")))
    left = sink.prepare([wider], added={VALUES.name: {"prose": PRIVATE, "added": "x"}})
    carried(sink, wider, left)
    assert [dict(stored.row) for stored in sink.scan(wider)] == [{**row, "added": "x"}]
    assert PRIVATE not in destination.everything(name)


def test_hidden_values_and_other_names_hold_in_every_way_a_row_comes(destination: Destination, name: str) -> None:
    """Applied, replaced, replayed and carried over: a hidden value is hidden once, and read by the source's names."""
    masks: Any = {VALUES.name: {"prose": "hash", "a_json": Truncation(truncate=2)}}
    renaming = Renaming({VALUES.name: {"a_json": "shortened", "prose": "hidden"}})

    def opened() -> Sink:
        inner = destination.opened(name, 1)
        return ProjectingSink(inner, Projection(masks=masks, salt=Salt(b"salt")), 1, renaming=renaming)

    sink = opened()
    sink.prepare([VALUES])
    row = {**PLAIN, "prose": PRIVATE, "a_json": f'{{"a": "{PRIVATE}"}}'}
    seen = {**row, "prose": Salt(b"salt").hash(PRIVATE), "a_json": '{"'}
    sink.apply(batch(upsert(row, 1, of=VALUES), upsert({**row, "id": 2}, 1, of=VALUES)))
    sink.apply(replace(batch(upsert(row, 1, of=VALUES)), overwrite_equal_tags=True))
    sink.apply(batch(delete({"id": 2}, 2, of=VALUES)))
    assert [(dict(stored.key), dict(stored.row)) for stored in sink.scan(VALUES)] == [({"id": 1}, seen)]
    wider = replace(VALUES, columns=(*VALUES.columns, column("added")))
    sink = opened()
    left = sink.prepare([wider], added={VALUES.name: {"added": "x"}})
    carried(sink, wider, left)
    expected = {**seen, "added": "x"}
    assert [dict(stored.row) for stored in opened().rows(wider, [{"id": 1}, {"id": 2}])] == [expected]
    everything = destination.everything(name)
    assert PRIVATE not in everything
    assert Salt(b"salt").hash(PRIVATE) in everything


def test_a_scan_may_be_left_early(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(*(item(n, "x" * 1000, 1) for n in range(3000))))
    rows = sink.scan(ITEMS)
    assert next(rows).tag == tag(1)
    rows.close()  # type: ignore[attr-defined]
    assert counts(sink.apply(batch(item(1, "after", 2)))) == (1, 0, 0)
