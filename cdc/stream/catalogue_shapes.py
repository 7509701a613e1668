"""Completes a Relation message from the catalogue: a table with types, key and column history."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import orjson
import psycopg

from cdc.capture.published_table import PublishedTable
from cdc.capture.shape_change import AddedValue, changed_shape
from cdc.event_format.column_types import json_encoder
from cdc.model.table import Column, ReplicaIdentity, Table, TableName
from cdc.pipeline_settings import Pipeline
from cdc.postgres.catalogue import (
    KnownTypes,
    column_holders,
    declared_type,
    load_tables,
    table_of_oid,
    value_type,
)
from cdc.postgres.memberships import storage_of
from cdc.postgres.slot import current_snapshot
from cdc.protocol.added_column import value_before
from cdc.protocol.control_records import SchemaRecord
from cdc.protocol.membership import Recorded
from cdc.protocol.pgoutput import Relation, RelationColumn
from cdc.protocol.visibility import SourceSnapshot
from cdc.stream.visible_commits import VisibleCommits


@dataclass(frozen=True, slots=True)
class _Unchanged:
    """The catalogue's answer about a relation: nothing has changed since ``membership``. ``snapshot`` was taken before
    the question, while transaction ``xid`` was read (None: outside of one)."""

    relation: Relation
    published: PublishedTable
    membership: str | None
    snapshot: SourceSnapshot
    xid: int | None

    def is_true_in(self, xid: int | None) -> bool:
        """Whether it holds for the relation in this transaction. A transaction that the snapshot doesn't see may have
        altered it."""
        return xid is not None and (xid == self.xid or self.snapshot.sees(xid))


class CatalogueShapes:
    """Asks once per Relation message, never per row. PostgreSQL describes a partitioned table again for the first row
    of each partition; one answer covers all of those in transactions that were visible when it was given.

    ``publish`` says how a table's rows are encoded and where they go. ``visible`` waits until the catalogue shows what
    a transaction of the stream did to a table: before, a rewritten table looks unchanged, and so do two columns that
    swapped names. ``membership_of`` returns what was recorded at a table's copy, None for a table that is to be copied
    anyway. ``names_before`` returns the names of the table's columns before its epoch.
    """

    def __init__(
        self,
        sql: psycopg.Connection[Any],
        pipeline: Pipeline,
        publish: Callable[[Table], PublishedTable],
        say: Callable[[str], None],
        visible: VisibleCommits,
        membership_of: Callable[[TableName], str | None] = lambda _: None,
        names_before: Callable[[Table], Collection[str]] = lambda _: (),
    ) -> None:
        self._sql = sql
        self._publication = pipeline.publication
        self._keys = pipeline.source.keys
        self._publish = publish
        self._say = say
        self._membership_of = membership_of
        self._names_before = names_before
        self._visible = visible
        self._types = KnownTypes(sql)
        self._unchanged: dict[int, _Unchanged] = {}

    def adopt(self, relation: Relation, known_table: PublishedTable, xid: int | None = None) -> PublishedTable:
        """The table that a Relation message describes, as the catalogue has it now, or once it shows transaction
        ``xid``, which contains the message.

        Once keys could swap, they still can: the catalogue may be ahead of the stream. Raises UnsupportedChange if no
        key is left, and Unavailable while a transaction that altered the table isn't visible.
        """
        name = known_table.table.name
        membership = self._membership_of(name)
        said = self._unchanged.get(relation.relation_id)
        if (
            said is not None
            and said.is_true_in(xid)
            and said.published is known_table
            and (said.relation, said.membership) == (relation, membership)
        ):
            return known_table
        if xid is None:
            snapshot = current_snapshot(self._sql)
        else:
            snapshot = self._visible.wait_if_altered(xid, relation.relation_id, name)
        recorded = Recorded.from_text(membership) if membership is not None else None
        # Only about the table: asking for its publication would wait for its lock.
        current = table_of_oid(self._sql, relation.relation_id, self._types)
        table, change = changed_shape(
            known_table.table,
            relation,
            current=current,
            configured_key=self._keys.get(name),
            resolve=self._resolve,
            added_value=lambda column: self._added_value(relation.relation_id, column, recorded),
            parse=orjson.loads,
            names_before=self._names_before(known_table.table),
        )
        published = self._publish(table)
        published.keys_can_swap |= known_table.keys_can_swap
        rewritten = self._rewritten(relation, recorded) if not change.rewritten else ""
        if rewritten:
            change = replace(change, rewritten=rewritten)
            self._say(f"{table.name}: rows may have changed without an event: {rewritten}; copying it again")
        if table == known_table.table and not rewritten:
            self._unchanged[relation.relation_id] = _Unchanged(relation, published, membership, snapshot, xid)
            return published
        if table.schema_id != known_table.table.schema_id or (change.rewritten and not rewritten):
            self._say(
                f"{table.name} has a new shape, schema id {table.schema_id}: {_in_words(known_table.table, table)}"
            )
        published.unrecorded = SchemaRecord(table, 0, change)
        return published

    def forget(self) -> None:
        """Ask again about each table. Called now and then: an xid comes round after four billion others."""
        self._unchanged.clear()

    def _rewritten(self, relation: Relation, recorded: Recorded | None) -> str:
        """Why older rows may differ by now, though the shape doesn't show it; empty if they don't. The next inspection
        would find it too. Until then, updates would be completed with values of the older rows."""
        now = storage_of(self._sql, relation.relation_id) if recorded is not None else None
        if recorded is None or now is None:
            return ""
        return now.rewritten_since(recorded.storage)

    def current_relation(self, name: TableName) -> Relation | None:
        """The table as the stream would describe it now; None if it is gone or not published."""
        table = load_tables(self._sql, [name], self._publication).get(name)
        if table is None:
            return None
        full = table.replica_identity is ReplicaIdentity.FULL
        columns = tuple(
            RelationColumn(column.name, column.type_oid, column.type_modifier, full or column.name in table.key)
            for column in table.columns
        )
        return Relation(table.oid, name.schema, name.name, table.replica_identity, columns)

    def _resolve(self, column: RelationColumn) -> Column:
        types = self._types.with_all([column.type_oid])
        base, is_array = value_type(types, column.type_oid)
        row = self._sql.execute("select format_type(%s::oid, %s)", (column.type_oid, column.type_modifier)).fetchone()
        name = declared_type(types, row[0]) if row else base
        return Column(column.name, name, base, is_array, column.type_oid, column.type_modifier)

    def _added_value(self, oid: int, column: Column, recorded: Recorded | None) -> AddedValue:
        holders = column_holders(self._sql, oid, column.name)
        default = value_before(oid, column.number, holders, recorded.storage if recorded is not None else None)
        if not default.is_known:
            return AddedValue(None)
        if default.text is None:
            return AddedValue(b"null")
        return AddedValue(json_encoder(column.value_type, column.is_array)(default.text.encode()))


def _in_words(before: Table, after: Table) -> str:
    old = {column.name: column.type_name for column in before.columns}
    new = {column.name: column.type_name for column in after.columns}
    parts = [f"{name} {kind} came" for name, kind in new.items() if name not in old]
    parts += [f"{name} {kind} went" for name, kind in old.items() if name not in new]
    parts += [f"{name} is {new[name]} now" for name in old if name in new and old[name] != new[name]]
    if before.key != after.key:
        parts.append(f"the key is ({', '.join(after.key)})")
    return ", ".join(parts) or "its columns have another order, or it was recreated"
