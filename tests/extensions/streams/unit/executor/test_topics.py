"""What the tasks of a stream query write to Kafka."""

import json

import orjson
import pytest

from cdc.model.errors import PositionMismatch
from cdc.model.event import Position
from extensions.streams.executor.topics import check_topic_ids, refused_record, side_room
from jobs.executor.result import RejectedEvent


def test_a_topic_that_was_recreated_is_named_with_the_way_out() -> None:
    check_topic_ids("q", {"web.searches": "A"}, {"web.searches": "A"})
    with pytest.raises(PositionMismatch, match=r"topic web\.searches of stream query 'q'") as error:
        check_topic_ids("q", {"web.searches": "A"}, {"web.searches": "B"})
    assert "lockstep streams rebuild q" in (error.value.hint or "")


def refused(key: object, row: object, *, bytes_max: int) -> tuple[dict[str, object], dict[str, object]]:
    event = RejectedEvent(Position("t", 0, 7), orjson.dumps(key), orjson.dumps(row), "1", "an earlier row has this key")
    texts = refused_record(3, event, 2, bytes_max=bytes_max)
    assert sum(len(text.encode()) for text in texts) <= bytes_max
    return json.loads(texts[0]), json.loads(texts[1])


def test_a_row_that_was_refused_is_kept_with_its_key() -> None:
    key, value = refused({"id": 1}, {"id": 1, "name": "a"}, bytes_max=4096)
    assert key == {"batch": 3, "row": 7, "key": {"id": 1}}
    assert value == {
        "kind": "refused", "generation": 2, "reason": "an earlier row has this key", "batch": 3, "key": {"id": 1},
        "row": {"id": 1, "name": "a"},
    }  # fmt: skip


@pytest.mark.parametrize("text", ["x" * 50_000, "\1" * 50_000, "\U0001f600" * 50_000, '"' * 50_000])
def test_of_a_row_that_is_too_long_for_the_side_topic_what_fits_is_kept(text: str) -> None:
    key, value = refused({"id": text}, {"id": text, "name": "a"}, bytes_max=4096)
    assert key.keys() == {"batch", "row", "key_sha256"}
    assert value["key_bytes"] == len(orjson.dumps({"id": text}))
    assert value["row_bytes"] == len(orjson.dumps({"id": text, "name": "a"}))
    for name, room in zip(("key", "row"), side_room(4096), strict=True):
        kept = str(value[f"{name}_text"])
        assert kept.startswith('{"id":"')
        assert room / 2 < len(orjson.dumps(kept)) <= room


def test_two_long_keys_are_two_records() -> None:
    keys = [refused({"id": "x" * 2_000 + end}, {}, bytes_max=4096)[0] for end in "ab"]
    assert keys[0] != keys[1]
