"""What Spark makes of records of a stream, without a server."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from jobs.query.failures import spark_error
from jobs.streams.frames import side_frame
from jobs.streams.settings import StreamSettings

pytestmark = [pytest.mark.live, pytest.mark.busy]

TAPS = StreamSettings.model_validate(
    {
        "topic": "taps",
        "columns": {"id": "text", "at": "timestamptz", "sent_at": "timestamptz"},
        "time": "at",
        "sent": "sent_at",
        "late": "10 minutes",
    }
)
LAST, FIRST = "+290000-01-01T00:00:00Z", "-290000-01-01T00:00:00Z"


def records(spark: SparkSession, *values: dict[str, Any]) -> DataFrame:
    """A frame as Kafka's source has it, all of it received at one time."""
    received = datetime(2026, 3, 1, 12, tzinfo=UTC)
    rows = [(None, json.dumps(value).encode(), "taps", 0, offset, received) for offset, value in enumerate(values)]
    kinds = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
    return spark.createDataFrame(rows, kinds)


@pytest.mark.soak
def test_times_that_no_clock_has_are_malformed_and_stop_nothing(spark: SparkSession) -> None:
    taps = records(
        spark,
        {"id": "1", "at": "2026-03-01T11:59:00Z", "sent_at": "2026-03-01T12:00:00Z"},
        {"id": "2", "at": "2026-03-01T11:59:00Z", "sent_at": FIRST},
        {"id": "3", "at": LAST, "sent_at": FIRST},
        {"id": "4", "at": FIRST, "sent_at": LAST},
        {"id": "5", "at": LAST, "sent_at": LAST},
    )
    aside = side_frame(taps, "taps", TAPS, generation=1, watermark_ms=None, bytes_max=4096).collect()
    reasons = {found["offset"]: found["reason"] for found in (json.loads(row["value"]) for row in aside)}
    assert reasons == {
        1: "it happened later than 1 hour after it was received",
        2: "its clock is so far off that its time can't be corrected",
        3: "its clock is so far off that its time can't be corrected",
    }


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("cast(id as int)", "CAST_INVALID_INPUT (SQLSTATE 22018)"),
        ("1 div (length(id) - 6)", "DIVIDE_BY_ZERO (SQLSTATE 22012)"),
    ],
)
@pytest.mark.soak
def test_an_expression_that_fails_is_told_without_the_value(
    spark: SparkSession, expression: str, expected: str
) -> None:
    rows = spark.createDataFrame([("secret",)], "id string").selectExpr(expression)
    with pytest.raises(PySparkException) as failed:
        rows.collect()
    told = str(spark_error("search", str(failed.value)))
    assert expected in told
    assert "secret" not in told
