"""Matches of a pattern, found by a search of all events at once, word for word as the pages say it."""

from collections.abc import Sequence
from itertools import combinations

from extensions.streams.executor.pattern_matching import Event, Path, Pattern


def fits(pattern: Pattern, events: Sequence[Event], places: tuple[int, ...]) -> bool:
    """Whether the events at these places are a match."""
    began_us, last = events[places[0]].at_us, len(places) - 1
    for count, (place, stage) in enumerate(zip(places, pattern.stages, strict=True)):
        if not events[place].steps >> stage.step & 1 or events[place].at_us > began_us + pattern.within_us:
            return False
        until = len(events) if count == last else places[count + 1]
        for event in events[place + 1 : until]:
            if event.at_us <= began_us + pattern.within_us and event.steps & stage.without:
                return False
    return True


def searched(pattern: Pattern, events: Sequence[Event]) -> list[Path]:
    """All matches: each begins as early as it can after the one before, and has the earliest events that fit."""
    ordered, found = sorted(events), list[Path]()
    first = 0
    while first < len(ordered):
        rest = range(first + 1, len(ordered))
        ways = ((first, *others) for others in combinations(rest, len(pattern.stages) - 1))
        places = next((way for way in ways if fits(pattern, ordered, way)), None)
        is_taken = found and found[-1][0].at_us == ordered[first].at_us
        if places is None or is_taken:
            first += 1
            continue
        found.append(tuple(ordered[place] for place in places))
        first = places[-1] + 1
    return found
