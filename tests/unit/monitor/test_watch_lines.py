"""What is written of a lag that is watched where no terminal is."""

from typing import Any

from monitor.lag import LagReport, SinkFacts, Stage, StageState
from monitor.watch_lines import WatchLines

_SINK = SinkFacts("cache", 1, True, 900, 0, 12, 0)


def _lag(state: StageState = StageState.CURRENT, reason: str | None = None, **changes: Any) -> LagReport:
    end = Stage("WAL end", 1000, 0, 0.0, None, state=StageState.CURRENT)
    hint = None if reason is None else "look at it"
    applied = Stage("applied: cache", 900, 100, 1.5, 12, _SINK, state, reason=reason, hint=hint)
    return LagReport((end, applied), True, 2048, **{"rejected": {}, **changes})


class _Watched:
    """A look each second."""

    def __init__(self) -> None:
        self._lines = WatchLines()
        self._at_s = 0

    def look(self, lag: LagReport) -> list[str]:
        self._at_s += 1
        return self._lines.lines(lag, at_s=100 + self._at_s, now_ms=self._at_s * 1000)


def test_one_line_a_minute_has_the_figures_of_a_pipeline_that_is_in_order() -> None:
    watched = _Watched()
    states = (StageState.CURRENT, StageState.BEHIND)
    lines = [line for second in range(121) for line in watched.look(_lag(states[second % 2]))]
    assert [line[:19] for line in lines] == ["1970-01-01 00:00:01", "1970-01-01 00:01:01", "1970-01-01 00:02:01"]
    figures = "applied: cache current 1.5 s behind, 12 events, 100 B; the slot retains 2.0 KiB of WAL"
    assert lines[0] == f"1970-01-01 00:00:01 UTC {figures}"


def test_a_state_is_said_once_with_its_reason_and_once_when_it_is_over() -> None:
    watched = _Watched()
    watched.look(_lag())
    (line,) = watched.look(_lag(StageState.STALLED, "the store hangs for 5 s"))
    assert line == "1970-01-01 00:00:02 UTC applied: cache: stalled: the store hangs for 5 s; look at it"
    assert watched.look(_lag(StageState.STALLED, "the store hangs for 6 s")) == []
    (over,) = watched.look(_lag(StageState.BEHIND))
    assert over.endswith("applied: cache: behind")


def test_what_is_not_in_order_at_the_first_look_is_said() -> None:
    lines = _Watched().look(_lag(StageState.STOPPED, "refused"))
    assert [line.partition(" UTC ")[2][:24] for line in lines] == [
        "applied: cache stopped 1",
        "applied: cache: stopped:",
    ]


def test_what_no_state_says_is_said_too() -> None:
    watched = _Watched()
    watched.look(_lag())
    (opened,) = watched.look(_lag(open_rejections={"cache": 3}, rejected={"cache": 3}))
    assert "cache: 3 rejections open, 3 ever" in opened
    assert watched.look(_lag(open_rejections={"cache": 4}, rejected={"cache": 4})) == []
    (over,) = watched.look(_lag(rejected={"cache": 4}))
    assert over.endswith("over: cache: rejections open")


def test_a_server_that_is_silent_from_the_start_is_named() -> None:
    unknown = Stage("WAL end", None, None, None, None, state=StageState.UNKNOWN, reason="the source at h:1 is silent")
    lines = _Watched().look(LagReport((unknown,), None, None, {}))
    assert [line.partition(" UTC ")[2] for line in lines] == [
        "nothing is known yet",
        "WAL end: unknown: the source at h:1 is silent",
    ]
