"""Events of one key, in the order of their time -> the matches of a pattern. Pure.

A pattern is a row of stages, each of which takes one event. A match begins with the earliest possible first event. Each
stage takes the first event with which the match can still be completed. The next match uses only events after the last
one of this match.

An event is processed only after the watermark has passed it, when no earlier event can come any more. So matches depend
neither on the order in which events arrive nor on the batches in which they arrive.

For each event that may begin a match there is an attempt. Of two ways to a stage, the one with the earlier events is
never worse, whatever follows, so an attempt keeps its first way to each stage. For the same reason, a later attempt
never completes before an earlier one that still can.

Attempts share their ways: one event takes all attempts that are before a stage to it at once. These are consecutive, so
the first and the last number describe them. So the cost of an event doesn't depend on the number of attempts.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

import orjson


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """An event, as its pattern needs it. ``at_us`` is its time in microseconds since 1970; ``tie`` orders events of one
    time. ``steps`` has bit 1 << n if it fits the pattern's step n. ``values`` is a text that matches pass on.
    """

    at_us: int
    tie: str
    steps: int
    values: str


@dataclass(frozen=True, slots=True)
class Stage:
    """The event of a match that fits ``step``. No event that fits a step of the bits ``without`` may follow it. This
    holds until the event of the next stage, and after the last stage until the pattern's time is over.
    """

    step: int
    without: int = 0


@dataclass(frozen=True)
class Pattern:
    """What a match must be: one event for each of ``stages``, all at most ``within_us`` after the first. There are at
    least two stages, or one with ``without``. ``within_us`` is in microseconds and greater than 0.
    """

    stages: tuple[Stage, ...]
    within_us: int

    @cached_property
    def waits(self) -> bool:
        """Whether a match is known only once its time is over, because something must not follow."""
        return self.stages[-1].without != 0


Path = tuple[Event, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """How attempts got to a stage by this event: all those with numbers ``first`` to ``last`` that are in ``before``.
    ``before`` are their ways to the stage before. It is None if that is the first stage, where each attempt has its own
    event. The number ``last`` is always among the attempts.
    """

    first: int
    last: int
    event: Event
    before: "Ways | None"


Ways = list[Way]
"""The ways to one stage, in the order of the attempts. No attempt has two."""

_last: Callable[[Way], int] = attrgetter("last")


@dataclass(slots=True)
class Attempts:
    """What may become matches. An attempt's number is its position in ``began``, the list of first events. Attempts
    from number ``since`` on may go on from their first event. ``ways`` has the ways to the second stage, the third and
    so on, as far as any attempt has got.
    """

    began: list[Event] = field(default_factory=list)
    since: int = 0
    ways: list[Ways] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.began)


@dataclass(frozen=True, slots=True)
class Kept:
    """What is stored for a key: events that the watermark hasn't passed yet, and attempts."""

    events: tuple[Event, ...] = ()
    attempts: Attempts = field(default_factory=Attempts)

    def next_us(self, pattern: Pattern) -> int | None:
        """There is something to do once the watermark has reached this time, in microseconds. None: never."""
        times = [event.at_us for event in self.events]
        times += [event.at_us + pattern.within_us for event in self.attempts.began[:1]]
        return min(times, default=None)


def advance(pattern: Pattern, kept: Kept, *, until_us: int) -> tuple[list[Path], Kept]:
    """Process everything up to the watermark. Returns the matches that are final now, and what to store. No event of
    this time or earlier may come after that. A match is its events, in the order of the stages. ``kept.attempts`` must
    not be used again.
    """
    matcher = _Matcher(pattern, kept.attempts)
    for event in sorted(event for event in kept.events if event.at_us <= until_us):
        matcher.end_before(event.at_us)
        matcher.take(event)
    # Events of the time at which an attempt ends may have come until now; from now on none can.
    matcher.end_before(until_us + 1)
    events = tuple(event for event in kept.events if event.at_us > until_us)
    return matcher.matches, Kept(events, matcher.kept())


