"""Patterns over the events of one key: what a match is, and when it is final."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from extensions.streams.executor.pattern_matching import (
    Event,
    Kept,
    Pattern,
    Stage,
    advance,
    from_text,
    to_text,
)

A, B, C = 0, 1, 2

THEN = Pattern((Stage(A), Stage(B)), 10)
THEN_WITHOUT_BETWEEN = Pattern((Stage(A, without=1 << C), Stage(B)), 10)
THEN_NOTHING = Pattern((Stage(A, without=1 << B),), 10)
THREE_TIMES = Pattern((Stage(A), Stage(A), Stage(A)), 10)
THEN_B_AND_NO_C = Pattern((Stage(A), Stage(B, without=1 << C)), 10)


def events(text: str) -> tuple[Event, ...]:
    """``a1 bc2``: an event of step A at 1, and then one that fits B and C at 2. Two of a time are in this order."""
    found = []
    for place, word in enumerate(text.split()):
        letters, at_us = word.rstrip("0123456789"), word.lstrip("abcx")
        steps = sum(1 << "abc".index(letter) for letter in letters if letter in "abc")
        found.append(Event(int(at_us), f"{place:03}", steps, word))
    return tuple(found)


def matched(pattern: Pattern, text: str, until_us: int = 1_000) -> list[str]:
    matches, _ = advance(pattern, Kept(events(text)), until_us=until_us)
    return [" ".join(event.values for event in match) for match in matches]


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (THEN, "a1 b2", ["a1 b2"]),
        (THEN, "b1 a2", []),
        (THEN, "b2 a1", ["a1 b2"]),
        (THEN, "a1 x2 b3", ["a1 b3"]),
        (THEN, "a1 b11", ["a1 b11"]),
        (THEN, "a1 b12", []),
        (THEN, "a1 a5 b12", ["a5 b12"]),
        (THEN, "a1 a2 b3 b4", ["a1 b3"]),
        (THEN, "a1 b2 a3 b4", ["a1 b2", "a3 b4"]),
        (THEN, "ab1 ab2 ab3 ab4", ["ab1 ab2", "ab3 ab4"]),
        (THEN_WITHOUT_BETWEEN, "a1 c2 b3", []),
        (THEN_WITHOUT_BETWEEN, "c1 a2 b3 c4", ["a2 b3"]),
        (THEN_WITHOUT_BETWEEN, "a1 c2 a3 b4", ["a3 b4"]),
        (THEN_WITHOUT_BETWEEN, "ac1 bc2", ["ac1 bc2"]),
        (THEN_NOTHING, "a1", ["a1"]),
        (THEN_NOTHING, "a1 b11", []),
        (THEN_NOTHING, "a1 b12", ["a1"]),
        (THEN_NOTHING, "a1 a2", ["a1", "a2"]),
        (THREE_TIMES, "a1 a2", []),
        (THREE_TIMES, "a1 a2 a3 a4 a5 a6", ["a1 a2 a3", "a4 a5 a6"]),
        (THREE_TIMES, "a1 a10 a12 a13", ["a10 a12 a13"]),
        (THEN_B_AND_NO_C, "a1 b2", ["a1 b2"]),
        (THEN_B_AND_NO_C, "a1 b2 c3", []),
        (THEN_B_AND_NO_C, "a1 b2 c3 b4", ["a1 b4"]),
        (THEN_B_AND_NO_C, "a1 a2 b3 c12", ["a1 b3"]),
    ],
)
def test_what_a_match_is(pattern: Pattern, text: str, expected: list[str]) -> None:
    assert matched(pattern, text) == expected


def test_no_two_matches_begin_at_the_same_time() -> None:
    """By its key and the time of its first event a match is found again."""
    assert matched(THREE_TIMES, "a1 a1 a1 a1 a2 a2 a2") == ["a1 a1 a1", "a2 a2 a2"]
    assert matched(THEN_NOTHING, "a1 a1") == ["a1"]
    assert matched(THEN_NOTHING, "a1 b1 a1") == ["a1"]


def lines_run(run: Callable[[], object]) -> int:
    """How many lines of Python run: what it costs, on any machine."""
    count = 0

    def trace(_frame: FrameType, kind: str, _argument: object) -> Callable[..., Any]:
        nonlocal count
        count += kind == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (THEN, "a"),
        (THEN_WITHOUT_BETWEEN, "a a c"),
        (Pattern((Stage(A),) * 10 + (Stage(B),), 10_000), "a"),
        (Pattern((Stage(A),) * 10 + (Stage(B, without=1 << C),), 10_000), "a"),
        (Pattern((Stage(A), Stage(A), Stage(B, without=1 << C)), 10_000), "a a b c"),
        (Pattern((Stage(A), Stage(B, without=1 << C), Stage(C), Stage(A, without=1 << B)), 10_000), "a a b a c a"),
        (Pattern((Stage(A, without=1 << B),), 10_000), "a"),
    ],
)
def test_twice_the_events_of_a_key_cost_twice_as_much(pattern: Pattern, text: str) -> None:
    pattern = Pattern(pattern.stages, 10_000)
    words = text.split()
    costs, sizes = [], []
    for count in (200, 400):
        kept = Kept(events(" ".join(f"{words[at % len(words)]}{at}" for at in range(1, count + 1))))
        left = list[Kept]()
        costs.append(lines_run(lambda kept=kept, left=left: left.append(advance(pattern, kept, until_us=1_000)[1])))
        sizes.append(len(to_text(left[0].attempts)[0]))
    assert costs[1] < 2.3 * costs[0]
    assert sizes[1] < 2.5 * sizes[0] + 500


def test_what_is_kept_is_the_same_on_its_way_through_text() -> None:
    _, kept = advance(THEN_B_AND_NO_C, Kept(events("a1 b2 a3 b3 c4 b5")), until_us=5)
    assert kept.attempts
    text, _ = to_text(kept.attempts)
    assert to_text(from_text(text))[0] == text
    assert from_text(text).began == kept.attempts.began
    assert text.count("a1") == 1
