"""How much capture sends to Kafka in one transaction. ``cdc.capture.batch`` decides how soon one ends."""

from dataclasses import dataclass
from typing import Final, Self


@dataclass(frozen=True, slots=True)
class BatchSize:
    """The number of events, or bytes of values, after which a Kafka transaction ends."""

    rows: int
    bytes: int

    def halved(self) -> Self:
        """Half of both, down to sizes that are never too large."""
        rows = min(self.rows, max(self.rows // 2, BATCH_ROWS_MIN))
        return type(self)(rows, min(self.bytes, max(self.bytes // 2, _BATCH_BYTES_MIN)))


BATCH_ROWS_MIN: Final = 1000
_BATCH_BYTES_MIN: Final = 1024 * 1024
"""No smaller batches are tried automatically: a Kafka that doesn't accept these in a minute can't take a copy."""

STREAM_BATCH: Final = BatchSize(20_000, 16 * 1024 * 1024)

COPY_BATCH: Final = BatchSize(100_000, 64 * 1024 * 1024)
"""Rows of the first copy aren't awaited like the stream's, and a transaction costs the brokers as much as thousands of
rows."""
