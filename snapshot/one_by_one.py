"""Copies ranges of tables one after the other, in capture itself, which commits the state with each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cdc.capture.batch_size import BatchSize
from cdc.capture.published_table import PublishedTable
from cdc.model.table import TableName
from cdc.protocol.control_records import CaptureState
from cdc.protocol.copy_ledger import CopiedRange
from cdc.row_rate import RowRate
from snapshot.copy import CopyProgress, Interrupted, Publisher
from snapshot.ledger import CopyLedger, FirstSnapshot, condition
from snapshot.part_copy import PartCopies, PartReader
from snapshot.ranges import Part
from snapshot.row_events import RowEvents


@dataclass
class OneByOne:
    ledger: CopyLedger
    first: FirstSnapshot | None
    """The first snapshot, if this is a later one."""
    reader: PartReader
    hold: Callable[[Part], None]
    """Locks a part's relation before its rows are read, and unlocks all others."""
    publisher: Publisher
    tables: Mapping[TableName, PublishedTable]
    estimated: Mapping[TableName, int]
    state: CaptureState
    """The committed state, with the complete tables."""
    size: BatchSize
    rate: RowRate
    stopping: Callable[[], bool]
    report: Callable[[CopyProgress], None]

    def __post_init__(self) -> None:
        self._copies = PartCopies(self.ledger.run, self.reader, self.publisher, self.size, self.rate, self._heed)

    def copy(self, parts: Sequence[Part]) -> CaptureState:
        """Copy the parts, table after table; returns the committed state, with the complete tables. Some are missing if
        it was asked to stop. Raises what ``hold``, the reader and the publisher raise."""
        by_table: dict[TableName, list[Part]] = {}
        for part in parts:
            by_table.setdefault(part.table, []).append(part)
        try:
            for name, its_parts in by_table.items():
                events = RowEvents.of(self.tables[name], self.ledger.run.point_lsn, self.state)
                for part in its_parts:
                    self.hold(part)
                    self._copy(part, events)
                    self._heed()
        except Interrupted:
            pass
        return self.state

    def _copy(self, part: Part, events: RowEvents) -> None:
        published = self.tables[part.table]
        ledger, name = self.ledger, part.table

        def commit(rows: int, size: int, done: CopiedRange | None) -> None:
            ledger.add(part, rows=rows, size=size, is_last=done is not None)
            if done is not None and ledger.is_complete(name):
                self.state = replace(self.state, copied={**self.state.copied, name: ledger.rows[name]})
            elif done is not None and not part.only_newer:
                self.publisher.send_beside_state(done.key(), done.to_bytes())
            self.publisher.commit(self.state)
            self.report(ledger.progress(name, self.estimated.get(name, 0), rows=rows, size=size))

        where = condition(part, published.table, self.first)
        self._copies.copy(part, published.table, where, published.topic, events, commit)

    def _heed(self) -> None:
        if self.stopping():
            raise Interrupted
