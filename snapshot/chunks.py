"""A chunk of a copy that doesn't stop the stream: which of its rows are published, and how large the next one is. Pure.

A chunk is read under a snapshot of its own, after which the WAL's end H is asked for. What the snapshot sees has its
commit records before H. The stream is published up to H, and then the rows, tagged (H, 0). A key that the stream
changed meanwhile is left out, unless the snapshot sees the change: its event is newer than the row.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from cdc.protocol.visibility import SourceSnapshot

FIRST_ROWS: Final = 200
_ROWS_MIN: Final = 50
"""With fewer, a chunk takes as long."""
_ROWS_MAX: Final = 20_000
BYTES_MAX: Final = 4 * 1024 * 1024
"""About how much a chunk takes in memory until the stream has passed it, if it has more than one row."""


class PendingChunk:
    """The events of one table's chunk, by key, until the stream has passed its H.

    A value of None says that the key has no row.
    """

    def __init__(self, topic: str, snapshot: SourceSnapshot, events: Mapping[bytes, bytes | None]) -> None:
        self._topic = topic
        self._snapshot = snapshot
        self._events = dict(events)

    def changed(self, topic: str, keys: Sequence[bytes], *, xid: int) -> None:
        """A transaction of the stream changes these keys, before H.

        Those that the snapshot sees leave the chunk as it is. So a row that is written all the time, or a stream that
        lags behind, doesn't keep a key from being published.
        """
        if topic == self._topic and not self._snapshot.sees(xid):
            for key in keys:
                self._events.pop(key, None)

    @property
    def events(self) -> Mapping[bytes, bytes | None]:
        """What is to be published at H."""
        return self._events


def next_chunk_rows(rows: int, *, took_s: float, target_s: float, row_bytes: int) -> int:
    """How many rows to read at once next time, when ``rows`` of this size took so long."""
    by_time = rows * min(2.0, target_s / max(took_s, 1e-6))
    by_size = BYTES_MAX // max(row_bytes, 1)
    return max(1, min(max(_ROWS_MIN, int(by_time)), _ROWS_MAX, by_size))
