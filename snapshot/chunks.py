"""A chunk of a copy that doesn't stop the stream: which of its rows are published, and the size of the next one. Pure.

A chunk is read under a snapshot of its own; then H, the WAL's end, is read. What the snapshot sees has its commit
records before H. The stream is published up to H, and then the rows, tagged (H, 0). A key that the stream changed
meanwhile is left out, unless the snapshot sees the change: its event is newer than the row.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from cdc.protocol.visibility import SourceSnapshot

FIRST_ROWS: Final = 200
_ROWS_MIN: Final = 50
"""A chunk with fewer rows takes as long."""
_ROWS_MAX: Final = 20_000
BYTES_MAX: Final = 4 * 1024 * 1024
"""About how much memory a chunk takes until the stream has passed it, if it has more than one row."""


class PendingChunk:
    """The events of one table's chunk, by key, until the stream has passed its H. None: the key has no row."""

    def __init__(self, topic: str, snapshot: SourceSnapshot, events: Mapping[bytes, bytes | None]) -> None:
        self._topic = topic
        self._snapshot = snapshot
        self._events = dict(events)

    def changed(self, topic: str, keys: Sequence[bytes], *, xid: int) -> None:
        """A transaction of the stream changes these keys, before H. If the snapshot sees the transaction, the chunk
        keeps them. So neither a row that is written all the time nor a lagging stream prevents a key from being
        published."""
        if topic == self._topic and not self._snapshot.sees(xid):
            for key in keys:
                self._events.pop(key, None)

    @property
    def events(self) -> Mapping[bytes, bytes | None]:
        """What is to be published at H."""
        return self._events


def next_chunk_rows(rows: int, *, took_s: float, target_s: float, row_bytes: int) -> int:
    """How many rows to read next time, after ``rows`` of this size took so long."""
    by_time = rows * min(2.0, target_s / max(took_s, 1e-6))
    by_size = BYTES_MAX // max(row_bytes, 1)
    return max(1, min(max(_ROWS_MIN, int(by_time)), _ROWS_MAX, by_size))
