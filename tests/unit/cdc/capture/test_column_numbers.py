"""The numbers of columns as of the stream, where the catalogue is ahead of it."""

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.capture.column_numbers import column_numbers
from cdc.capture.shape_change import AddedValue, changed_shape
from cdc.model.table import Column
from cdc.protocol.pgoutput import RelationColumn
from tests import wal
from tests.builders import column, table


def columns(text: str) -> tuple[Column, ...]:
    """``id1 a2:int4`` are two columns, the second of another type than text."""
    parts = [part.partition(":") for part in text.split()]
    return tuple(replace(column(name[:-1], kind or "text"), number=int(name[-1])) for name, _, kind in parts)


def described(names: str) -> list[RelationColumn]:
    """The same without numbers, as the stream sends it."""
    parts = [part.partition(":") for part in names.split()]
    return [
        RelationColumn(name, column(name, kind or "text").type_oid, -1, in_identity=name == "id")
        for name, _, kind in parts
    ]


@pytest.mark.parametrize(
    ("known", "stream", "current", "numbers"),
    [
        ("id1 a2", "id a", "id1 a2", (1, 2)),
        ("id1 a2", "id z", "id1 z2", (1, 2)),
        ("id1 a2", "id a b", "id1 a2 b3", (1, 2, 3)),
        # Two names moved on while nobody read: each of the shapes in between.
        ("id1 e2 n3", "id e n", "id1 o2 e3", (1, 2, 3)),
        ("id1 e2 n3", "id o n", "id1 o2 e3", (1, 2, 3)),
        ("id1 e2 n3", "id o e", "id1 o2 e3", (1, 2, 3)),
        ("id1 e2 n3", "id e n w", "id1 o2 e3 w4", (1, 2, 3, 4)),
        ("id1 e2 n3 z4", "id e n", "id1 o2 e3", (1, 2, 3)),
        ("id1 e2 n3 z4", "id e n z", "id1 o2 e3", (1, 2, 3, 4)),
        # Swapped, also by way of a third name.
        ("id1 a2 b3", "id a b", "id1 b2 a3", (1, 2, 3)),
        ("id1 a2 b3", "id x b", "id1 b2 a3", (1, 2, 3)),
        ("id1 a2 b3", "id x a", "id1 b2 a3", (1, 2, 3)),
        # A name that neither side has: it stayed all the time.
        ("id1 a2", "id b", "id1 c2", (1, 2)),
        ("id1 a2", "id b z", "id1 c2 z3", (1, 2, 3)),
        # Dropped and added again, or not yet: that is found too early, never too late.
        ("id1 a2", "id a", "id1 a3", (1, 3)),
        ("id1 a2 b3", "id b", "id1 b2", (1, 2)),
        # Came and went in between.
        ("id1 a2", "id a x", "id1 a2", (1, 2, 0)),
        ("id1 a2", "id x a", "id1 a2 b4", (1, 0, 2)),
        ("id1 a2", "id a d", "id1 a2 d4", (1, 2, 0)),
        ("id1 a2 x3", "id a d", "id1 a2 d4", (1, 2, 4)),
        ("id1 a2", "id a c d", "id1 a2 c3 d5", (1, 2, 3, 0)),
        ("id1 a2", "id a c", "id1 a2 d3 c4", (1, 2, 0)),
        # Another type under the same name.
        ("id1 a2", "id a:int4", "id1 a2:int4", (1, 2)),
        ("id1 a2", "id a:int4 b", "id1 a2:numeric b3", (1, 2, 3)),
        # Only a part of the columns is published.
        ("id1 b3", "id b", "id1 secret2 b3", (1, 3)),
        ("id1 b3", "id b", "id1 secret2 c3", (1, 3)),
        ("id1 b3", "id x", "id1 secret2 c3", (1, 3)),
        ("id1 b3", "id secret", "id1 secret2 b3", (1, 2)),
        # The table is gone, or was made by a version that knew no numbers.
        ("id1 a2", "id a", "", (1, 2)),
        ("id0 a0", "id a", "id1 z2", (1, 0)),
    ],
)
def test_the_number_is_that_of_the_column_as_of_then(
    known: str, stream: str, current: str, numbers: tuple[int, ...]
) -> None:
    assert column_numbers(columns(known), described(stream), columns(current)) == numbers


_NAMES = "abc"
_TYPES = ("text", "text", "int4")


@st.composite
def histories(draw: st.DrawFn) -> Sequence[tuple[Column, ...]]:
    """A table's columns after each of some statements. Columns are renamed, or dropped and added again, not both: what
    ends a name and what begins one could be any two of them then."""
    kinds = st.sampled_from(_TYPES)
    live = [replace(column(name, draw(kinds)), number=2 + index) for index, name in enumerate("ab")]
    newest = 3
    steps = [tuple(live)]
    statements = st.sampled_from(["add", "type", draw(st.sampled_from(["drop", "rename"]))])
    for _ in range(draw(st.integers(2, 7))):
        free = [name for name in _NAMES if name not in {c.name for c in live}]
        what = draw(statements)
        if what == "add" and free:
            newest += 1
            live = [*live, replace(column(draw(st.sampled_from(free)), draw(kinds)), number=newest)]
        elif live and what != "add":
            index = draw(st.integers(0, len(live) - 1))
            one, live = live[index], [*live]
            if what == "drop":
                del live[index]
            elif what == "rename" and free:
                live[index] = replace(one, name=draw(st.sampled_from(free)))
            elif what == "type":
                live[index] = replace(column(one.name, draw(kinds)), number=one.number)
        steps.append(tuple(live))
    return steps


@given(histories(), st.data())
def test_a_column_is_taken_for_another_one_only_where_the_table_is_copied_again(
    steps: Sequence[tuple[Column, ...]], data: st.DataObject
) -> None:
    """Whatever the catalogue is ahead of the stream, and the stream ahead of what was recorded."""
    recorded = data.draw(st.integers(0, len(steps) - 1), "recorded")
    streamed = data.draw(st.integers(recorded, len(steps) - 1), "streamed")
    key = replace(column("id", "int8"), number=1)
    known, as_of_then, current = (
        replace(table(key, *columns), oid=wal.RELATION_ID) for columns in (steps[recorded], steps[streamed], steps[-1])
    )
    adopted, change = changed_shape(
        known,
        wal.relation(as_of_then),
        current=current,
        configured_key=None,
        resolve=lambda column: as_of_then.column(column.name),
        added_value=lambda column: AddedValue(
            b"null" if column.number in {c.number for c in current.columns} else None
        ),
        parse=lambda _: None,
    )
    if not change.rewritten:
        # Of a column that is gone by now, nothing stays that could be wrong.
        lasting = {column.number for column in current.columns}
        pairs = zip(adopted.columns, as_of_then.columns, strict=True)
        assert [pair for pair in pairs if pair[0] != pair[1] and {column.number for column in pair} & lasting] == []


def test_a_dropped_column_of_a_wide_table_isnt_weighed_against_all_others() -> None:
    """Pair by pair, 1,592 columns took seconds and 40 MB for each Relation message."""
    known = tuple(replace(column(f"c{number}", "text"), number=number) for number in range(1, 1593))
    stream = [RelationColumn(each.name, each.type_oid, -1, in_identity=False) for each in known]
    current = known[:800] + known[801:]
    tracemalloc.start()
    try:
        assert column_numbers(known, stream, current) == tuple(range(1, 1593))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2_000_000
