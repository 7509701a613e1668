"""Events of one key, in the order of their time -> the matches of a pattern. Pure.

A pattern is a row of stages, each of which takes one event. A match begins with the first event that can be its first,
and takes for each stage the first event with which it can still be completed. The next match has only events that come
after the last one of it.

Nothing is looked at before the watermark has passed it: from then on no event can come that is earlier. So matches
don't depend on the order in which events came, nor on the batches that they came in.

For each event that may begin a match there is an attempt. It has the events of the best way to each of its stages, and
no more: of two ways to a stage the one with the earlier events stays as good as the other whatever follows. For the
same reason an attempt that began later never completes before an earlier one that still can.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import orjson


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """An event, as far as its pattern asks for it.

    ``at_us`` is its time in microseconds since 1970, and ``tie`` orders events of one time. ``steps`` has bit 1 << n
    where the event fits the pattern's step n. ``values`` is a text that matches pass on.
    """

    at_us: int
    tie: str
    steps: int
    values: str


@dataclass(frozen=True, slots=True)
class Stage:
    """The event of a match that fits ``step``. None may follow it that fits a step of the bits ``without``.

    That counts until the event of the next stage. After the last one it counts until the pattern's time is over.
    """

    step: int
    without: int = 0


@dataclass(frozen=True)
class Pattern:
    """What a match has to be: one event for each of ``stages``, all of them no more than ``within_us`` after the first.

    There are two stages at least, or one that something must not follow. ``within_us`` is in microseconds and more
    than 0.
    """

    stages: tuple[Stage, ...]
    within_us: int

    @cached_property
    def waits(self) -> bool:
        """Whether a match is known only once its time is over, since something must not follow."""
        return self.stages[-1].without != 0

    @cached_property
    def safe_from(self) -> int:
        """Attempts that have so many events can't be undone by a later one; more than all stages where all can."""
        undone = [count for count, stage in enumerate(self.stages, 1) if stage.without]
        return max(undone, default=0) + 1


Path = tuple[Event, ...]


@dataclass(slots=True)
class Attempt:
    """What may become a match: for each number of events that it could have by now, which ones."""

    began: Event
    paths: dict[int, Path]


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a key: events that the watermark hasn't passed yet, and attempts, the first one first."""

    events: tuple[Event, ...] = ()
    attempts: tuple[Attempt, ...] = ()

    def next_us(self, pattern: Pattern) -> int | None:
        """When there is something to do: once the watermark, in microseconds, is this or more. None for never."""
        times = [event.at_us for event in self.events]
        times += [attempt.began.at_us + pattern.within_us for attempt in self.attempts[:1]]
        return min(times, default=None)


def advance(pattern: Pattern, kept: Kept, *, until_us: int) -> tuple[list[Path], Kept]:
    """Look at all that is no later than the watermark: the matches that are final now, and what is kept.

    No event of this time or earlier may come after that. A match is its events, in the order of the stages.
    """
    matcher = _Matcher(pattern, kept.attempts)
    for event in sorted(event for event in kept.events if event.at_us <= until_us):
        matcher.end_before(event.at_us)
        matcher.take(event)
    # An event of the time at which an attempt ends may have come until now, and none can from now on.
    matcher.end_before(until_us + 1)
    events = tuple(event for event in kept.events if event.at_us > until_us)
    return matcher.matches, Kept(events, tuple(matcher.attempts))


class _Matcher:
    """The attempts of a key while its events pass by."""

    def __init__(self, pattern: Pattern, attempts: Iterable[Attempt]) -> None:
        self.matches: list[Path] = []
        self.attempts = deque(attempts)
        self._pattern = pattern
        self._began_us: int | None = None

    def end_before(self, time_us: int) -> None:
        """End attempts whose time is over before this one. They are in the order of their time."""
        pattern = self._pattern
        while self.attempts and self.attempts[0].began.at_us + pattern.within_us < time_us:
            ended = self.attempts.popleft()
            if pattern.waits and len(pattern.stages) in ended.paths:
                self._match(ended.paths[len(pattern.stages)])

    def take(self, event: Event) -> None:
        """Look at the next event, with all attempts ended whose time was over before it."""
        pattern, all_stages = self._pattern, len(self._pattern.stages)
        for attempt in self.attempts:
            attempt.paths = _with(pattern, attempt.paths, event)
            if not pattern.waits and all_stages in attempt.paths:
                self._match(attempt.paths[all_stages])
                return  # it isn't the first event of another one
        self.attempts = deque(attempt for attempt in self.attempts if attempt.paths)
        if event.steps >> pattern.stages[0].step & 1 and event.at_us != self._began_us:
            self.attempts.append(Attempt(event, {1: (event,)}))

    def _match(self, path: Path) -> None:
        """The next match has later events only. It begins at another time, by which a key's matches are told apart."""
        self.matches.append(path)
        self._began_us = path[0].at_us
        last = path[-1]
        self.attempts = deque(
            attempt for attempt in self.attempts if attempt.began > last and attempt.began.at_us != self._began_us
        )


def _with(pattern: Pattern, paths: Mapping[int, Path], event: Event) -> dict[int, Path]:
    """The ways that an attempt has after this event."""
    after = {count: path for count, path in paths.items() if not event.steps & pattern.stages[count - 1].without}
    for count, path in paths.items():
        if count < len(pattern.stages) and event.steps >> pattern.stages[count].step & 1:
            after.setdefault(count + 1, (*path, event))
    furthest = max(after, default=0)
    if furthest >= pattern.safe_from:  # shorter ways lead nowhere that this one doesn't
        return {furthest: after[furthest]}
    return after


def to_text(attempts: Sequence[Attempt]) -> str:
    """Attempts as JSON, with each event once."""
    places: dict[Event, int] = {}
    found = [
        [[places.setdefault(event, len(places)) for event in path] for path in attempt.paths.values()]
        for attempt in attempts
    ]
    events = [[event.at_us, event.tie, event.steps, event.values] for event in places]
    return orjson.dumps([events, found]).decode()


def from_text(text: str) -> tuple[Attempt, ...]:
    """The same backwards."""
    events, found = orjson.loads(text)
    known = [Event(*event) for event in events]
    attempts = []
    for ways in found:
        paths = [tuple(known[place] for place in way) for way in ways]
        attempts.append(Attempt(paths[0][0], {len(path): path for path in paths}))
    return tuple(attempts)
