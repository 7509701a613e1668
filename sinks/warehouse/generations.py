"""The generations of a warehouse sink. Views show the live one to readers."""

import time
from collections.abc import Collection, Mapping
from typing import Final

from cdc.model.errors import DataLost, LockstepError, Unavailable
from cdc.model.table import TableName
from sinks.capabilities.bulk_load import BulkLoad
from sinks.capabilities.identities import TableIdentities
from sinks.contract import NOTHING_WRITTEN, Generations, Progress, TopicPartition
from sinks.generation_errors import live_generation, loading_generation
from sinks.stored_progress import behind_the_watermark, check_stored, check_written, watermark_tag
from sinks.warehouse.bookkeeping import known_relations
from sinks.warehouse.purged import BLOCKS, IDLE_S, PASS_S, PURGE_S
from sinks.warehouse.tables import WarehouseTables

_CHECK_S: Final = 60.0
"""How often all views are checked although they are unchanged: their tables may have moved to another schema."""


class WarehouseGenerations(Generations, BulkLoad, TableIdentities):
    def __init__(self, tables: WarehouseTables) -> None:
        self._tables = tables
        self._connection = tables.connection
        self._bookkeeping = tables.bookkeeping
        self._definitions = tables.dialect.definitions
        self._number = tables.generation
        self._known: Progress | None = None
        self._timeline: str | None = None
        self._checked: tuple[str | None, int | None] = None, None
        self._check_at = 0.0
        self._purge_at = self._trim_at = 0.0
        self._trimmed_blocks = 0

    def live(self) -> int | None:
        with self._connection.looking():
            if not self._bookkeeping.stored_format():  # a read changes nothing
                return None
            marks, live = self._tables.views.marks(), self._bookkeeping.live()
            if marks is not None and (marks, live) == self._checked and time.monotonic() < self._check_at:
                return live
            # The next prepare creates a missing view again; a view of another generation is somebody's intention.
            for view in self._tables.views.held(known_relations(self._connection)):
                if live is not None and view.generations != {live}:
                    raise LockstepError(
                        f"view {view.name} reads generation {', '.join(map(str, sorted(view.generations)))}, "
                        f"generation {live} was made live",
                        hint="it was replaced by hand; switch to the generation that is meant to be live",
                    )
            # The marks were read before the checks: a change in between is checked the next time.
            self._checked, self._check_at = (marks, live), time.monotonic() + _CHECK_S
        return live

    def numbers(self) -> list[int]:
        with self._connection.looking():
            return self._bookkeeping.generations() if self._bookkeeping.exist() else []

    def begin_bulk(self) -> None:
        """Has no effect on a generation with rows or readers: it keeps one row per key throughout."""
        with self._connection.transaction():
            self._bookkeeping.require()
            live = self._bookkeeping.live(is_held=True)
            is_bulk = self._bookkeeping.is_bulk("for update")
            if is_bulk is None:
                raise self._bookkeeping.missing()
            tables = self._bookkeeping.tables().values()
            if is_bulk or live == self._number or not all(self._tables.is_empty(held.name) for held in tables):
                return
            for held in tables:
                self._definitions.drop_key(held)
            self._tables.drop_indexes(tables)
            self._bookkeeping.set_bulk(True)

    def end_bulk(self) -> None:
        with self._connection.transaction():
            if not self._bookkeeping.exist() or not self._bookkeeping.is_bulk("for update"):
                return
            tables = self._bookkeeping.tables().values()
            self._definitions.add_keys(tables)
            self._tables.keep_indexes(tables)
            self._bookkeeping.set_bulk(False)

    def switch(self) -> None:
        with self._connection.transaction():
            self._bookkeeping.require()
            self._bookkeeping.live(is_held=True)
            tables = self._bookkeeping.tables()
            if not tables:
                raise self._bookkeeping.missing()
            if self._bookkeeping.is_bulk("for share"):
                raise loading_generation(self._number)
            self._tables.expose(tables)
            self._bookkeeping.make_live()

    def identities(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        with self._connection.looking():
            return self._tables.identities.of(tables) if self._bookkeeping.exist() else {}

    def lost(self, known: Mapping[TableName, str]) -> Mapping[TableName, str]:
        with self._connection.looking():
            if self._bookkeeping.exist():
                return self._tables.identities.lost(known)
        return dict.fromkeys(known, "the bookkeeping was dropped")

    def drop(self) -> None:
        with self._connection.transaction():
            if not self._bookkeeping.exist():
                return
            if self._bookkeeping.live(is_held=True) == self._number:
                raise live_generation(self._number)
            if self._number in self._bookkeeping.generations():  # otherwise a schema of that name is somebody else's
                self._tables.drop_schema()
            tables = self._bookkeeping.tables()
            self._tables.histories.forget([name for name, held in tables.items() if held.has_history])
            self._bookkeeping.forget_generation()
        self._connection.disconnect()

    def load_progress(self) -> Progress | None:
        with self._connection.looking():
            self._known = self._tables.progress.load_progress() if self._bookkeeping.exist() else None
            self._timeline = self._connection.timeline()
        return self._known

    def save_progress(
        self,
        progress: Progress,
        *,
        written: Mapping[TopicPartition, int] = NOTHING_WRITTEN,
        whole: Collection[TableName] | None = None,
    ) -> None:
        with self._connection.transaction():
            self._bookkeeping.check_fence(self._tables.fence)
            timeline = self._connection.timeline()
            if self._timeline not in (None, timeline):
                # Tasks of this batch may have written to the former server, which may not have replicated that.
                raise DataLost("the warehouse has failed over to another server, or was restored")
            stored = self._tables.progress.load_progress()
            check_stored(self._known, stored, following=progress, destination="the warehouse")
            check_written(written, self._tables.progress.load_offsets() if written else {}, destination="the warehouse")
            self._tables.progress.save_progress(progress)
        self._known, self._timeline = progress, timeline
        if not progress.watermark_lsn or (whole is None and behind_the_watermark(progress)):
            return
        below, now = watermark_tag(progress), time.monotonic()
        if self._tables.purging.purges and now >= self._purge_at:
            self._purge_at = now + (PURGE_S if self._purge(below, whole) else IDLE_S)
        if self._tables.purging.trims_histories and now >= self._trim_at:
            # By the source's clock: this machine's may be wrong, and what is trimmed is gone for good.
            source_ms = min(progress.commit_time_ms, time.time_ns() // 1_000_000)
            self._trim_at = now + (PURGE_S if self._trim(below, whole, now_ms=source_ms) else PASS_S)

    def _purge(self, below: str, whole: Collection[TableName] | None) -> bool:
        """Purge some long-deleted rows, unless a batch is under way. Returns whether there may be more to do."""
        try:
            with self._connection.transaction():
                return not self._bookkeeping.hold_writer(self._tables.fence) or self._tables.purging.purge(below, whole)
        except Unavailable:
            return True

    def _trim(self, below: str, whole: Collection[TableName] | None, *, now_ms: int) -> bool:
        """The same for versions that histories no longer need."""
        try:
            with self._connection.transaction():
                if not self._bookkeeping.hold_writer(self._tables.fence):
                    return True
                has_more = self._tables.purging.trim_histories(below, whole, self._trimmed_blocks, now_ms=now_ms)
        except Unavailable:
            return True
        self._trimmed_blocks = self._trimmed_blocks + BLOCKS if has_more else 0
        return has_more
