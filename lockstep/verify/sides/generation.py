"""Another generation of the same sink. Both follow the log, each at its own pace."""

from collections.abc import Callable, Collection, Iterator, Mapping

from cdc.model.table import Table
from lockstep.verify.canonical import Fingerprint, Key, Row
from lockstep.verify.sides.expected import Expected, Version
from lockstep.verify.sides.sink import SinkSide
from lockstep.verify.waiting import Applied, SyncPoint
from sinks.contract import TopicPartition


class GenerationSide(Expected):
    """``log_ends`` returns where the topics end now: everything this generation holds comes from before."""

    can_be_asked_often = False

    def __init__(
        self, number: int, rows: SinkSide, applied: Applied, log_ends: Callable[[], Mapping[TopicPartition, int]]
    ) -> None:
        self.name = f"generation {number}"
        self._rows = rows
        self._applied = applied
        self._log_ends = log_ends

    def sync_point(self) -> SyncPoint:
        return SyncPoint(offsets=self._log_ends())

    def scan(self, table: Table) -> Iterator[tuple[Key, Fingerprint]]:
        return ((key, copy.fingerprint) for key, copy in self._rows.scan(table))

    def versions(self, table: Table, keys: Collection[Key]) -> dict[Key, Version]:
        self._applied.wait(self.sync_point())
        copies = self._rows.copies(table, keys)
        return {key: Version(first.fingerprint, first.tag) for key, (first, *_) in copies.items()}

    def rows(self, table: Table, keys: Collection[Key]) -> dict[Key, tuple[Version, Row]]:
        # Otherwise, rows of a sink that is ahead of this generation would look like rows that nobody wrote.
        self._applied.wait(self.sync_point())
        return {
            key: (Version(copies[0][0].fingerprint, copies[0][0].tag), copies[0][1])
            for key, copies in self._rows.rows(table, keys).items()
        }
