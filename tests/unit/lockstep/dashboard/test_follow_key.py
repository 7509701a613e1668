"""lockstep.dashboard.follow_key: the judgement"""

from typing import Any

import pytest

from lockstep.dashboard.follow_key import Held, judge
from lockstep.dashboard.model import KeyEvent

ROW: dict[str, Any] = {"id": 1}
INSERT = KeyEvent(op="c", tag="01", offset=1, partition=0)
UPDATE = KeyEvent(op="u", tag="02", offset=2, partition=0)
DELETE = KeyEvent(op="d", tag="03", offset=3, partition=0)


@pytest.mark.parametrize(
    ("has_row", "events", "held", "state", "words"),
    [
        (True, [INSERT], Held("cache", "01", ROW, True), "equal", "All is right"),
        (False, [INSERT, DELETE], Held("cache", None, None, True), "equal", "neither the source nor any sink"),
        (True, [INSERT, UPDATE], Held("cache", "01", ROW, False), "older", "an older version"),
        (True, [INSERT], Held("cache", None, None, False), "missing", "lacks the row"),
        (True, [], Held("cache", None, None, False), "missing", "capture hasn't published it"),
        (True, [INSERT], Held("cache", "01", ROW, False), "differs", "other values"),
        (False, [INSERT], Held("cache", "01", ROW, False), "resurrected", "capture hasn't published it yet"),
        (False, [INSERT, DELETE], Held("cache", "03", ROW, False), "resurrected", "the source doesn't have"),
        (False, [INSERT, DELETE], Held("cache", "01", ROW, False), "older", "an older version"),
        (True, [INSERT], Held("cache", None, None, False, "too long"), "rejected", "has rejected the row: too long"),
        (True, [INSERT], Held("cache", "01", ROW, None), "unknown", "only `lockstep verify`"),
        (True, [INSERT], Held("cache", None, None, None, unanswered="it is down"), "unanswered", "it is down"),
        (True, None, Held("cache", None, None, False), "missing", "too long to be read"),
    ],
)
def test_what_a_sink_holds_is_judged(
    has_row: bool, events: list[KeyEvent] | None, held: Held, state: str, words: str
) -> None:
    states, verdict = judge(has_row, events, [held])
    assert states == [state]
    assert words in verdict


def test_where_no_sink_holds_anything_nothing_is_said_to_be_right() -> None:
    states, verdict = judge(True, [INSERT], [])
    assert states == []
    assert verdict.startswith("No sink holds rows")
