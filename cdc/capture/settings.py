"""Settings of the capture loop and of the first copy."""

from typing import Annotated, Final, Literal

from pydantic import Field

from cdc.settings import Settings

SLOWEST_COMMIT_MS: Final = 250


class CaptureSettings(Settings):
    """How soon a Kafka transaction ends, and what becomes of a row that is too large for one."""

    commit_interval_ms: Annotated[int, Field(ge=1, le=SLOWEST_COMMIT_MS)] = Field(
        default=80,
        description="least time between two commits under steady traffic; 10 shows changes sooner, at more processor"
        " time for Kafka and every sink. Slow brokers get fewer commits",
    )
    large_rows: Literal["stop", "reject"] = Field(
        default="stop",
        description="a row that is too large for its topic stops capture, or each sink rejects it",
    )


COPY_WORKERS_MAX: Final = 8
"""Each start after an interruption fences this many, whatever their number was before."""


class SnapshotSettings(Settings):
    """How tables are copied: first before the stream, later in the middle of it."""

    workers: Annotated[int, Field(ge=0, le=COPY_WORKERS_MAX)] = Field(
        default=0, description="processes that copy side by side; 0: capture copies one table after the other"
    )
    rows_per_s: Annotated[int, Field(ge=0)] = Field(
        default=0, description="rows that are copied a second at most, by all workers together; 0: no limit"
    )
