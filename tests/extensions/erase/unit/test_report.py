"""extensions.erase.report"""

import pytest

from extensions.erase.report import Report
from lockstep.erasing import Place
from sinks.capabilities.erasing import Leftover

ROW = Leftover("the row", has_values=True)
MARK = Leftover("the mark of its deletion", has_values=False, until_ms=86_400_000)
TOMBSTONE = Leftover("a tombstone with the key", has_values=False, until_ms=172_800_000)


@pytest.mark.parametrize(
    ("places", "verdict", "code", "until_ms"),
    [
        ([Place("source"), Place("topic t", found=(ROW,))], "erased", 0, None),
        ([Place("sink cache", left=(MARK,)), Place("topic t", left=(TOMBSTONE,))], "left until", 5, 172_800_000),
        ([Place("sink cache", left=(MARK,)), Place("topic t", left=(ROW,))], "not proven", 1, None),
        ([Place("sink cache", unasked="it doesn't answer")], "not proven", 1, None),
    ],
)
def test_the_exit_code_says_whether_something_is_left_and_whether_it_is_known_until_when(
    places: list[Place], verdict: str, code: int, until_ms: int | None
) -> None:
    report = Report("public.t", places, [])
    assert (report.verdict, report.exit_code, report.until_ms) == (verdict, code, until_ms)
    assert report.to_json()["verdict"] == verdict
    assert Report("public.t", places, [], is_dry_run=True).exit_code == 0


def test_people_read_what_was_removed_what_is_left_until_when_and_what_to_do() -> None:
    places = [
        Place("source"),
        Place("topic shop.public.t", found=(ROW, TOMBSTONE), left=(TOMBSTONE,)),
        Place("sink search, generation 1", left=(ROW,), why="the table is held"),
        Place("sink lake", unasked="it doesn't answer"),
    ]
    text = list(Report("public.t", places, ["a sentence " * 12]).lines())
    assert text[:11] == [
        "erase of a row of public.t",
        "source",
        "  nothing is left",
        "topic shop.public.t",
        "  removed: the row",
        "  LEFT: a tombstone with the key, no other values; until 1970-01-03 00:00:00",
        "    UTC",
        "sink search, generation 1",
        "  LEFT: the row; until an unknown time",
        "  the table is held",
        "sink lake",
    ]
    assert text[11] == "  couldn't be looked at: it doesn't answer"
    assert " ".join(text[-2:]).endswith("Something may be left: see LEFT above, and not all places could be looked at.")
    assert max(map(len, text)) < 80
    unasked = list(Report("public.t", [Place("sink lake", unasked="it doesn't answer")], []).lines())
    assert unasked[-1] == "Something may be left: not all places could be looked at."


def test_up_to_when_a_topic_was_compacted_is_told_where_something_is_left() -> None:
    def told(place: Place) -> Report:
        return Report("public.t", [place], [])

    place = Place("topic t", left=(TOMBSTONE,), compacted_up_to_ms=86_400_000)
    assert "  compacted: all that was there at 1970-01-02 00:00:00 UTC" in list(told(place).lines())
    assert told(place).to_json()["places"][0]["compacted_up_to_ms"] == 86_400_000
    gone = Place("topic t", compacted_up_to_ms=86_400_000)
    assert not any("compacted" in line for line in told(gone).lines())
