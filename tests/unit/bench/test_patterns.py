"""The figures of a pattern over a stream."""

import pytest

from bench.patterns import Taken, figures_of
from cdc.model.errors import LockstepError


def test_the_start_is_taken_from_what_the_events_took() -> None:
    rate, cpu = figures_of(Taken(100, 10.0, 8.0), Taken(1_000, 12.0, 9.0), per_key=100)
    assert (rate.name, rate.value) == ("100 events of each key", 500)
    assert (cpu.value, cpu.unit) == (1_000, "us/event")


def test_events_that_took_no_time_say_nothing() -> None:
    with pytest.raises(LockstepError, match="too few"):
        figures_of(Taken(100, 10.0, 8.0), Taken(200, 9.9, 9.0), per_key=1)
