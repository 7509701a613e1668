import json

import orjson
import pytest

from cdc.model.errors import PositionMismatch, Unavailable
from cdc.model.event import Position
from jobs.executor.result import RejectedEvent
from jobs.streams.frames import side_room
from jobs.streams.job import lacking_topic, refused_record, stream_error
from jobs.streams.settings import StreamSettings


def test_records_that_are_gone_name_the_way_out_of_a_stream_query() -> None:
    error = stream_error("sessions", "[KAFKA_DATA_LOSS.PARTITIONS_DELETED] ...")
    assert isinstance(error, PositionMismatch)
    assert "stream query 'sessions'" in error.message
    assert "lockstep streams rebuild sessions" in (error.hint or "")


def test_a_topic_that_is_not_there_is_named_with_its_stream_and_what_to_do() -> None:
    streams = {
        name: StreamSettings.model_validate(
            {"topic": f"web.{name}", "columns": {"at": "timestamptz"}, "time": "at", "late": "1 minute"}
        )
        for name in ("searches", "clicks")
    }
    error = lacking_topic("sessions", streams, {"web.clicks"})
    assert error is not None
    assert error.message == "topic web.searches, which stream query 'sessions' reads as searches, doesn't exist"
    assert error.hint == "create it, or mend streams.searches.topic"
    assert lacking_topic("sessions", streams, {"web.clicks", "web.searches"}) is None


def test_what_passes_by_itself_is_waited_for() -> None:
    assert isinstance(stream_error("sessions", "Python worker exited unexpectedly (crashed)"), Unavailable)


def test_a_partition_that_joins_while_a_query_begins_is_taken_in_at_the_next_try() -> None:
    told = "[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED] Partitions specified for Kafka start offsets don't match"
    assert isinstance(stream_error("sessions", told), Unavailable)


def refused(key: object, row: object, *, bytes_max: int) -> tuple[dict[str, object], dict[str, object]]:
    event = RejectedEvent(Position("t", 0, 7), orjson.dumps(key), orjson.dumps(row), "1", "an earlier row has this key")
    texts = refused_record(3, event, bytes_max=bytes_max)
    assert sum(len(text.encode()) for text in texts) <= bytes_max
    return json.loads(texts[0]), json.loads(texts[1])


def test_a_row_that_was_refused_is_kept_with_its_key() -> None:
    key, value = refused({"id": 1}, {"id": 1, "name": "a"}, bytes_max=4096)
    assert key == {"batch": 3, "row": 7, "key": {"id": 1}}
    assert value == {
        "kind": "refused", "reason": "an earlier row has this key", "batch": 3, "key": {"id": 1},
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
