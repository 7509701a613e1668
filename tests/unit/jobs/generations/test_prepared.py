"""Whoever writes rows beside the job knows in which shapes, and whether they have changed meanwhile."""

from contextlib import suppress
from dataclasses import replace

from jobs.generations.prepared import load_prepared, preparing
from sinks.memory import MemorySink, MemoryStore, open_memory
from tests.builders import column, table

ORDERS = table()
WIDER = table(*ORDERS.columns, column("more"))


def test_the_shapes_are_known_once_they_are_prepared() -> None:
    store = MemoryStore()
    with preparing(MemorySink(store), 1, {ORDERS.name: ORDERS}):
        assert load_prepared(MemorySink(store), 1) is None
    assert load_prepared(MemorySink(store), 1) == {ORDERS.name: ORDERS.schema_id}
    assert load_prepared(MemorySink(store), 2) is None


def test_while_others_are_prepared_none_is_known() -> None:
    opened = open_memory(MemoryStore(), 1)
    with preparing(opened.records, 1, {ORDERS.name: ORDERS}):
        pass
    with preparing(opened.records, 1, {ORDERS.name: WIDER}):
        assert load_prepared(opened.records, 1) is None
    assert load_prepared(opened.records, 1) == {ORDERS.name: WIDER.schema_id}


def test_shapes_that_were_not_prepared_in_the_end_are_unknown() -> None:
    opened = open_memory(MemoryStore(), 1)
    with suppress(KeyError), preparing(opened.records, 1, {ORDERS.name: ORDERS}):
        raise KeyError
    assert load_prepared(opened.records, 1) is None


def test_the_same_shapes_again_disturb_nobody() -> None:
    opened = open_memory(MemoryStore(), 1)
    for _ in range(2):
        with preparing(opened.records, 1, {ORDERS.name: ORDERS, WIDER.name: replace(ORDERS)}):
            before = load_prepared(opened.records, 1)
    assert before == load_prepared(opened.records, 1) == {ORDERS.name: ORDERS.schema_id}
