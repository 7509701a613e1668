import pytest

from cdc.model.errors import Overtaken, PositionMismatch, Unavailable
from extensions.streams.jobs.beginning import lacking_topic
from extensions.streams.jobs.running import stream_error
from extensions.streams.settings import StreamSettings


@pytest.mark.parametrize(
    "text",
    [
        "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log",
        "Multiple streaming queries are concurrently using file:/checkpoints/offsets.",
    ],
)
def test_another_job_with_the_same_checkpoint_has_overtaken_this_one(text: str) -> None:
    assert isinstance(stream_error("sessions", text), Overtaken)


@pytest.mark.parametrize(
    "text",
    [
        "[KAFKA_DATA_LOSS.PARTITIONS_DELETED] ...",
        "[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost SQLSTATE: 22000",
    ],
)
def test_records_that_are_gone_name_the_way_out_of_a_stream_query(text: str) -> None:
    error = stream_error("sessions", text)
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


def test_a_key_with_too_many_events_is_told_with_the_query_and_the_ways_out() -> None:
    told = "[FAILED_EXECUTE_UDF] ... TooManyEvents: one key would have more than 4000 events"
    error = stream_error("failed", told)
    assert error.message == "the pattern of stream query 'failed' would keep more than 4,000 events of one key"
    assert "`per`" in (error.hint or "")


def test_a_partition_that_joins_while_a_query_begins_is_taken_in_at_the_next_try() -> None:
    told = "[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED] Partitions specified for Kafka start offsets don't match"
    assert isinstance(stream_error("sessions", told), Unavailable)
