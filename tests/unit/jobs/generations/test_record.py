"""Records of generations: what they hold, who gets which number, and what a dropped one refuses."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from cdc.model.errors import LockstepError
from jobs.generations.record import (
    Phase,
    Record,
    begin_generation,
    begin_unless_begun,
    check_owner,
    list_generations,
    require_in_use,
    save_record,
)
from sinks.memory import MemorySink, MemoryStore, open_memory
from tests.generations import ORDERS, prepared_store


def _numbers(store: MemoryStore) -> list[int]:
    return [generation.number for generation in list_generations(open_memory(store, 1))]


def _drop(store: MemoryStore, number: int) -> None:
    opened = open_memory(store, number)
    save_record(opened.records, number, Record("shop", {}, Phase.RETIRED))
    opened.generations.drop()


def test_a_number_is_given_once_also_when_its_generation_is_gone() -> None:
    store = prepared_store(1)
    assert begin_generation(open_memory(store, 1), Record("shop", {})) == 2
    MemorySink(store, 2).prepare([ORDERS])
    _drop(store, 2)
    assert _numbers(store) == [1]
    assert begin_generation(open_memory(store, 1), Record("shop", {})) == 3


class _Interrupted(MemorySink):
    """Dies after so many records have been written."""

    def __init__(self, store: MemoryStore, writes: int) -> None:
        super().__init__(store)
        self._writes = writes

    def save(self, name: str, text: str | None, *, fence: int = 0) -> None:
        self._step()
        super().save(name, text, fence=fence)

    def create(self, name: str, text: str) -> bool:
        self._step()
        return super().create(name, text)

    def _step(self) -> None:
        if not self._writes:
            raise InterruptedError
        self._writes -= 1


@pytest.mark.parametrize("writes", range(3))
def test_a_process_that_dies_while_it_takes_a_number_has_it_or_not(writes: int) -> None:
    store = MemoryStore()
    with suppress(InterruptedError):
        begin_generation(replace(open_memory(store), records=_Interrupted(store, writes)), Record("shop", {}))
    assert _numbers(store) == ([1] if writes else [])
    begin_generation(open_memory(store, 1), Record("shop", {}))
    assert _numbers(store) == ([1, 2] if writes else [1])


class _Late(MemorySink):
    """Lets another process act at the last moment before it creates a record, once."""

    def __init__(self, store: MemoryStore, act: Callable[[], object]) -> None:
        super().__init__(store)
        self._act = act

    def create(self, name: str, text: str) -> bool:
        act, self._act = self._act, lambda: None
        act()
        return super().create(name, text)


def test_of_two_that_begin_at_once_one_has_the_number_and_the_other_sees_its_record() -> None:
    store = MemoryStore()
    theirs = Record("shop", {}, Phase.BUILDING)
    late = replace(open_memory(store), records=_Late(store, lambda: begin_generation(open_memory(store), theirs)))
    assert begin_unless_begun(late, Record("shop", {})) is None
    assert [(generation.number, generation.record) for generation in list_generations(late)] == [(1, theirs)]
    late = replace(open_memory(store), records=_Late(store, lambda: begin_generation(open_memory(store), theirs)))
    assert begin_generation(late, Record("shop", {})) == 3


def test_who_is_late_does_not_get_a_number_whose_generation_is_gone_by_now() -> None:
    store = MemoryStore()

    def come_and_go() -> None:
        assert begin_generation(open_memory(store, 1), Record("shop", {})) == 1
        _drop(store, 1)

    late = replace(open_memory(store), records=_Late(store, come_and_go))
    assert begin_unless_begun(late, Record("shop", {})) is None
    assert _numbers(store) == []


def test_another_pipelines_generation_is_refused() -> None:
    with pytest.raises(LockstepError, match="written by pipeline 'other'"):
        check_owner("search", 1, Record("other", {}), "shop")
    check_owner("search", 1, Record("shop", {}), "shop")


def test_a_dropped_generation_is_not_recreated() -> None:
    store = prepared_store(1)
    opened = open_memory(store, 1)
    with pytest.raises(LockstepError, match="has lost its records of generation 1"):
        require_in_use(opened.records, "search", 1)
    save_record(opened.records, 1, Record("shop", {}, Phase.RETIRED))
    with pytest.raises(LockstepError, match="was dropped"):
        require_in_use(opened.records, "search", 1)
    save_record(opened.records, 1, Record("shop", {}))
    require_in_use(opened.records, "search", 1)
