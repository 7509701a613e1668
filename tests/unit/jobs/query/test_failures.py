"""What a failed query's message means."""

import pytest

from cdc.model.errors import LockstepError, Unavailable
from jobs.query.failures import spark_error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment", Unavailable),
        ("[CAST_INVALID_INPUT] The value 'search TimeoutException' of ... SQLSTATE: 22018", LockstepError),
        (
            "Job aborted due to stage failure\n at x\nCaused by: Python worker exited unexpectedly (crashed)",
            Unavailable,
        ),
        ("Job aborted due to stage failure\nCaused by: java.io.IOException: Broken pipe", Unavailable),
        ("[INTERNAL_ERROR] something else\n at org.apache.spark.Whatever", LockstepError),
        ("", LockstepError),
    ],
)
def test_a_query_that_failed_says_what_to_do(text: str, expected: type[LockstepError]) -> None:
    error = spark_error("search", text)
    assert type(error) is expected
    assert "search" in error.message
    assert "at org.apache" not in str(error)


_CAST = (
    '[CAST_INVALID_INPUT] The value \'secret\' of the type "STRING" cannot be cast to "INT" because it is malformed.'
    " SQLSTATE: 22018\n== SQL (line 1, position 1) ==\ncast(id as int)"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (_CAST, "failed: Spark says CAST_INVALID_INPUT (SQLSTATE 22018)"),
        (
            "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure:"
            f" Task 0 in stage 3.0 failed 1 times, most recent failure: x.SparkNumberFormatException: {_CAST}",
            "failed: Spark says CAST_INVALID_INPUT (SQLSTATE 22018)",
        ),
        (
            "An error occurred while calling o1.collect.\n: org.apache.spark.SparkArrayIndexOutOfBoundsException:"
            " [INVALID_ARRAY_INDEX] secret: [SECRET] x SQLSTATE: 22003",
            "failed: Spark says INVALID_ARRAY_INDEX (SQLSTATE 22003)",
        ),
        ("java.lang.NumberFormatException: For input string: secret", "failed: Spark has raised java.lang.NumberF"),
        ("secret", "failed: Spark doesn't say why"),
        (
            "Job aborted: java.io.IOException: No space left on device\n\tat secret",
            "failed: java.io.IOException: No space left on device;",
        ),
        ("Traceback:\n  secret\nModuleNotFoundError: No module named 'sinks'\n", "No module named 'sinks'"),
    ],
)
def test_what_is_told_has_no_value_of_a_row(text: str, expected: str) -> None:
    error = spark_error("search", text)
    assert expected in f"{error.message};"
    assert "secret" not in str(error).lower()
    assert ("try_cast" in (error.hint or "")) == ("SQLSTATE 22" in error.message)
