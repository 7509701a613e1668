"""The command line."""

import pytest

from bench.__main__ import PHASES, arguments, chosen_sizes
from bench.sizes import FULL, QUICK


def test_everything_is_measured_in_full_by_default() -> None:
    options = arguments([])
    assert options.only == list(PHASES)
    assert chosen_sizes(options) == FULL


def test_single_sizes_win_over_the_chosen_set() -> None:
    sizes = chosen_sizes(
        arguments(
            [
                "--quick",
                "--rows",
                "5500",
                "--rate",
                "7",
                "--seconds",
                "2",
                "--probes",
                "3",
                "--keys",
                "9",
                "--tables",
                "20",
                "--large-rows",
                "30",
            ]
        )
    )
    assert (sizes.drain_rows, sizes.latency_rate, sizes.latency_s, sizes.sink_probes) == (5000, 7, 2.0, 3)
    assert (sizes.bootstrap_keys, sizes.many_tables, sizes.sink_rate) == (9, 20, QUICK.sink_rate)
    assert sizes.large_rows == 30


def test_the_events_of_a_backlog_are_whole_transactions_of_hot_keys() -> None:
    assert chosen_sizes(arguments(["--events", "25000"])).replay_events == 20_000
    assert chosen_sizes(arguments(["--events", "1"])).replay_events == 10_000


def test_one_phase_can_be_measured_alone() -> None:
    assert arguments(["--only", "replay"]).only == ["replay"]


@pytest.mark.parametrize("words", [["--only", "speed"], ["--only", ","], ["--runs", "0"]])
def test_what_makes_no_sense_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(words)
