"""What is given to a sink while more is computed, and what stays for who delivers a whole result."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing

import orjson
import pytest

from cdc.model.errors import DataLost, Fenced, LockstepError, StoreRefuses, Unavailable
from cdc.model.event import Position, RowEvent
from cdc.model.table import TableName
from jobs.executor.written_ahead import WrittenAhead
from sinks.contract import Outcome, Rejection
from views.operators import building
from views.operators.building import Item
from views.result_rows import joined

MIB = 1 << 20


def rows(*numbers: int, size: int = 0) -> list[Item]:
    return [
        (number.to_bytes(4, "big"), b"", joined(orjson.dumps({"id": number}), orjson.dumps({"n": "x" * size})))
        for number in numbers
    ]


def ahead(
    write: Callable[[Sequence[Item]], Outcome], meanwhile: Callable[[], None] = lambda: None, *, rows_max: int = 2
) -> closing[WrittenAhead]:
    return closing(WrittenAhead(write, meanwhile, rows_max=rows_max))


class Rows:
    """A sink that refuses some numbers."""

    def __init__(self, *refused: int) -> None:
        self.written: list[Item] = []
        self._refused = rows(*refused)

    def write(self, items: Sequence[Item]) -> Outcome:
        taken = [item for item in items if item not in self._refused]
        self.written += taken
        refused = [
            RowEvent(TableName("views", "v"), {"id": int.from_bytes(item[0], "big")}, "", None, Position("", 0, 0))
            for item in items
            if item not in taken
        ]
        return Outcome(len(taken), 0, [Rejection(event, "too large") for event in refused])


def test_large_rows_are_written_before_memory_has_many() -> None:
    sink = Rows()
    with ahead(sink.write, rows_max=1_000) as writer:
        large = building.PORTION_BYTES // MIB
        for number in range(large + 1):
            writer(rows(number, size=MIB))
        assert len(writer([])) == 1
    assert len(sink.written) == large


def test_rows_that_the_sink_refuses_stay() -> None:
    sink = Rows(2, 5)
    with ahead(sink.write) as writer:
        stays = [item for number in range(9) for item in writer(rows(number))]
        assert sorted(stays + writer([])) == rows(2, 5, 8)
    assert writer.applied == 6


@pytest.mark.parametrize("error", [Unavailable("it is down"), StoreRefuses("it is full"), LockstepError("no right")])
def test_all_that_comes_once_the_sink_cannot_take_something_stays(error: LockstepError) -> None:
    """Who delivers it finds that out. What was computed isn't lost with it."""
    sink, calls = Rows(), 0

    def write(items: Sequence[Item]) -> Outcome:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise error
        return sink.write(items)

    with ahead(write) as writer:
        stays = [item for number in range(20) for item in writer(rows(number))]
        assert sorted(stays + writer([])) == rows(*range(2, 20))
    assert sink.written == rows(0, 1)
    assert calls <= 3


@pytest.mark.parametrize("error", [DataLost("it failed over"), Fenced("another one has taken over")])
def test_it_ends_where_earlier_rows_may_be_gone_or_another_one_writes(error: LockstepError) -> None:
    def write(_: Sequence[Item]) -> Outcome:
        raise error

    with ahead(write) as writer, pytest.raises(type(error)):
        deque(map(writer, map(rows, range(20))), maxlen=0)


def test_who_waits_for_the_sink_is_asked_whether_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.executor.written_ahead.LOOK_S", 0.01)
    goes_on, waited = threading.Event(), 0

    def write(items: Sequence[Item]) -> Outcome:
        goes_on.wait()
        return Outcome(len(items), 0)

    def meanwhile() -> None:
        nonlocal waited
        waited += 1
        if waited == 3:
            goes_on.set()
            raise KeyError("it is to end")

    with ahead(write, meanwhile) as writer, pytest.raises(KeyError):
        deque(map(writer, map(rows, range(20))), maxlen=0)
    assert waited == 3
