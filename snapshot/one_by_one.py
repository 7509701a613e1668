"""Copies ranges of tables one after the other, by capture itself: it commits the state with each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cdc.capture.published_table import PublishedTable
from cdc.capture.settings import SnapshotSettings
from cdc.model.table import TableName
from cdc.protocol.control_records import CaptureState
from cdc.protocol.copy_ledger import CopiedRange
from cdc.row_rate import RowRate
from snapshot.copy import CopyProgress, Interrupted, Publisher
from snapshot.ledger import CopyLedger, FirstSnapshot, condition
from snapshot.part_copy import PartReader, copy_part
from snapshot.ranges import Part
from snapshot.row_events import RowEvents


class OneByOne:
    """Copies the parts of one start. ``hold`` locks what a part is of before its rows are read, and lets go of
    all others."""

    def __init__(
        self,
        *,
        ledger: CopyLedger,
        first: FirstSnapshot | None,
        reader: PartReader,
        hold: Callable[[Part], None],
        publisher: Publisher,
        tables: Mapping[TableName, PublishedTable],
        estimated: Mapping[TableName, int],
        state: CaptureState,
        settings: SnapshotSettings,
        rate: RowRate,
        stopping: Callable[[], bool],
        report: Callable[[CopyProgress], None],
    ) -> None:
        """``first`` is the first snapshot, where this one is a later one."""
        self._ledger = ledger
        self._first = first
        self._reader = reader
        self._hold = hold
        self._publisher = publisher
        self._tables = tables
        self._estimated = estimated
        self._state = state
        self._settings = settings
        self._rate = rate
        self._stopping = stopping
        self._report = report

    def copy(self, parts: Sequence[Part]) -> CaptureState:
        """Copy them, table after table; returns the committed state, with the tables that are complete.

        Some are missing when it was told to stop. Raises what ``hold``, the reader and the publisher raise.
        """
        by_table: dict[TableName, list[Part]] = {}
        for part in parts:
            by_table.setdefault(part.table, []).append(part)
        try:
            for name, its_parts in by_table.items():
                events = self._events(name)
                for part in its_parts:
                    self._hold(part)
                    self._copy(part, events)
                    self._heed()
        except Interrupted:
            pass
        return self._state

    def _events(self, name: TableName) -> RowEvents:
        published = self._tables[name]
        return RowEvents(
            published.encoder,
            published.kernel,
            epoch=self._state.epoch,
            consistent_point=self._ledger.run.point_lsn,
            commit_time_ms=self._state.commit_time_ms,
        )

    def _copy(self, part: Part, events: RowEvents) -> None:
        published = self._tables[part.table]
        ledger, name = self._ledger, part.table

        def commit(rows: int, size: int, done: CopiedRange | None) -> None:
            ledger.add(part, rows=rows, size=size, is_last=done is not None)
            if done is not None and ledger.is_complete(name):
                self._state = replace(self._state, copied={**self._state.copied, name: ledger.rows[name]})
            elif done is not None and not part.only_newer:
                self._publisher.send_beside_state(done.key(), done.to_bytes())
            self._publisher.commit(self._state)
            self._report(ledger.progress(name, self._estimated.get(name, 0), rows=rows, size=size))

        copy_part(
            part,
            published.table,
            run=ledger.run,
            where=condition(part, published.table, self._first),
            reader=self._reader,
            publisher=self._publisher,
            topic=published.topic,
            events=events,
            settings=self._settings,
            rate=self._rate,
            heed=self._heed,
            commit=commit,
        )

    def _heed(self) -> None:
        if self._stopping():
            raise Interrupted
