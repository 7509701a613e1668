"""The demo's traffic: as much as the machine follows."""

from hypothesis import given
from hypothesis import strategies as st

from extensions.demo.pace import FOLLOWS_S, TrafficPace


def rates(pace: TrafficPace, behind_s: float | None, seconds: int, begin_s: int = 0) -> list[float]:
    """The rate in each of these seconds."""
    seen = []
    for now_s in range(begin_s, begin_s + seconds):
        pace.look(behind_s, now_s=now_s)
        seen.append(pace.rate)
    return seen


def test_it_goes_down_while_a_sink_doesnt_follow_and_up_again_afterwards() -> None:
    pace = TrafficPace(50, now_s=0)
    rates(pace, 0.5, 60)
    falling = rates(pace, FOLLOWS_S + 1, 90, begin_s=60)
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == 1, "never to a standstill: what follows nothing shows nothing"
    assert rates(pace, 0.5, 90, begin_s=150)[-1] == 50


def test_a_rate_that_was_too_much_is_not_tried_again_at_once() -> None:
    pace = TrafficPace(50, now_s=0)
    rates(pace, 0.5, 60)
    assert rates(pace, FOLLOWS_S + 1, 1, begin_s=60) == [40]
    seen = rates(pace, 0.5, 70, begin_s=61)
    assert set(seen[:59]) == {40}
    assert seen[-1] == 50


def test_after_a_fall_all_rates_below_the_one_that_was_too_much_are_tried_at_once() -> None:
    pace = TrafficPace(50, now_s=0)
    rates(pace, 0.5, 60)
    assert rates(pace, FOLLOWS_S + 1, 40, begin_s=60)[-1] == 5
    seen = rates(pace, 0.5, 40, begin_s=100)
    assert seen == sorted(seen)
    assert seen[-1] >= 40


def test_while_a_sink_is_built_anew_there_is_no_more_traffic_than_at_first() -> None:
    pace = TrafficPace(50, now_s=0)
    rates(pace, 0.5, 60)
    assert pace.look(None, now_s=60, is_building=True)
    assert pace.rate == 10
    for now_s in range(61, 120):
        assert not pace.look(0.5, now_s=now_s, is_building=True)
    assert rates(pace, 0.5, 60, begin_s=120)[-1] == 50


@given(st.floats(0.1, 500), st.lists(st.one_of(st.none(), st.floats(0, 100)), max_size=60))
def test_whatever_the_sinks_do_the_rate_stays_within_its_bounds(most: float, seen: list[float | None]) -> None:
    pace = TrafficPace(most, now_s=0)
    for now_s, behind_s in enumerate(seen):
        before = pace.rate
        changed = pace.look(behind_s, now_s=now_s)
        assert changed == (pace.rate != before)
        assert 0 < pace.rate <= most
