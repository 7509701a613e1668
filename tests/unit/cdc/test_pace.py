"""cdc.pace, as capture commits by it: slow commits come seldom, quick ones often, and one that isn't like the others
counts for nothing.
"""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from cdc.capture.batch import SLOWEST_S, commit_pace
from cdc.capture.settings import CaptureSettings
from cdc.pace import Pace

QUICKLY = CaptureSettings(commit_interval_ms=10)
FASTEST_S = 0.01
QUICK = st.floats(0.0, FASTEST_S / 2)
ANY = st.floats(0.0, 120.0)
BACK_S = 3.0
"""So long it takes at most from the slowest pace to the fastest, once commits are quick."""


def after(took_s: Iterable[float]) -> Pace:
    pace = commit_pace(QUICKLY)
    for each in took_s:
        pace.took(each)
    return pace


@given(st.lists(ANY))
def test_it_has_a_bound_on_both_sides(took_s: list[float]) -> None:
    assert FASTEST_S <= after(took_s).interval_s <= SLOWEST_S


@given(st.floats(2 * FASTEST_S, SLOWEST_S / 2), st.integers(1, 30))
def test_slow_commits_take_two_thirds_of_the_time_at_most(took_s: float, commits: int) -> None:
    assert after([took_s] * commits).interval_s >= 1.5 * took_s


@given(st.lists(QUICK))
def test_a_quick_broker_gets_commits_as_often_as_possible(took_s: list[float]) -> None:
    assert after(took_s).interval_s == FASTEST_S


@given(st.lists(ANY, max_size=30), st.floats(SLOWEST_S, 120.0))
def test_commits_that_go_on_to_be_slow_bring_the_slowest(before: list[float], slow_s: float) -> None:
    assert after([*before, *[slow_s] * 7]).interval_s == SLOWEST_S


@given(st.lists(ANY, max_size=30), st.lists(QUICK, min_size=30, max_size=30))
def test_quick_commits_bring_the_fastest_back_within_seconds(before: list[float], quick: list[float]) -> None:
    pace, passed_s = after(before), 0.0
    for took_s in quick:
        pace.took(took_s)
        passed_s += pace.interval_s
        if pace.interval_s == FASTEST_S:
            break
    assert pace.interval_s == FASTEST_S
    assert passed_s <= BACK_S


@given(st.lists(QUICK, min_size=7, max_size=20), ANY, st.lists(QUICK, max_size=20))
def test_one_slow_commit_among_quick_ones_changes_nothing(
    before: list[float], slow_s: float, after_it: list[float]
) -> None:
    pace = after(before)
    for took_s in [slow_s, *after_it]:
        pace.took(took_s)
        assert pace.interval_s == FASTEST_S


@given(st.lists(ANY, min_size=1), ANY)
def test_a_slower_commit_never_quickens_it(took_s: list[float], more_s: float) -> None:
    assert after([*took_s[:-1], took_s[-1] + more_s]).interval_s >= after(took_s).interval_s
