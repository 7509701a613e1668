"""What is told of conditions that come, stay, get worse, flap and go."""

from dataclasses import replace

from extensions.alerts.due_messages import Entry, Kind, take
from monitor.conditions import Condition, Findings, Key, Severity

_STOPPED = Condition("job-stopped", "cache", Severity.CRITICAL, "stopped", "start it")
_LAG = Condition("lag", "cache", Severity.WARNING, "behind", "look", passes=True)


class _Telling:
    """A book over time, in units of 3 s: 10 until something that may pass counts, 20 until it is over."""

    def __init__(self) -> None:
        self.book: dict[Key, Entry] = {}
        self.ids: set[str] = set()

    def look(self, at: float, *conditions: Condition, unknown: frozenset[str] = frozenset()) -> list[Kind]:
        self.book, messages = take(
            self.book,
            Findings(conditions, unknown),
            pipeline="shop",
            now_ms=int(at * 3000),
        )
        self.ids |= {message.id for message in messages}
        return [message.kind for message in messages]


def test_a_condition_is_told_once_and_once_when_it_is_over() -> None:
    telling = _Telling()
    assert telling.look(1, _STOPPED) == [Kind.OPENED]
    assert [telling.look(at, _STOPPED) for at in range(2, 50)] == [[]] * 48
    assert [telling.look(at) for at in (50, 69.9)] == [[], []]
    assert telling.look(70) == [Kind.CLEARED]
    assert telling.look(71) == []
    assert len(telling.ids) == 1
    assert telling.look(80, _STOPPED) == [Kind.OPENED]
    assert len(telling.ids) == 2


def test_what_may_pass_has_to_hold_first() -> None:
    telling = _Telling()
    assert [telling.look(at, _LAG) for at in (0, 9)] == [[], []]
    assert telling.look(9.5) == []
    assert [telling.look(at, _LAG) for at in (10, 19)] == [[], []], "it was over in between"
    assert telling.look(20, _LAG) == [Kind.OPENED]


def test_a_condition_that_flaps_is_told_once() -> None:
    telling = _Telling()
    reported = [telling.look(at, *([_STOPPED] if at % 15 < 5 else [])) for at in range(600)]
    assert [kind for kinds in reported for kind in kinds] == [Kind.OPENED]


def test_worse_is_told_once_though_it_goes_up_and_down() -> None:
    telling = _Telling()
    worse = replace(_LAG, severity=Severity.CRITICAL, passes=False)
    mild = replace(_LAG, passes=False)
    reported = [telling.look(at, condition) for at, condition in enumerate([mild, worse, mild, worse, mild])]
    assert reported == [[Kind.OPENED], [Kind.WORSE], [], [], []]


def test_what_nobody_can_tell_stays_as_it_was() -> None:
    telling = _Telling()
    telling.look(0, _STOPPED)
    telling.look(10)
    assert [telling.look(at, unknown=frozenset({"cache"})) for at in (15, 500)] == [[], []]
    assert telling.look(501) == [], "it is gone only from now on"
    assert telling.look(521) == [Kind.CLEARED]
