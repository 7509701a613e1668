"""sinks.wrappers.retrying"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cdc.model.errors import DataLost, LockstepError, Unavailable
from cdc.model.table import Table
from sinks.contract import Batch, Outcome, Sink, StoredRow
from sinks.memory import MemorySink, MemoryStore, open_memory
from sinks.wrappers.retrying import Retries, Waiting, retrying
from tests.builders import batch, table, upsert


class Flaky(MemorySink):
    """Raises what it is told to before it serves."""

    def __init__(self, *errors: LockstepError) -> None:
        super().__init__(MemoryStore(), 1)
        self.errors = list(errors)
        self.prepare([table()])

    def apply(self, batch: Batch) -> Outcome:
        if self.errors:
            raise self.errors.pop(0)
        return super().apply(batch)


class Clock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def waiting(
    sink: MemorySink, clock: Clock, *, random: float = 0.0, give_up_after_s: float | None = None
) -> tuple[Sink, list[Waiting]]:
    waits: list[Waiting] = []
    retries = Retries(
        sleep=clock.sleep,
        monotonic=lambda: clock.now,
        random=lambda: random,
        on_wait=waits.append,
        give_up_after_s=give_up_after_s,
    )
    return retrying(replace(open_memory(MemoryStore()), sink=sink), retries).sink, waits


EVENT = upsert({"id": 1, "note": "a"}, 1)


def test_it_waits_longer_each_time_and_then_succeeds() -> None:
    clock = Clock()
    sink, waits = waiting(Flaky(*[Unavailable("away", retry_after_s=1)] * 4), clock)
    assert sink.apply(batch(EVENT)).applied == 1
    assert clock.slept == [1, 2, 4, 8]
    assert waits[1] == Waiting("away", attempts=2, wait_s=2, elapsed_s=1)


def test_chance_shortens_a_wait_by_up_to_a_half() -> None:
    clock = Clock()
    sink, _ = waiting(Flaky(Unavailable("away", retry_after_s=4)), clock, random=1.0)
    sink.apply(batch(EVENT))
    assert clock.slept == [2]


def test_it_gives_up_before_a_wait_that_would_end_too_late() -> None:
    clock = Clock()
    sink, _ = waiting(Flaky(*[Unavailable("away", retry_after_s=1)] * 99), clock, give_up_after_s=5)
    with pytest.raises(Unavailable, match="away"):
        sink.apply(batch(EVENT))
    assert clock.slept == [1, 2]


@pytest.mark.parametrize("error", [LockstepError("disk full"), DataLost("disk full of the server before")])
def test_other_errors_pass_at_once(error: LockstepError) -> None:
    """So does one after which the caller has to begin again."""
    clock = Clock()
    sink, waits = waiting(Flaky(error), clock)
    with pytest.raises(type(error), match="disk full"):
        sink.apply(batch(EVENT))
    assert (clock.slept, waits) == ([], [])


def test_rows_that_are_read_are_not_read_again() -> None:
    class Away(MemorySink):
        def scan(self, _: Table) -> Iterator[StoredRow]:
            raise Unavailable("away", retry_after_s=1)

    sink, waits = waiting(Away(MemoryStore(), 1), Clock())
    with pytest.raises(Unavailable):
        sink.scan(table())
    assert waits == []
