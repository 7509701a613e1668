"""How far a job has read, beside how far it has applied. Updated per batch and per long task's report, never per
row."""

import threading
from collections.abc import Iterable

from cdc.protocol.control_records import ProgressRecord
from jobs.generations.read_so_far import ReadSoFar
from jobs.offsets import Offsets
from jobs.query.watermark import Watermark


class ReadMark:
    """A watermark of what was read. Thread-safe, and never waits for a destination."""

    def __init__(self, applied: Offsets, watermark: Watermark, *, has_lsn: bool) -> None:
        """``applied`` and ``watermark`` are those that the job begins with. ``has_lsn`` is False if a table of the
        sink isn't read: then there is no LSN up to which all was read."""
        self._lock = threading.Lock()
        self._read = dict(applied)
        self._watermark = watermark.twin()
        self._has_lsn = has_lsn

    def learn(self, records: Iterable[ProgressRecord], *, now_ms: int) -> None:
        with self._lock:
            for record in records:
                self._watermark.add(record, learned_at_ms=now_ms)
            self._watermark.advance(self._read)

    def reach(self, ends: Offsets) -> None:
        with self._lock:
            for at, end in ends.items():
                self._read[at] = max(end, self._read.get(at, 0))
            self._watermark.advance(self._read)

    def so_far(self) -> ReadSoFar:
        with self._lock:
            records, mark = sum(self._read.values()), self._watermark
            if not self._has_lsn or mark.joining:
                return ReadSoFar(records)
            return ReadSoFar(records, mark.epoch, mark.lsn, mark.commit_time_ms)
