"""lockstep.rebuild.build_inputs"""

from dataclasses import replace

import pytest

from cdc.model.errors import LockstepError
from cdc.model.table import Column, Table, TableName
from lockstep.rebuild.build_inputs import (
    BuildInputs,
    check_complete,
    incompatible_change,
    load_inputs,
    recreated_topics,
    save_inputs,
)
from sinks.memory import MemoryStore, open_memory
from tests.builders import column, table


def _numbered(*columns: Column, key: tuple[str, ...] = ("id",), oid: int = 7) -> Table:
    numbered = tuple(replace(each, number=each.number or number) for number, each in enumerate(columns, 1))
    return replace(table(*numbered, key=key), oid=oid)


ORDERS = _numbered(column("id", "int8"), column("note"), column("tags"))
ITEMS = replace(ORDERS, name=TableName("My.Schema", 'odd "name"'))
BEGUN = BuildInputs({ORDERS.name: "a", ITEMS.name: "b"}, {ORDERS.name: ORDERS, ITEMS.name: ITEMS})


def _now(shape: Table) -> BuildInputs:
    return BuildInputs(BEGUN.topic_ids, {**BEGUN.shapes, shape.name: shape})


def test_it_comes_back_as_it_was_saved() -> None:
    records = open_memory(MemoryStore(), 1).records
    assert load_inputs(records, 1) is None
    save_inputs(records, 1, BEGUN)
    assert load_inputs(records, 1) == BEGUN
    assert load_inputs(records, 2) is None


def test_inputs_of_another_format_are_refused_with_the_way_out() -> None:
    records = open_memory(MemoryStore(), 1).records
    records.save("g3.build_inputs", '{"format":0}')

    with pytest.raises(LockstepError, match="another version of Lockstep") as caught:
        load_inputs(records, 3)
    assert "--drop 3" in (caught.value.hint or "")


def test_a_table_without_topic_or_shape_is_not_complete() -> None:
    check_complete(BEGUN, [ORDERS.name, ITEMS.name])
    for lacking in (replace(BEGUN, topic_ids={ITEMS.name: "b"}), replace(BEGUN, shapes={ITEMS.name: ITEMS})):
        check_complete(lacking, [ITEMS.name])
        with pytest.raises(LockstepError, match=f"table {ORDERS.name} isn't in the log"):
            check_complete(lacking, [ORDERS.name, ITEMS.name])


def test_a_topic_that_is_gone_or_another_one_was_recreated_topics() -> None:
    assert recreated_topics(BEGUN, BEGUN) == []
    assert recreated_topics(BEGUN, replace(BEGUN, topic_ids={ORDERS.name: "a", ITEMS.name: "c"})) == [ITEMS.name]
    assert recreated_topics(BEGUN, replace(BEGUN, topic_ids={ITEMS.name: "b"})) == [ORDERS.name]


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (replace(ORDERS, key=("id", "note")), "its key was (id) and is (id, note)"),
        (_numbered(column("id", "int8"), column("text"), column("tags")), "column 'note' was renamed to 'text'"),
        (_numbered(column("id", "int8"), column("tags"), column("note")), "column 'note' was renamed to 'tags'"),
        (_numbered(column("id", "int8"), column("note", "int4"), column("tags")), "column 'note' was text and is int4"),
        (
            _numbered(column("id", "int8"), column("note"), column("tags", is_array=True)),
            "column 'tags' was text and is text[]",
        ),
        (
            _numbered(column("id", "int8"), replace(column("note"), number=9), replace(column("tags"), number=3)),
            "column 'note' was dropped, and another one has its name",
        ),
        (
            _numbered(column("note", "int4"), column("id", "int8"), column("tags"), oid=8),
            "column 'note' was text and is int4",
        ),
    ],
)
def test_what_rows_from_before_do_not_follow_is_a_incompatible_change(after: Table, why: str) -> None:
    assert incompatible_change(BEGUN, _now(after)) == f"table {ORDERS.name}: {why}"


@pytest.mark.parametrize(
    "after",
    [
        ORDERS,
        _numbered(*ORDERS.columns, column("extra", "int4")),
        _numbered(*ORDERS.columns[:2]),
        # Recreated: the same columns under other numbers.
        _numbered(column("note"), column("tags"), column("id", "int8"), oid=8),
        # Recovered: another column has a lost one's number, and all rows come again.
        replace(_numbered(column("id", "int8"), column("memo"), column("tags")), epoch=1),
    ],
)
def test_columns_that_come_and_go_fit(after: Table) -> None:
    assert incompatible_change(BEGUN, _now(after)) is None


def test_a_table_that_left_the_log_is_no_incompatible_change() -> None:
    assert incompatible_change(BEGUN, BuildInputs({}, {})) is None
