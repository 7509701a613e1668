"""Settings of the capture loop, and of the first copy before it."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field

from cdc.settings import Settings

SLOWEST_COMMIT_MS: Final = 250


class CaptureSettings(Settings):
    """How much one Kafka transaction takes. The defaults favour latency at low load and size under a backlog."""

    batch_rows: Annotated[int, Field(ge=1)] = Field(
        default=20_000, description="events after which a batch is committed"
    )
    batch_bytes: Annotated[int, Field(ge=1024)] = Field(default=16 * 1024 * 1024, description="bytes of values, same")
    commit_interval_ms: Annotated[int, Field(ge=1, le=SLOWEST_COMMIT_MS)] = Field(
        default=80,
        description="least time between two commits under steady traffic; 10 shows changes sooner, at more processor"
        " time for Kafka and every sink. Slow brokers get fewer commits",
    )
    large_rows: Literal["stop", "reject"] = Field(
        default="stop",
        description="what becomes of a row that is too large for its topic: capture stops, or each sink rejects it",
    )


QUEUE_BYTES: Final = 32 * 1024 * 1024
"""Bytes that wait for the broker; beyond it, reading stops. More only takes memory: a broker has two such batches."""

COPY_WORKERS_MAX: Final = 8
"""Each start after an interruption fences so many, whatever their number was before."""


_BATCH_ROWS_MIN: Final = 1000
_BATCH_BYTES_MIN: Final = 1024 * 1024
"""Smaller batches aren't tried by themselves. A Kafka that doesn't take one of these in a minute takes no copy."""


class SnapshotSettings(Settings):
    """How tables are copied: first before the stream, later in the middle of it."""

    workers: Annotated[int, Field(ge=0, le=COPY_WORKERS_MAX)] = Field(
        default=0, description="processes that copy side by side; 0: capture copies one table after the other"
    )
    range_bytes: Annotated[int, Field(ge=8192)] = Field(
        default=256 * 1024 * 1024,
        description="size of what a worker copies at once of a table; without so much to copy, there are no workers",
    )
    batch_rows: Annotated[int, Field(ge=1)] = Field(
        default=100_000,
        description="rows of the first copy after which they are committed; nobody waits for them as for the stream's,"
        " and a Kafka transaction costs the brokers as much as thousands of rows",
    )
    batch_bytes: Annotated[int, Field(ge=1024)] = Field(default=64 * 1024 * 1024, description="bytes of values, same")
    rows_per_s: Annotated[int, Field(ge=0)] = Field(
        default=0, description="rows that are copied a second at most, by all workers together; 0: no limit"
    )
    chunk_ms: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=50, description="copies beside the stream take chunks for which it waits about so long"
    )

    def with_smaller_batches(self) -> Self:
        """The same with half as many rows and bytes in a batch, down to some that are never too many."""
        rows = min(self.batch_rows, max(self.batch_rows // 2, _BATCH_ROWS_MIN))
        size = min(self.batch_bytes, max(self.batch_bytes // 2, _BATCH_BYTES_MIN))
        return self.model_copy(update={"batch_rows": rows, "batch_bytes": size})
