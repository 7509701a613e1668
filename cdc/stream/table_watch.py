"""Watches for table changes that the stream doesn't show: leaving the publication, renames, rewrites, partitions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import psycopg

from cdc.capture.assembler import Assembler
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.finding import Finding
from cdc.model.lsn import Lsn
from cdc.model.printable import toml_text
from cdc.model.table import Table, TableName, sql_identifier
from cdc.pipeline_settings import Pipeline
from cdc.postgres.catalogue import name_of_oid, unpublished_kinds
from cdc.postgres.connection import connection_error
from cdc.postgres.memberships import memberships
from cdc.postgres.slot import wal_end
from cdc.protocol.control_records import CaptureState
from cdc.protocol.membership import Membership, Recorded, left
from cdc.stream.catalogue_shapes import CatalogueShapes
from cdc.stream.preconditions import Preconditions
from cdc.stream.source_checks import not_published
from cdc.stream.table_selection import SelectionChanged, can_join, select_tables, why_left
from cdc.stream.visible_commits import VisibleCommits, created_or_altered


class _Altered(NamedTuple):
    """Columns that were altered: their digest, and the WAL's end when it was first seen."""

    columns: str
    seen_at: Lsn


class TableWatch:
    """Asks the catalogue over one connection, and remembers what it has already reported."""

    def __init__(
        self,
        pipeline: Pipeline,
        sql: psycopg.Connection[Any],
        say: Callable[[str], None],
        *,
        shapes: Mapping[TableName, Table],
        was_published: set[TableName],
    ) -> None:
        """``shapes`` are the tables' shapes in Kafka when the stream began. ``was_published`` are tables known to have
        been published once; newly published ones are added to it."""
        self._pipeline = pipeline
        self._captured = frozenset(pipeline.source.table_names)
        self._named = frozenset(pipeline.source.named)
        self._shapes = shapes
        self._sql = sql
        self._say = say
        self._absent: set[TableName] = set()
        self._was_published = was_published
        self._renamed_to: dict[TableName, TableName] = {}
        self._altered: dict[TableName, _Altered] = {}
        self._only_leaves: dict[TableName, str] = {}
        self._waiting: dict[TableName, str] = {}
        self._keys = pipeline.source.keys
        self._preconditions = Preconditions(pipeline.source)
        self._wrong: dict[TableName, Sequence[Finding]] = {}

    def inspect(
        self,
        state: CaptureState,
        assembler: Assembler | None = None,
        shapes: CatalogueShapes | None = None,
    ) -> CaptureState:
        """Compare tables and publication with what was copied; tables that differ are to be copied again.

        ``cdc.protocol.membership`` lists what is compared. Raises LockstepError if the publication no longer sends all
        changes, and SelectionChanged if patterns select other tables from now on. ``assembler`` and ``shapes`` are None
        before there is a stream.
        """
        looked = self._look(state)
        if looked is None:
            return state
        now, end = looked
        self._was_published |= now.keys() | state.memberships.keys()
        changed = set()
        refreshed = dict(state.memberships)
        for name, recorded in state.memberships.items():
            if not state.has_copy(name) or name not in self._captured:
                continue
            if name not in now:
                self._say_absent(name)
                refreshed[name] = left(recorded)
                continue
            self._absent.discard(name)
            hidden = next((finding for finding in self._wrong.get(name, ()) if finding.hides_changes), None)
            if hidden is not None:
                refreshed[name] = left(recorded, f"it had been so that it {hidden.what}")
                continue
            change = now[name].since(recorded, self._keys.get(name, ()))
            if change.whole:
                changed.add(name)
                if assembler is not None:
                    assembler.relations.distrust(name)
                self._say(f"{name}: rows may have changed without an event: {change.whole}; copying it again")
            elif name not in state.copied:
                continue  # all of it is to be copied; if that is cancelled, the next inspection finds the same
            elif change.partitions:
                changed.add(name)
                if not change.altered:
                    published = assembler.relations.tables.get(name) if assembler is not None else None
                    self._only_leaves[name] = published.table.schema_id if published is not None else ""
                elif assembler is not None:
                    assembler.relations.distrust(name)
                self._say(f"{name}: partitions came; copying them")
            elif not change.altered or self._record_altered(assembler, shapes, name, state, now[name].storage.columns):
                refreshed[name] = now[name].to_text()
            elif name not in self._altered or self._altered[name].columns != now[name].storage.columns:
                self._altered[name] = _Altered(now[name].storage.columns, end)  # altered again: wait again
        changed |= self._changed_copies(state, now, assembler)
        return replace(state, memberships=refreshed).to_be_copied(changed)

    def missing(self, name: TableName) -> None:
        """A table to be copied isn't published. Its copy waits, which is reported once. Raises LockstepError if the
        table is named and was never published, as far as known: somebody forgot it."""
        if name not in self._was_published and name in self._named:
            raise not_published(self._pipeline, self._sql, [name])
        self._say_absent(name)

    def _say_wrong(self, now: Mapping[TableName, Membership]) -> None:
        """Report what preflight would find wrong with tables, once per finding."""
        found = self._preconditions.errors(self._sql, [name for name in now if name in self._captured])
        for name, findings in found.items():
            for finding in findings:
                if finding not in self._wrong.get(name, ()):
                    # It precedes the fix, which is SQL to copy.
                    after = "; its changes may be missing until that is mended, and then it is copied again"
                    more = after if finding.hides_changes else ""
                    self._say(f"warning: {name} {finding.what}: {finding.why}{more}\n{finding.fix}")
        self._wrong = dict(found)

    def _say_absent(self, name: TableName) -> None:
        if name not in self._absent:
            called = self._renamed_to.get(name)
            if called is None:
                error = not_published(self._pipeline, self._sql, [name])
                self._say(f"warning: {error}. Until then its changes aren't seen; it is copied again afterwards")
            else:
                way_out = (
                    "take it out of source.tables"
                    if name in self._named
                    else f"leave it out: exclude_tables = [{toml_text(str(name))}]"
                )
                self._say(
                    f"warning: {name} is named {called} now, and its copy waits until it has its name again\n"
                    f"or {way_out}; then {called} can be captured by its own name"
                )
        self._absent.add(name)

    def _changed_copies(
        self, state: CaptureState, now: Mapping[TableName, Membership], assembler: Assembler | None
    ) -> set[TableName]:
        """The tables whose copies must restart: what their topics hold may predate a change."""
        changed = set()
        for name, copy in state.copying.items():
            if not copy.has_begun or name not in self._captured:
                continue
            change = now[name].since(copy.membership, self._keys.get(name, ())) if name in now else None
            if change is None or change.whole or change.altered:
                changed.add(name)
                if assembler is not None:
                    assembler.relations.distrust(name)
                why = "it isn't published" if change is None else change.whole or "its columns were altered"
                self._say(f"{name}: its copy begins again: {why}")
        return changed

    def _look(self, state: CaptureState) -> tuple[dict[TableName, Membership], Lsn] | None:
        """The captured tables now, and the WAL's end after that; None while somebody alters or drops one."""
        pipeline, sql = self._pipeline, self._sql
        try:
            unpublished = unpublished_kinds(sql, state.publication)
            if unpublished:
                raise LockstepError(
                    f"publication {state.publication} no longer sends {', '.join(unpublished)}: such changes would be"
                    " lost",
                    hint=f"alter publication {sql_identifier(state.publication)} set (publish = 'insert, update,"
                    " delete, truncate'); then start again: the tables are copied again",
                )
            outbox = pipeline.source.outbox_name
            if outbox is not None and outbox not in memberships(sql, state.publication, [outbox]):
                raise not_published(pipeline, sql, [outbox])  # it is never copied, so its rows would be lost
            now = memberships(sql, state.publication, pipeline.source.table_names)
            now |= self._renamed(state, now)
            self.require_selection(state)
            self._say_wrong(now)
            return now, wal_end(sql)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.InternalError_):
            return None  # there will be another inspection
        except psycopg.OperationalError as error:
            raise connection_error(error) from error

    def require_selection(self, state: CaptureState) -> None:
        """Report which tables match and aren't captured, once per reason. Raises SelectionChanged for those that can be
        captured, and for captured ones with nothing on their topics that no longer can. A new session copies new tables
        whole, at a place of the stream, so nothing older is lost."""
        if not self._pipeline.source.has_patterns:
            return
        selection = select_tables(self._sql, self._pipeline, state, self._shapes)
        changes = [
            f"{name}: matches source.tables, and is captured from now on"
            for name in selection.taken_in
            if name not in self._captured
        ]
        changes += [
            f"{name}: isn't captured any more, and nothing of it was copied; {why_left(name, selection)}"
            for name in self._captured - self._named - set(selection.taken_in)
        ]
        if changes:
            raise SelectionChanged("\n".join(sorted(changes)))
        for name, reason in selection.waiting.items():
            if self._waiting.get(name) != reason:
                self._say(f"warning: {name} matches source.tables and isn't captured: {reason}")
        self._waiting = dict(selection.waiting)

    def described(self, state: CaptureState, name: TableName, xid: int, visible: VisibleCommits) -> None:
        """The stream describes a table that isn't captured, in transaction ``xid``. Raises SelectionChanged if it can
        be captured by now.

        That happens before the transaction with the table's first rows is published, so a wait for that transaction
        doesn't end before sinks have it. Raises Unavailable while the transaction isn't visible, and while PostgreSQL
        can't say how it publishes the table, because a table of the publication is locked.
        """
        if name in self._captured or not self._pipeline.source.matches(name):
            return  # a captured table that waits for its copy is reported as such
        try:
            visible.wait_for(xid, created_or_altered(name))
            if can_join(self._sql, self._pipeline, state, name):
                self.require_selection(state)
        except (psycopg.OperationalError, psycopg.errors.InternalError_) as raised:
            error = connection_error(raised)
            if not isinstance(error, Unavailable):
                raise error from raised
            raise Unavailable(
                f"{name} matches source.tables, but whether it can be captured isn't known yet: {error.message}",
                retry_after_s=error.retry_after_s,
            ) from raised

    def only_leaves(self, name: TableName) -> bool:
        """Whether new partitions may be the only reason for a table's copy."""
        return name in self._only_leaves

    def take_only_leaves(self, name: TableName, schema_id: str) -> bool:
        """Whether new partitions are the only reason for the copy of a table of this shape. Asked once."""
        return self._only_leaves.pop(name, "") == schema_id

    def _record_altered(
        self,
        assembler: Assembler | None,
        shapes: CatalogueShapes | None,
        name: TableName,
        state: CaptureState,
        columns: str,
    ) -> bool:
        """Whether an ALTER TABLE without a row in the stream is recorded, which happens once the stream has passed it.
        ``columns`` is their present digest. If they were altered again, the stream may still have rows of the earlier
        shape."""
        waiting = self._altered.get(name)
        if assembler is None or shapes is None or waiting is None:
            return False
        if waiting.columns != columns or state.end_lsn < waiting.seen_at:
            return False
        called = self._renamed_to.get(name, name)
        relation, published = shapes.current_relation(called), assembler.relations.tables.get(name)
        if relation is None or published is None:
            return False
        adopted = shapes.adopt(relation, published)
        now = memberships(self._sql, state.publication, [called])
        if called not in now or now[called].storage.columns != columns:
            return False  # altered while we asked: the next inspection waits again
        assembler.rows.envelopes.record_shape(adopted)
        del self._altered[name]
        return True

    def _renamed(self, state: CaptureState, present: Mapping[TableName, Membership]) -> dict[TableName, Membership]:
        """Captured tables that were renamed, by their captured names."""
        renamed = {}
        followed = {name: copy.membership for name, copy in state.copying.items() if copy.has_begun}
        followed |= {name: recorded for name, recorded in state.memberships.items() if state.has_copy(name)}
        for name, recorded in followed.items():
            if name in present or name not in self._captured:
                self._renamed_to.pop(name, None)
                continue
            before = Recorded.from_text(recorded)
            called = name_of_oid(self._sql, before.oid) if before is not None else None
            published = memberships(self._sql, state.publication, [called]) if called else {}
            if called in published:
                if name not in self._renamed_to:
                    self._say(f"warning: {name} is named {called} now; its events stay where they are, as {name}")
                self._renamed_to[name] = called
                renamed[name] = published[called]
        return renamed
