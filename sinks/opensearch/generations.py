"""The generations of an OpenSearch sink: those that have indexes. Aliases point to the live one."""

import contextlib
import time
from collections.abc import Collection, Mapping

import orjson

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from sinks.capabilities.bulk_load import BulkLoad
from sinks.capabilities.identities import TableIdentities
from sinks.contract import NOTHING_WRITTEN, Generations, Progress, TopicPartition
from sinks.generation_errors import live_generation, loading_generation, missing_generation
from sinks.opensearch.bookkeeping import Held
from sinks.opensearch.coordination import record_id
from sinks.opensearch.indexes import GC_DELETES_S, OpenSearchIndexes
from sinks.opensearch.names import OwnIndex
from sinks.opensearch.shared_versions import markers_before
from sinks.opensearch.writer_aliases import WriterAliases
from sinks.progress_json import dump_progress, load_progress
from sinks.stored_progress import check_stored


class OpenSearchGenerations(Generations, BulkLoad, TableIdentities):
    def __init__(self, indexes: OpenSearchIndexes) -> None:
        self._indexes = indexes
        self._bookkeeping = indexes.bookkeeping
        self._number = indexes.generation
        self._progress_id = f"progress.g{indexes.generation}"
        self._next_removal = 0.0
        self._applied_whole: tuple[int, int] | None = None
        self._known: Progress | None = None
        self._held: Held | None = None  # the progress that this has stored last, in the server's version

    def live(self) -> int | None:
        return self._indexes.live()

    def numbers(self) -> list[int]:
        return sorted({index.generation for index in self._indexes.all_own()})

    def begin_bulk(self) -> None:
        """Has no effect on the live generation: its readers would find no new row until ``end_bulk``."""
        mine = self._mine(self._indexes.undisturbed())
        if not any(index.is_live for index in mine):
            for index in mine:
                self._indexes.begin_bulk(index.name)

    def end_bulk(self) -> None:
        self._bookkeeping.check_format()
        for index in self._indexes.in_bulk():
            self._indexes.end_bulk(index)

    def switch(self) -> None:
        indexes = self._indexes.undisturbed()
        mine = self._mine(indexes)
        if not mine:
            raise missing_generation(self._number)
        if self._indexes.in_bulk():
            raise loading_generation(self._number)
        # Otherwise readers would miss unrefreshed writes until the next refresh.
        self._indexes.refresh(self._indexes.of_generation)
        others = [index for index in indexes if index.is_live and index.generation != self._number]
        self._indexes.move_aliases(
            to=[(index.name, index.alias) for index in mine],
            away_from=[(index.name, index.alias) for index in others],
        )

    def identities(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        indexes = self._indexes.uuids()
        names = {name: self._indexes.index(name) for name in tables}
        store, histories = indexes.get(self._bookkeeping.index, ""), self._indexes.histories()
        return {
            name: " ".join((indexes[index], store, *histories.get(index, ())))
            for name, index in names.items()
            if index in indexes
        }

    def lost(self, known: Mapping[TableName, str]) -> Mapping[TableName, str]:
        now = self.identities(known)
        lost = {}
        for name, before in known.items():
            if name not in now:
                lost[name] = f"index {self._indexes.index(name)!r} was removed"
            elif (what := _what_became(before, now[name])) is not None:
                lost[name] = f"index {self._indexes.index(name)!r} {what}"
        return lost

    def drop(self) -> None:
        mine = self._mine(self._indexes.all_own())
        if any(index.is_live for index in mine):
            raise live_generation(self._number)
        for index in mine:
            self._remove(index)
        self._bookkeeping.remove(self._progress_id)
        for document in self._bookkeeping.documents(record_id(f"g{self._number}.")):
            self._bookkeeping.remove(document)
        self._indexes.targets.clear()

    def load_progress(self) -> Progress | None:
        self._held = None
        source = self._bookkeeping.load(self._progress_id)
        self._known = None if source is None else load_progress(orjson.dumps(source))
        return self._known

    def save_progress(
        self,
        progress: Progress,
        *,
        written: Mapping[TopicPartition, int] = NOTHING_WRITTEN,
        whole: Collection[TableName] | None = None,
    ) -> None:
        """Raises Unavailable when another job stores progress at the same moment."""
        if self._indexes.fences:
            WriterAliases(self._indexes).check(self._indexes.claimed)
        if not self._replace_known(progress):
            self._replace_stored(progress)
        self._known = progress
        settings = self._indexes.settings
        if settings.deletes == "versioned" and time.monotonic() >= self._next_removal:
            self._next_removal = time.monotonic() + GC_DELETES_S
            # A writer that hangs may come late: a marker stays as long as the server remembers other deletions.
            reached = None if progress.joining else (progress.epoch, progress.watermark_lsn)
            removable, self._applied_whole = self._applied_whole, reached
            if removable is not None:
                # Markers are hidden and only use space: if our login may not delete by query, they stay.
                with contextlib.suppress(LockstepError):
                    self._indexes.remove_markers(markers_before(*removable))

    def _replace_known(self, progress: Progress) -> bool:
        """Replace the progress that this has stored last, if it is still there. Returns whether it was.

        One request: the server compares versions, which differ after it was put back or has failed over.
        """
        if self._held is None:
            return False
        check_stored(self._known, self._known, following=progress, destination="opensearch")
        self._held = self._bookkeeping.replaced(self._progress_id, self._held, dump_progress(progress))
        return self._held is not None

    def _replace_stored(self, progress: Progress) -> None:
        """Replace whatever progress is stored. Raises as ``check_stored`` does, and Unavailable."""
        held = self._bookkeeping.held(self._progress_id)
        stored = None if held is None else load_progress(orjson.dumps(held.source))
        check_stored(self._known, stored, following=progress, destination="opensearch")
        self._held = self._bookkeeping.replaced(self._progress_id, held, dump_progress(progress))
        if self._held is None:
            raise Unavailable("another job has just stored its progress in opensearch")

    def _mine(self, indexes: Collection[OwnIndex]) -> list[OwnIndex]:
        return [index for index in indexes if index.generation == self._number]

    def _remove(self, index: OwnIndex) -> None:
        self._indexes.client.call("DELETE", f"/{index.name}", missing_ok=True)


def _what_became(before: str, now: str) -> str | None:
    """What became of an index with this known identity; None if it is the same one. Pure.

    In a cluster that was put back all identities differ, also that of the bookkeeping, which is then as old as the
    rows.
    """
    (index_before, store_before, *shards_before), (index, store, *shards) = (before or now).split(" "), now.split(" ")
    if store != store_before:
        return None
    if index != index_before:
        return "was removed, and another one of its name is there"
    known = dict(shard.split(":") for shard in shards_before)
    for number, history in (shard.split(":") for shard in shards):
        if history and known.get(number, "") not in ("", history):
            return f"was put back in place, or its shard {number} was begun anew without its data"
    return None
