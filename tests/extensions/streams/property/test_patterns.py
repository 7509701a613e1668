"""Patterns against a search of all events at once, over every way in which they may come and be cut into batches."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from extensions.streams.executor.pattern_matching import Event, Kept, Path, Pattern, Stage, advance, from_text, to_text
from tests.extensions.streams.pattern_search import searched

STEPS = 4
WITHIN = 6
BEHIND = 5
"""So much earlier than the newest event one may be."""


def final_us(pattern: Pattern, match: Path) -> int:
    return match[0].at_us + pattern.within_us if pattern.waits else match[-1].at_us


stages = st.builds(Stage, st.integers(0, STEPS - 1), st.sampled_from([0, 0, 1, 2, 4, 8, 6]))
several = st.lists(stages, min_size=2, max_size=4).map(lambda found: Pattern(tuple(found), WITHIN))
alone = st.builds(lambda step, bits: Pattern((Stage(step, bits),), WITHIN), st.integers(0, 1), st.integers(1, 15))
times = st.builds(lambda step, count: Pattern((Stage(step),) * count, WITHIN), st.integers(0, 1), st.integers(2, 4))
patterns = several | alone | times
some_events = st.lists(st.tuples(st.integers(0, 12), st.sampled_from([1, 2, 4, 8, 1, 2, 4, 3, 6, 7])), max_size=12)


@given(patterns, some_events, st.data())
def test_matches_are_those_of_all_events_at_once_however_they_came(
    pattern: Pattern, found: list[tuple[int, int]], data: st.DataObject
) -> None:
    events = [Event(at_us, f"{place:02}", steps, str(place)) for place, (at_us, steps) in enumerate(found)]
    delays = data.draw(st.lists(st.integers(0, BEHIND - 1), min_size=len(events), max_size=len(events)))
    # So delayed, none is late: each is later than the newest one before it less BEHIND.
    coming = [
        event
        for _, event in sorted(zip([e.at_us + d for e, d in zip(events, delays, strict=True)], events, strict=True))
    ]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(coming)))) | {0, len(coming)})
    batches = [coming[start:end] for start, end in pairwise(cuts)]

    expected, told, kept, newest_us = searched(pattern, events), list[Path](), Kept(), -BEHIND
    for number, batch in enumerate([*batches, []]):
        watermark_us = 1_000 if number == len(batches) else newest_us - BEHIND
        assert all(event.at_us > newest_us - BEHIND for event in batch)
        kept = Kept((*kept.events, *batch), from_text(to_text(kept.attempts)[0]))
        matches, kept = advance(pattern, kept, until_us=watermark_us)
        told += matches
        assert told == [match for match in expected if final_us(pattern, match) <= watermark_us]
        newest_us = max([newest_us, *(event.at_us for event in batch)])
    assert kept == Kept()


@given(patterns, some_events, st.integers(0, 30))
def test_no_more_is_kept_than_can_matter(pattern: Pattern, found: list[tuple[int, int]], until_us: int) -> None:
    events = [Event(at_us, f"{place:02}", steps, "") for place, (at_us, steps) in enumerate(found)]
    _, kept = advance(pattern, Kept(tuple(events)), until_us=until_us)
    assert all(event.at_us > until_us for event in kept.events)
    assert all(event.at_us + pattern.within_us > until_us for event in kept.attempts.began)
    next_us = kept.next_us(pattern)
    assert next_us is None or next_us > until_us
