"""extensions.streams.jobs.posted"""

import json
from dataclasses import replace

import pytest

from extensions.streams.jobs.posted import Posted, going_on, kept_back, posted_document


def document(generation: int, key: bytes = b'{"id":1}', row: bytes = b'{"id":1,"n":2}') -> dict[str, object]:
    found: dict[str, object] = json.loads(
        posted_document(pipeline="shop", query="recent", generation=generation, key=key, row=row)
    )
    return found


def test_a_row_has_the_same_id_in_every_build_and_another_row_has_another_one() -> None:
    first = document(1)
    assert first == {
        "id": first["id"], "pipeline": "shop", "stream_query": "recent", "generation": 1,
        "key": {"id": 1}, "row": {"id": 1, "n": 2},
    }  # fmt: skip
    assert document(2)["id"] == first["id"]
    assert document(1, key=b'{"id":2}')["id"] != first["id"]
    assert str(first["id"]).startswith("shop/recent/")


def test_how_far_rows_are_posted_is_read_as_it_was_written() -> None:
    at = Posted("topic", 7, 3, 2, 1_000, "down")
    assert Posted.parse(at.text()) == at
    assert Posted.parse(None) == Posted()
    assert Posted.parse(replace(at, rejected=4).text()) == replace(at, rejected=4)


KNOWN = Posted("topic", offset=7, posted=9, waiting=2, since_ms=1_000, reason="down")


@pytest.mark.parametrize(
    ("known", "topic_id", "begin", "end", "offset", "waiting", "why"),
    [
        (KNOWN, "other", 0, 9, 0, 9, "removed and made anew"),
        (KNOWN, "other", 0, 3, 0, 3, "removed and made anew"),
        (KNOWN, "topic", 0, 6, 0, 6, "ends before what was posted"),
        (KNOWN, "topic", 0, 0, 0, 0, "ends before what was posted"),
        (KNOWN, "topic", 8, 9, 8, 1, "first records of their topic were deleted"),
        (Posted(), "topic", 2, 3, 2, 1, "first records of their topic were deleted"),
        (KNOWN, "topic", 2, 6, 2, 4, "ends before what was posted"),
        (KNOWN, "other", 2, 6, 2, 4, "removed and made anew"),
    ],
)
def test_rows_that_a_topic_lacks_may_be_lost_and_those_that_it_has_are_posted(
    known: Posted, topic_id: str, begin: int, end: int, offset: int, waiting: int, why: str
) -> None:
    at, lost = going_on(known, topic_id=topic_id, begin=begin, end=end)
    assert why in lost
    assert (at.topic_id, at.offset, at.posted, at.waiting) == (topic_id, offset, known.posted, waiting)
    assert going_on(at, topic_id=topic_id, begin=begin, end=end) == (at, ""), "it is said once"


def test_a_topic_that_is_gone_may_have_had_rows_and_is_told_of_once() -> None:
    at, lost = going_on(KNOWN, topic_id=None, begin=0, end=0)
    assert lost == "their topic is gone"
    assert at == Posted(posted=9)
    assert going_on(at, topic_id=None, begin=0, end=0) == (at, "")
    assert going_on(Posted(), topic_id=None, begin=0, end=0) == (Posted(), ""), "it was begun without a webhook"


def test_what_keeps_rows_back_does_so_since_the_first_time() -> None:
    at = kept_back(Posted("topic", 7), "no answer", now_ms=5)
    assert (at.reason, at.since_ms) == ("no answer", 5)
    at = kept_back(at, "another reason", now_ms=9)
    assert (at.reason, at.since_ms, at.offset) == ("another reason", 5, 7)
