"""The figures of a view in a store, and that every one of the phase has its row in the table."""

from dataclasses import replace

import pytest
from rich.console import Console

from bench.replay import Applied
from bench.report import table
from bench.view_sink import Measured, details_of, figures_of
from bench.view_state import Cost
from bench.view_state import figures_of as figures_of_states

BUILT = Applied(20.0, rows=1_000_000, written=2_000_000, rejected=0, batch_ms=(1,), rate_later=None)
MEASURED = Measured(
    view_ms={"p50": 90.0, "p99": 400.0},
    plain_ms={"p50": 50.0, "p99": 100.0},
    last_timeline_s=[0.2, 0.25, 0.9],
    followers=10_000,
    built=BUILT,
    used={"apply": 25.0},
)


def test_a_view_is_set_beside_a_plain_sink_of_the_same_run() -> None:
    p50, p99, tweet, built = figures_of(MEASURED)
    assert (p50.ratio, p50.passed) == (1.8, True)
    assert (p99.ratio, p99.passed) == (4.0, False)
    assert (tweet.value, tweet.passed) == (250.0, True)
    assert (built.value, built.passed) == (50_000.0, True)


def test_a_building_that_takes_longer_misses_its_target() -> None:
    assert figures_of(replace(MEASURED, built=replace(BUILT, seconds=20.1)))[-1].passed is False


def test_the_details_say_what_was_built_and_what_it_cost() -> None:
    details = details_of(MEASURED)
    assert details["last_timeline_ms"] == [200.0, 250.0, 900.0]
    assert details["building"] == {
        "events": 1_000_000,
        "rows_of_the_result": 2_000_000,
        "seconds": 20.0,
        "cpu_s": {"apply": 25.0},
    }


@pytest.mark.parametrize("count", [1, 3])
def test_every_figure_of_the_phase_has_its_row(count: int) -> None:
    states = [Cost(10**number, {1: 100.0, 50: 10.0}, 1, 1, 5.0) for number in range(1, count + 1)]
    figures = figures_of_states(states) + figures_of(MEASURED)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table(figures))
    lines = captured.get().splitlines()
    for figure in figures:
        assert len([line for line in lines if figure.name in line]) == 1