class _Matcher:
    """The attempts of a key while its events are processed."""

    def __init__(self, pattern: Pattern, attempts: Attempts) -> None:
        self.matches: list[Path] = []
        self._pattern = pattern
        self._began, self._since, self._ways = attempts.began, attempts.since, attempts.ways
        self._first = 0
        """The number of the first attempt that isn't over."""
        self._began_us: int | None = None

    def end_before(self, time_us: int) -> None:
        """End attempts whose time is over before this one. They are in the order of their time."""
        pattern, count = self._pattern, len(self._pattern.stages)
        while self._first < len(self._began) and self._began[self._first].at_us + pattern.within_us < time_us:
            ended = self._first
            self._first += 1
            if pattern.waits and self._earliest(count, ended) == ended:
                self._match(self._path(count, ended))

    def take(self, event: Event) -> None:
        """Process the next event. ``end_before`` must have been called with its time."""
        stages = self._pattern.stages
        fits, last = event.steps, len(stages) - 1
        if last and not self._pattern.waits and fits >> stages[last].step & 1:
            number = self._earliest(last, self._first)
            if number is not None:
                self._match((*self._path(last, number), event))
                return  # it isn't also the first event of another match
        # From the last stage on, so that an event takes an attempt only one stage further.
        for place in range(min(last, len(self._ways) + 1), 0, -1):
            if fits & stages[place].without and place <= len(self._ways):
                self._ways[place - 1] = []
            if fits >> stages[place].step & 1:
                self._take_further(place, event)
        if fits & stages[0].without:
            self._since = len(self._began)
        if fits >> stages[0].step & 1 and event.at_us != self._began_us:
            self._began.append(event)

    def _take_further(self, place: int, event: Event) -> None:
        """Take all attempts that are at the stage before, and have no way to this one yet, to this stage."""
        if place > 1:
            before = self._ways[place - 2]
            first, last = self._first, before[-1].last if before else -1
        else:
            before = None
            first, last = max(self._first, self._since), len(self._began) - 1
        if place <= len(self._ways) and self._ways[place - 1]:
            first = max(first, self._ways[place - 1][-1].last + 1)
        if first > last:
            return
        if place > len(self._ways):
            self._ways.append([])
        self._ways[place - 1].append(Way(first, last, event, before))

    def _earliest(self, count: int, number: int) -> int | None:
        """The first attempt from this number on that has ``count`` events; None if there is none."""
        if count == 1:
            number = max(number, self._since)
            return number if number < len(self._began) else None
        ways: Ways | None = self._ways[count - 2] if count - 2 < len(self._ways) else None
        if not ways or ways[-1].last < number:
            return None
        while ways is not None:
            way = ways[bisect_left(ways, number, key=_last)]
            number, ways = max(number, way.first), way.before
        return number

    def _path(self, count: int, number: int) -> Path:
        """The first ``count`` events of an attempt."""
        found = list[Event]()
        ways = self._ways[count - 2] if count > 1 else None
        while ways is not None:
            way = ways[bisect_left(ways, number, key=_last)]
            found.append(way.event)
            ways = way.before
        return (self._began[number], *reversed(found))

    def _match(self, path: Path) -> None:
        """Add a match. The next one has later events, and another beginning, which distinguishes a key's matches."""
        self.matches.append(path)
        self._began_us = path[0].at_us
        while self._first < len(self._began):
            began = self._began[self._first]
            if began > path[-1] and began.at_us != self._began_us:
                return
            self._first += 1

    def kept(self) -> Attempts:
        """What may still become matches, with new numbers."""
        # For each list, the range of numbers that is still needed. Ways outside of it belong to attempts that are over.
        asked = {id(ways): (self._first, len(self._began)) for ways in self._ways}
        levels = list[list[Ways]]()
        for level in reversed(_levels(self._ways)):
            levels.insert(0, [ways for ways in level if id(ways) in asked])
            for ways in levels[0]:
                low, high = asked[id(ways)]
                for way in _between(ways, low, high):
                    first, last = max(way.first, low), min(way.last, high)
                    known_first, known_last = asked.get(id(way.before), (first, last))
                    asked[id(way.before)] = min(first, known_first), max(last, known_last)
        numbers = set(range(max(self._first, self._since), len(self._began)))
        for ways in levels[0] if levels else ():
            low, high = asked[id(ways)]
            for way in _between(ways, low, high):
                numbers.update(range(max(way.first, low), min(way.last, high) + 1))
        ordered = sorted(numbers)
        made: dict[int, Ways | None] = {id(None): None}
        for level in levels:
            for ways in level:
                low, high = asked[id(ways)]
                made[id(ways)] = [
                    Way(
                        bisect_left(ordered, max(way.first, low)),
                        bisect_left(ordered, min(way.last, high)),
                        way.event,
                        made[id(way.before)],
                    )
                    for way in _between(ways, low, high)
                ]
        ways_now = [made[id(ways)] or [] for ways in self._ways]
        while ways_now and not ways_now[-1]:
            ways_now.pop()
        return Attempts([self._began[number] for number in ordered], bisect_left(ordered, self._since), ways_now)


def _between(ways: Ways, low: int, high: int) -> Iterator[Way]:
    """The ways of attempts with these numbers."""
    for place in range(bisect_left(ways, low, key=_last), len(ways)):
        if ways[place].first > high:
            return
        yield ways[place]


def _levels(live: Sequence[Ways]) -> list[list[Ways]]:
    """All lists of ways that these lead to, for each stage from the second one on. That of ``live`` comes first."""
    levels = list[list[Ways]]()
    for ways in reversed(live):
        found = {id(ways): ways}
        for way in (way for each in levels[-1:] for above in each for way in above):
            assert way.before is not None
            found[id(way.before)] = way.before
        levels.append(list(found.values()))
    return levels[::-1]


def to_text(attempts: Attempts) -> tuple[str, int]:
    """Attempts as JSON, with each event and each list of ways once, and the number of events in it."""
    places: dict[Event, int] = {}
    began = [places.setdefault(event, len(places)) for event in attempts.began]
    found = list[list[list[int]]]()
    below = {id(None): 0}
    for level in _levels(attempts.ways):
        found.append(
            [
                [
                    part
                    for way in ways
                    for part in (
                        way.first, way.last, places.setdefault(way.event, len(places)), below[id(way.before)]
                    )
                ]
                for ways in level
            ]
        )  # fmt: skip
        below = {id(ways): place for place, ways in enumerate(level)}
    events = [[event.at_us, event.tie, event.steps, event.values] for event in places]
    return orjson.dumps([events, began, attempts.since, found]).decode(), len(events)


def from_text(text: str) -> Attempts:
    events, began, since, found = orjson.loads(text)
    known = [Event(*event) for event in events]
    live, below = list[Ways](), list[Ways | None]([None])
    for level in found:
        made = [
            [
                Way(first, last, known[event], below[place])
                for first, last, event, place in zip(*[iter(parts)] * 4, strict=True)
            ]
            for parts in level
        ]
        live.append(made[0])
        below = [*made]
    return Attempts([known[place] for place in began], since, live)
