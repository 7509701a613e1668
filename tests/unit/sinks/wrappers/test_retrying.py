"""sinks.wrappers.retrying"""

import pytest

from cdc.model.errors import LockstepError, Unavailable
from sinks.contract import Batch, Outcome
from sinks.memory import MemorySink, MemoryStore
from sinks.wrappers.retrying import RetryingSink, Waiting
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


def retrying(
    sink: MemorySink, clock: Clock, *, random: float = 0.0, give_up_after_s: float | None = None
) -> tuple[RetryingSink, list[Waiting]]:
    waits: list[Waiting] = []
    return RetryingSink(
        sink,
        sleep=clock.sleep,
        monotonic=lambda: clock.now,
        random=lambda: random,
        on_wait=waits.append,
        give_up_after_s=give_up_after_s,
    ), waits


EVENT = upsert({"id": 1, "note": "a"}, 1)


def test_it_waits_longer_each_time_and_then_succeeds() -> None:
    clock = Clock()
    sink, waits = retrying(Flaky(*[Unavailable("away", retry_after_s=1)] * 4), clock)
    assert sink.apply(batch(EVENT)).applied == 1
    assert clock.slept == [1, 2, 4, 8]
    assert waits[1] == Waiting("away", attempts=2, wait_s=2, elapsed_s=1)


def test_a_wait_has_an_upper_bound_even_after_a_long_night() -> None:
    clock = Clock()
    sink, _ = retrying(Flaky(*[Unavailable("away", retry_after_s=1)] * 3000), clock)
    sink.apply(batch(EVENT))
    assert max(clock.slept) == 30


def test_chance_shortens_a_wait_by_up_to_a_half() -> None:
    clock = Clock()
    sink, _ = retrying(Flaky(Unavailable("away", retry_after_s=4)), clock, random=1.0)
    sink.apply(batch(EVENT))
    assert clock.slept == [2]


def test_it_gives_up_before_a_wait_that_would_end_too_late() -> None:
    clock = Clock()
    sink, _ = retrying(Flaky(*[Unavailable("away", retry_after_s=1)] * 99), clock, give_up_after_s=5)
    with pytest.raises(Unavailable, match="away"):
        sink.apply(batch(EVENT))
    assert clock.slept == [1, 2]


def test_other_errors_pass_at_once() -> None:
    clock = Clock()
    sink, waits = retrying(Flaky(LockstepError("disk full")), clock)
    with pytest.raises(LockstepError, match="disk full"):
        sink.apply(batch(EVENT))
    assert (clock.slept, waits) == ([], [])
