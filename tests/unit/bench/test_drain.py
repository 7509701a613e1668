"""Rates from three starting points."""

import math

from bench.drain import Rates, Step, rates


def test_rates_count_from_process_first_event_and_half() -> None:
    steps = [Step(at=12.0, events=200), Step(at=14.0, events=500), Step(at=15.0, events=1000)]
    assert rates(started=5.0, first_event=10.0, steps=steps, rows=1000) == Rates(
        from_first_event=200.0, from_process_start=100.0, second_half=500.0
    )


def test_one_batch_has_no_second_half() -> None:
    measured = rates(started=0.0, first_event=1.0, steps=[Step(at=2.0, events=1000)], rows=1000)
    assert measured.from_first_event == 1000.0
    assert math.isnan(measured.second_half)
