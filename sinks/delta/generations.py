"""The generations of a Delta sink, as stored in the bookkeeping table."""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from cdc.model.append_only import is_append_only
from cdc.model.errors import Unavailable
from cdc.model.table import TableName
from sinks.capabilities.bulk_load import BulkLoad
from sinks.capabilities.identities import TableIdentities
from sinks.contract import NOTHING_WRITTEN, Generations, Progress, TopicPartition
from sinks.delta.bookkeeping import CatalogueState, GenerationState
from sinks.delta.bulk_load import begin_bulk_load, end_bulk_load
from sinks.delta.erasing import purge
from sinks.delta.opened_table import OpenedTable
from sinks.delta.settings import DeltaSettings
from sinks.delta.tables import DeltaTables
from sinks.generation_errors import live_generation, loading_generation
from sinks.progress_json import dump_progress, load_progress
from sinks.stored_progress import behind_the_watermark, check_stored, watermark_tag

PURGE_S: Final = 3600.0
"""The shortest time between two purges: a purge rewrites each file from which it removes a row."""

_COMMITS_LOOKED_AT: Final = 100
"""How many of the newest commits the first look checks: while no job runs, only maintainers commit to the table."""


class DeltaGenerations(Generations, BulkLoad, TableIdentities):
    def __init__(self, tables: DeltaTables, settings: DeltaSettings) -> None:
        self._tables = tables
        self._purge_after_s = settings.purge_deleted_after_days * 86_400 if settings.synced_at else 0.0
        self._purge_at = 0.0
        self._bookkeeping = tables.bookkeeping
        self._number = tables.generation
        self._known: Progress | None = None
        self._looked_at: dict[TableName, int] = {}  # the version up to which there was no RESTORE

    def begin_bulk(self) -> None:
        """Has no effect on a generation with rows or readers: it keeps one row per key throughout."""
        build = self._tables.build(self._bookkeeping.read())
        if not build.is_bulk:
            for name in build.tables:
                opened = self._tables.open(name)
                opened.refresh()
                if opened.has_rows():
                    return

            def begin(state: CatalogueState, live: int | None) -> CatalogueState:
                known = self._tables.build(state)
                return state if live == self._number else state.with_build(self._number, replace(known, is_bulk=True))

            build = self._tables.build(self._bookkeeping.change(begin))
            if not build.is_bulk:
                return
        for name in build.tables:
            self._tables.repeat(self._tables.open(name), partial(begin_bulk_load, self._tables.lake))

    def end_bulk(self) -> None:
        build = self._bookkeeping.read().builds.get(self._number)
        if build is None or not build.is_bulk:
            return
        end = partial(end_bulk_load, self._tables.lake)
        for name in build.tables:
            self._tables.repeat(self._tables.open(name), end)
        self._bookkeeping.change(
            lambda state, _: state.with_build(self._number, replace(self._tables.build(state), is_bulk=False))
        )

    def load_progress(self) -> Progress | None:
        self._known = _progress_of(self._bookkeeping.read().builds.get(self._number))
        return self._known

    def save_progress(
        self,
        progress: Progress,
        *,
        written: Mapping[TopicPartition, int] = NOTHING_WRITTEN,
        whole: Collection[TableName] | None = None,
    ) -> None:
        text = dump_progress(progress).decode()

        def save(state: CatalogueState, _live: int | None) -> CatalogueState:
            build = self._tables.build(state)
            if build.fence != self._tables.fence:
                raise self._tables.fenced_off()
            if build.progress != text:  # otherwise this very call has stored it already
                check_stored(self._known, _progress_of(build), following=progress, destination="the lake")
            return state.with_build(self._number, replace(build, progress=text))

        self._bookkeeping.change(save)
        self._known = progress
        if not self._purge_after_s or not progress.watermark_lsn or time.monotonic() < self._purge_at:
            return
        if whole is None and behind_the_watermark(progress):
            return
        self._purge_at = time.monotonic() + PURGE_S
        self._purge(watermark_tag(progress), whole)

    def _purge(self, below: str, whole: Collection[TableName] | None) -> None:
        """Remove what was deleted long ago. What can't be done now is done later."""
        build = self._tables.build(self._bookkeeping.read())
        before = datetime.now(UTC) - timedelta(seconds=self._purge_after_s)
        for name in sorted(build.tables):
            if whole is not None and name not in whole:
                continue
            opened = self._tables.open(name)
            with suppress(Unavailable):  # the next purge takes it
                self._tables.repeat(opened, lambda opened: self._purge_table(opened, before, below))

    def _purge_table(self, opened: OpenedTable, before: datetime, below: str) -> None:
        if opened.fence != self._tables.fence:
            raise self._tables.fenced_off()
        if not opened.is_bulk and not is_append_only(opened.rows().shape.table):
            purge(self._tables.lake, opened, before=before, below=below)

    def live(self) -> int | None:
        return self._bookkeeping.live()

    def numbers(self) -> list[int]:
        state = self._bookkeeping.read()
        # A generation whose files still have to be deleted can still be dropped.
        return sorted({*state.builds, *(number for number, _ in state.doomed.values())})

    def switch(self) -> None:
        def choose(state: CatalogueState, _live: int | None) -> int:
            if self._tables.build(state).is_bulk:
                raise loading_generation(self._number)
            return self._number

        self._tables.build(self._bookkeeping.read())  # creates nothing for an unknown generation
        self._bookkeeping.expose(choose)

    def identities(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        build = self._bookkeeping.read().builds.get(self._number)
        paths = {} if build is None else build.tables
        known = {name: self._tables.identity(paths[name]) for name in tables if name in paths}
        return {name: identity for name, identity in known.items() if identity is not None}

    def lost(self, known: Mapping[TableName, str]) -> Mapping[TableName, str]:
        now = self.identities(known)
        gone = {name: "its directory was removed" for name in known if name not in now}
        changed = {name: _what_became(known[name], identity) for name, identity in now.items() if known[name]}
        restored = dict.fromkeys(self._restored(known, now), "a RESTORE put it back to an earlier version")
        return restored | gone | {name: what for name, what in changed.items() if what is not None}

    def _restored(self, known: Mapping[TableName, str], now: Mapping[TableName, str]) -> Iterator[TableName]:
        """Tables with a RESTORE since they were known, or since the last look."""
        build = self._bookkeeping.read().builds.get(self._number)
        for name, identity in now.items():
            if build is None or not known[name] or name not in build.tables:
                continue
            version = _version(identity)
            since = self._looked_at.get(name, max(_version(known[name]), version - _COMMITS_LOOKED_AT))
            if self._tables.is_restored(build.tables[name], since):
                yield name
            else:
                self._looked_at[name] = version

    def drop(self) -> None:
        def without(state: CatalogueState, live: int | None) -> CatalogueState:
            if live == self._number:
                raise live_generation(self._number)
            records = {name: text for name, text in state.records.items() if not name.startswith(f"g{self._number}.")}
            if self._number in state.builds:
                state = state.without(self._number, state.builds[self._number].tables.keys())
            builds = {number: build for number, build in state.builds.items() if number != self._number}
            return replace(state, builds=builds, records=records)

        self._tables.forget_all()
        if self._bookkeeping.read() == CatalogueState():
            return
        self._bookkeeping.change(without)
        self._delete_doomed()

    def _delete_doomed(self) -> None:
        """Delete the files of this generation's tables that are gone from the bookkeeping table."""
        doomed = {path for path, (number, _) in self._bookkeeping.read().doomed.items() if number == self._number}
        for path in sorted(doomed):
            self._tables.remove(path)
        self._bookkeeping.change(
            lambda state, _: replace(
                state, doomed={path: owner for path, owner in state.doomed.items() if path not in doomed}
            )
        )


def _progress_of(build: GenerationState | None) -> Progress | None:
    return None if build is None or build.progress is None else load_progress(build.progress)


def _version(identity: str) -> int:
    return int(identity.split()[1])


def _what_became(before: str, now: str) -> str | None:
    """What became of a table, whose commits never disappear; None if it is the known one. Pure."""
    (id_before, version_before), (table_id, version) = before.split(), now.split()
    if table_id != id_before:
        return "its directory was removed, and another table is there"
    return "its directory was put back to an earlier moment" if int(version) < int(version_before) else None
