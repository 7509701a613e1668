"""What a failed query's message means."""

import pytest

from cdc.model.errors import LockstepError, Overtaken, PositionMismatch, Unavailable
from jobs.query.failures import spark_error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment", Unavailable),
        ("[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost", PositionMismatch),
        (
            "Job aborted due to stage failure\n at x\nCaused by: Python worker exited unexpectedly (crashed)",
            Unavailable,
        ),
        ("Job aborted due to stage failure\nCaused by: java.io.IOException: Broken pipe", Unavailable),
        ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log", Overtaken),
        ("Multiple streaming queries are concurrently using file:/checkpoints/offsets.", Overtaken),
        ("[INTERNAL_ERROR] something else\n at org.apache.spark.Whatever", LockstepError),
        ("", LockstepError),
    ],
)
def test_a_query_that_failed_says_what_to_do(text: str, expected: type[LockstepError]) -> None:
    error = spark_error("search", text)
    assert type(error) is expected
    assert "search" in error.message
    assert "at org.apache" not in str(error)
