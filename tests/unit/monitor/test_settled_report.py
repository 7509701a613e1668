"""One report of a command that looks once."""

from cdc.model.errors import Unavailable
from monitor.lag import LagReport, Stage, StageState
from monitor.settled_report import settled_report


def _lag(seconds: float | None, **changes: object) -> LagReport:
    stages = (Stage("in Kafka", 8, 8, seconds, None),)
    return LagReport(stages, True, 0, **{"rejected": {}, **changes})  # type: ignore[arg-type]


class Looks:
    """Each look finds the next report, and the last one again and again."""

    def __init__(self, *reports: LagReport) -> None:
        self._left = list(reports)
        self.asked = 0

    def collect(self) -> LagReport:
        self.asked += 1
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]


def test_a_change_that_is_on_its_way_is_looked_at_again() -> None:
    looks = Looks(_lag(9.0), _lag(0.2))
    assert settled_report(looks, sleep=lambda _: None).stages[0].seconds_behind == 0.2
    assert looks.asked == 2


def test_who_is_not_far_behind_is_looked_at_once() -> None:
    for seconds in (None, 0.0, 0.9):
        looks = Looks(_lag(seconds), _lag(0.0))
        assert settled_report(looks, sleep=lambda _: None).stages[0].seconds_behind == seconds
        assert looks.asked == 1


def test_what_takes_a_person_is_told_at_once() -> None:
    for known in ({"unanswered": {"cache": Unavailable("down")}}, {"broken": ("the slot is gone",)}):
        looks = Looks(_lag(9.0, **known), _lag(0.0))
        assert settled_report(looks, sleep=lambda _: None).stages[0].seconds_behind == 9.0


def test_who_stays_behind_is_reported_so() -> None:
    assert settled_report(Looks(_lag(9.0))).stages[0].seconds_behind == 9.0


def test_who_has_not_moved_is_looked_at_until_it_is_known_to_hang() -> None:
    def lag(state: StageState) -> LagReport:
        return LagReport((Stage("in Kafka", 8, 8, 9.0, None, state=state),), True, 0, {})

    looks = Looks(lag(StageState.BEHIND), lag(StageState.BEHIND), lag(StageState.STALLED), lag(StageState.CURRENT))
    assert settled_report(looks, sleep=lambda _: None).stages[0].state is StageState.STALLED
