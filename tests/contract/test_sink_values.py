"""What every sink promises of values and keys: they come back as they were applied."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import Table, TableName
from sinks.contract import Sink
from tests.builders import batch, column, delete, table, tag, upsert
from tests.contract.destinations import ITEMS, KEYED, Destination
from tests.contract.items import ODD, PLAIN, VALUES, counts, gone, item, rows_of


def _seldom(*values: Any) -> Any:
    """Other cases show the same except for the type."""
    return pytest.param(*values, marks=pytest.mark.soak)


def test_every_value_comes_back_as_it_was_applied(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, VALUES)
    rows = [PLAIN, *({**PLAIN, "id": number, **odd} for number, odd in enumerate(ODD, 2))]
    outcome = sink.apply(batch(*(upsert(row, 1, of=VALUES) for row in rows)))
    assert [(rejection.reason, rejection.event.key) for rejection in outcome.rejections] == []
    stored_rows = {stored.key["id"]: stored for stored in sink.scan(VALUES)}
    for row in rows:
        stored = stored_rows.pop(row["id"])
        assert (dict(stored.row), stored.tag) == (row, tag(1))
        assert repr(stored.row["a_float"]) == repr(row["a_float"])  # -0.0 equals 0.0
    assert stored_rows == {}


def test_odd_keys_stay_apart(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, KEYED)
    parts = ["a", "a:b", "b", ":", "/", "a/b", '"', "'", "a,b", "%3A", "ü", "🙂", "", " ", "*", "[x]", "\n", "x" * 600]
    rows: list[dict[str, JsonValue]] = [
        {"a": first, "b": other, "note": f"{first}|{other}"} for first in parts for other in parts
    ]
    assert counts(sink.apply(batch(*(upsert(row, 1, of=KEYED) for row in rows)))) == (len(rows), 0, 0)
    stored_rows = sorted(
        (str(stored.key["b"]), str(stored.key["a"]), str(stored.row["note"])) for stored in sink.scan(KEYED)
    )
    assert stored_rows == sorted((str(row["b"]), str(row["a"]), str(row["note"])) for row in rows)
    assert next(list(stored.key) for stored in sink.scan(KEYED)) == ["b", "a"]


def test_odd_single_keys_stay_apart(destination: Destination, name: str) -> None:
    single = table(column("k"), column("note"), name=TableName("public", "single"), key=("k",))
    sink = destination.sink(name, 1, single)
    long = "x" * 600
    keys = ["", "a", "a:b", "a/b", "42", "sha256:", long, long + "y", "ü", '"', "[1]", "%", ".", "..", "_x"]
    sink.apply(batch(*(upsert({"k": key, "note": f"note {key}"}, 1, of=single) for key in keys)))
    assert {stored.key["k"]: stored.row["note"] for stored in sink.scan(single)} == {k: f"note {k}" for k in keys}
    sink.apply(batch(*(delete({"k": key}, 2, of=single) for key in keys)))
    assert rows_of(sink, single) == {}


@pytest.mark.parametrize(
    ("of", "before", "after"),
    [
        (column("k", "numeric"), "1.0", "1.00"),
        (column("k", "float8"), 0, -0.0),
        _seldom(column("k", "interval"), "1 day", "24:00:00"),
        _seldom(column("k", "numeric", is_array=True), ["1.0"], ["1.00"]),
    ],
    ids=lambda of: getattr(of, "type_name", ""),
)
def test_a_key_that_is_written_differently_is_the_row_of_its_newest_text(
    destination: Destination, name: str, of: Any, before: JsonValue, after: JsonValue
) -> None:
    """To a source, and to some stores, both texts are one value."""
    keyed = table(of, column("note"), name=TableName("public", "keyed"), key=("k",))

    def row(of: JsonValue, number: int) -> RowEvent:
        return upsert({"k": of, "note": str(number)}, number, of=keyed)

    sink = destination.sink(name, 1, keyed)
    sink.apply(batch(row(before, 1)))
    sink.apply(batch(delete({"k": before}, 2, of=keyed), row(after, 3)))
    assert _texts(sink, keyed) == [(repr(after), "3")]
    sink.apply(batch(delete({"k": after}, 4, of=keyed)))
    sink.apply(batch(row(before, 5)))
    assert _texts(sink, keyed) == [(repr(before), "5")]
    # A repair deletes the text that the source lacks, and writes the row, at one tag: in any order, alone or together.
    for number, events in enumerate(([0, 1], [1, 0], [0], [1]), 6):
        pair = [delete({"k": before}, number, of=keyed), row(after, number)]
        sink.apply(batch(*(pair[which] for which in events)))
        for which in {0, 1} - set(events):
            sink.apply(batch(pair[which]))
        assert _texts(sink, keyed) == [(repr(after), str(number))]


def _texts(sink: Sink, of: Table) -> list[tuple[str, JsonValue]]:
    return [(repr(stored.key["k"]), stored.row["note"]) for stored in sink.scan(of)]


def _rows_of_keys(sink: Sink, of: Table, keys: Sequence[Mapping[str, JsonValue]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.key.values()), dict(row.row), row.tag) for row in sink.rows(of, keys))


def test_rows_of_keys_are_the_live_ones_as_of_now(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(*(item(n, f"n{n}", 1) for n in range(5)), gone(7, 1)))
    sink.apply(batch(gone(1, 2), item(2, "newer", 2)))
    keys: list[dict[str, JsonValue]] = [{"id": number} for number in (0, 1, 2, 2, 7, 99)]
    expected = [
        ((0,), {"id": 0, "note": "n0", "number": 1}, tag(1)),
        ((2,), {"id": 2, "note": "newer", "number": 1}, tag(2)),
    ]
    assert _rows_of_keys(sink, ITEMS, keys) == expected
    assert list(sink.rows(ITEMS, [])) == []
    assert list(sink.rows(ITEMS, [{"id": 1}])) == []


def test_a_thousand_rows_are_found_by_their_keys(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(*(item(n, f"n{n}", 1) for n in range(3000))))
    assert len({row.key["id"] for row in sink.rows(ITEMS, [{"id": n} for n in range(1000, 2000)])}) == 1000


def test_planned_scans_show_each_table_s_own_rows_as_of_now(destination: Destination, name: str) -> None:
    single = table(column("k"), column("note"), name=TableName("public", "single"), key=("k",))
    sink = destination.sink(name, 1, ITEMS, KEYED, single)
    odd = [upsert({"a": a, "b": b, "note": a + b}, 1, of=KEYED) for a in ("x", "public.single") for b in (":", "y")]
    sink.apply(batch(item(1, "old", 1), item(2, "gone", 1), *odd, upsert({"k": "x", "note": "x"}, 1, of=single)))
    sink.plan_scans([KEYED, ITEMS])
    assert len(rows_of(sink, KEYED)) == 4
    sink.apply(batch(item(1, "new", 2), gone(2, 2)))
    for _ in range(2):
        assert rows_of(sink, ITEMS) == {"(1,)": "new"}
    assert len(rows_of(sink, KEYED)) == 4
    assert len(rows_of(sink, single)) == 1
    sink.apply(batch(item(3, "later", 3)))
    sink.plan_scans([ITEMS, single])
    assert rows_of(sink, ITEMS) == {"(1,)": "new", "(3,)": "later"}
    assert len(rows_of(sink, single)) == 1


def test_rows_of_keys_have_the_values_that_a_scan_gives(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, VALUES)
    rows = [PLAIN, *({**PLAIN, "id": number, **odd} for number, odd in enumerate(ODD, 2))]
    sink.apply(batch(*(upsert(row, 1, of=VALUES) for row in rows)))
    rows_of_keys = list(sink.rows(VALUES, [{"id": row["id"]} for row in rows]))
    assert sorted(map(repr, rows_of_keys)) == sorted(map(repr, sink.scan(VALUES)))
    assert len(rows_of_keys) == len(rows)


def test_rows_of_odd_keys_are_found(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, KEYED)
    parts = ["a", "a:b", ":", '"', "'", "{a,b}", "%3A", "%s", "\\", "ü", "🙂", "", " ", "NULL", "\n", "x" * 600]
    rows: list[dict[str, JsonValue]] = [{"a": first, "b": other, "note": first} for first in parts for other in parts]
    sink.apply(batch(*(upsert(row, 1, of=KEYED) for row in rows)))
    wanted = rows[::3]
    stored_rows = _rows_of_keys(sink, KEYED, [{"b": row["b"], "a": row["a"]} for row in wanted])
    assert stored_rows == sorted(((row["b"], row["a"]), row, tag(1)) for row in wanted)


@pytest.mark.parametrize(
    ("of", "values"),
    [
        _seldom(column("k", "bool"), [True, False]),
        (column("k", "numeric"), ["1.10", "NaN", "12345678901234567890.12345"]),
        (column("k", "timestamptz"), ["2016-11-04T13:51:30.123456Z", "infinity", "0044-03-15T00:00:00Z BC"]),
        _seldom(column("k", "uuid"), ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
        _seldom(column("k", "bytea"), ["\\x00ff", "\\x"]),
        _seldom(column("k", "float8"), [0.1, "NaN", 1e300]),
        (column("k", "int4", is_array=True), [[], [1, 2], [[1], [2]], "[0:1]={7,8}"]),
        _seldom(column("k", "text", is_array=True), [["a", None, "NULL", 'q"'], [""]]),
        _seldom(column("k", "text", type_name="mood"), ["so so"]),
    ],
    ids=lambda of: getattr(of, "type_name", ""),
)
def test_rows_are_found_by_keys_of_any_type(
    destination: Destination, name: str, of: Any, values: list[JsonValue]
) -> None:
    keyed = table(of, column("note"), name=TableName("public", "keyed"), key=("k",))
    sink = destination.sink(name, 1, keyed)
    sink.apply(batch(*(upsert({"k": value, "note": str(value)}, 1, of=keyed) for value in values)))
    notes = {str(row.key["k"]): row.row["note"] for row in sink.rows(keyed, [{"k": value} for value in values])}
    assert notes == {str(value): str(value) for value in values}
