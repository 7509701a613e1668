"""What a failed query's message means."""

import pytest

from cdc.model.errors import LockstepError, PositionMismatch, Unavailable
from jobs.sink_job import spark_error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment", Unavailable),
        ("[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost", PositionMismatch),
        ("[INTERNAL_ERROR] something else\n at org.apache.spark.Whatever", LockstepError),
        ("", LockstepError),
    ],
)
def test_a_query_that_failed_says_what_to_do(text: str, expected: type[LockstepError]) -> None:
    error = spark_error("search", text)
    assert type(error) is expected
    assert "search" in error.message
    assert "at org.apache" not in str(error)
