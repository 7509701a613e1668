"""All versions of a table's rows, beside the table of the newest ones.

=================================  =====================================================================
``shop_g1.orders_history``         every version that came: the source's columns, ``_tag``, ``_committed_at``, ``_operation``
``shop.orders_history``            view of the live generation's, with ``valid_from`` and ``valid_to``
``lockstep.history``               from when on each history is complete
=================================  =====================================================================

Rows are only ever added, under the key and the tag: the same version twice is one, and one that comes late needs no other to be
changed. When a version ended is no part of it but asked of the next one by tag, in the view. So a row as it was at any time is
``where valid_from <= t and (valid_to is null or t < valid_to)``, and one of several versions of one transaction is the last. A
deletion is a version whose time has no length, and ends the one before it. Where the source's clock was set back, a version begins
no earlier than the one before it.

The table keeps its key in bulk as well. A column that is dropped here as it was at the source stays in the table under another
name, with the values that it had.

Compaction takes versions away before anybody has read them, so a history is complete from some time on: from when the table was
prepared, or what the job says that it read without a gap, whichever is later.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cdc.model.event import TableEvents, parse_key, parse_object
from cdc.model.table import TableName, quote_identifier
from sinks.copy_text import copy_line
from sinks.shape import Shape
from sinks.sink import TableVersions
from sinks.warehouse.connection import WarehouseConnection
from sinks.warehouse.names import NAME_BYTES_MAX, listed
from sinks.warehouse.tables import TAG_COLUMN, Rows, assignments, check_columns, column_definitions
from sinks.warehouse.views import Shown

_COMMITTED: Final = "_committed_at"
_OPERATION: Final = "_operation"
_FROM: Final = "valid_from"
_TO: Final = "valid_to"
# In the view they come first: a column that is added later can stand at the end only.
_SHOWN: Final = (TAG_COLUMN, _FROM, _TO, _OPERATION)
_TAKEN: Final = (TAG_COLUMN, _COMMITTED, _OPERATION, _FROM, _TO)
_WORDS: Final = {"r": "snapshot", "c": "insert", "u": "update", "d": "delete"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def create_history_sql(target: str, shape: Shape) -> str:
    """DDL of a history's table. Raises LockstepError for a column whose name is taken by ours."""
    check_history_columns(shape)
    lines = column_definitions(shape)
    lines.append(f'{quote_identifier(TAG_COLUMN)} char(28) collate "C" not null')
    lines.append(f"{quote_identifier(_COMMITTED)} timestamptz not null")
    lines.append(f"{quote_identifier(_OPERATION)} text not null")
    lines.append(f"primary key ({listed([*shape.table.key, TAG_COLUMN])})")
    return f"create table if not exists {target} (\n  " + ",\n  ".join(lines) + "\n)"


def check_history_columns(shape: Shape) -> None:
    """Raise LockstepError for a column whose name is taken by ours."""
    check_columns(shape, _TAKEN, "the warehouse's history of the table needs")


def history_view(target: str, shape: Shape) -> Shown:
    """What readers see of a history."""
    key = shape.table.key
    columns = tuple(column.name for column in shape.columns)
    committed, operation, valid_from = map(quote_identifier, (_COMMITTED, _OPERATION, _FROM))
    words = " ".join(f"when '{letter}' then '{word}'" for letter, word in _WORDS.items())
    # A column that was added with a value has that in all rows, deletions included.
    values = [
        quote_identifier(name)
        if name in key
        else f"case when {operation} <> 'd' then {quote_identifier(name)} end as {quote_identifier(name)}"
        for name in columns
    ]
    query = (
        f"select {quote_identifier(TAG_COLUMN)}, {valid_from}, "
        f"case when {operation} = 'd' then {valid_from} when {_TO} is not null then greatest({valid_from}, {_TO}) end as {_TO}, "
        f"case {operation} {words} end as {operation}, {', '.join(values)} "
        f"from (select {listed(columns)}, {quote_identifier(TAG_COLUMN)}, {operation}, "
        f"max({committed}) over (versions rows unbounded preceding) as {valid_from}, lead({committed}) over versions as {_TO} "
        f"from {target} window versions as (partition by {listed(key)} order by {quote_identifier(TAG_COLUMN)})) as version"
    )
    return Shown((*_SHOWN, *columns), query)


def set_aside_sql(target: str, name: str, number: int) -> str:
    """Keep a column that the source has dropped, under a name that no other column has; ``number`` is its own in the table."""
    aside = f"_dropped_{number}_{name}".encode()[:NAME_BYTES_MAX].decode(errors="ignore")
    return f"alter table {target} rename column {quote_identifier(name)} to {quote_identifier(aside)}"


class HistoryStatements(Rows):
    """The SQL of one table's history, made once per connection and shape."""

    def __init__(self, target: str, shape: Shape, staging: str) -> None:
        super().__init__(shape)
        stage = f"pg_temp.{quote_identifier(staging)}"
        identity = [*shape.table.key, TAG_COLUMN]
        columns = [*self.columns, TAG_COLUMN, _COMMITTED, _OPERATION]
        stored = listed(columns)
        self.create_staging = (
            f"create temporary table {quote_identifier(staging)} (like {target}) on commit delete rows"
        )
        self.empty_staging = f"truncate {stage}"
        self.copy = f"copy {stage} ({stored}) from stdin"
        committed = quote_identifier(_COMMITTED)
        # In one order, so that two writers of the same versions can't wait for each other. A version may be there twice, and of a
        # tombstone whose event is gone only the record's time is known, which is later.
        versions = (
            f"insert into {target} as known ({stored})\n"
            f"select distinct on ({listed(identity)}) {stored} from {stage} order by {listed(identity)}, {committed}\n"
            f"on conflict ({listed(identity)}) do update\n"
        )
        self.keep = f"{versions}set {committed} = excluded.{committed} where excluded.{committed} < known.{committed}"
        # What the source has dropped stays as it was: a version that comes again lacks it.
        others = assignments([*(column.name for column in shape.table.columns), _OPERATION], identity)
        self.keep_again = f"{versions}set {others}, {committed} = least(known.{committed}, excluded.{committed})"

    def version_lines(self, versions: TableVersions) -> Iterator[str]:
        """Versions as lines of COPY. Raises UnknownColumn."""
        events = versions.events
        times = _times(versions.commit_times_ms)
        for key, tag, row, committed_at, operation in zip(
            events.keys, events.tags, events.rows, times, versions.operations, strict=True
        ):
            held = parse_key(key) if row is None else parse_object(row)
            yield copy_line((*self.known_values(held), tag, committed_at, operation))


def _times(times_ms: Iterable[int]) -> Iterator[str]:
    """Timestamps as text. Those of one transaction are the same and stand together."""
    known_ms, text = 0, _EPOCH.isoformat()
    for time_ms in times_ms:
        if time_ms != known_ms:
            known_ms, text = time_ms, (_EPOCH + timedelta(milliseconds=time_ms)).isoformat()
        yield text


class HistoryBooks:
    """From when on the histories of one generation are complete. Every method is called inside a transaction."""

    def __init__(self, connection: WarehouseConnection) -> None:
        self._execute = connection.execute

    def begin(self, name: TableName, relation: str) -> None:
        """From now on versions of the table are kept. Does nothing when they are already."""
        self._execute(
            "insert into lockstep.kept_history (view_schema, generation, source_schema, source_table, view_name) "
            "values (:view_schema, :generation, :source_schema, :source_table, :view_name) on conflict do nothing",
            source_schema=name.schema,
            source_table=name.name,
            view_name=relation,
        )

    def forget(self, names: Sequence[TableName]) -> None:
        for name in names:
            for bookkeeping in ("kept_history", "refused_version"):
                self._execute(
                    f"delete from lockstep.{bookkeeping} where view_schema = :view_schema and generation = :generation "
                    "and source_schema = :source_schema and source_table = :source_table",
                    source_schema=name.schema,
                    source_table=name.name,
                )

    def raise_complete_from(self, name: TableName, time_ms: int) -> None:
        self._execute(
            "update lockstep.kept_history set complete_from = :complete_from "
            "where view_schema = :view_schema and generation = :generation "
            "and source_schema = :source_schema and source_table = :source_table "
            "and (complete_from is null or complete_from < :complete_from)",
            source_schema=name.schema,
            source_table=name.name,
            complete_from=_EPOCH + timedelta(milliseconds=time_ms),
        )

    def refuse(self, version: TableEvents, reason: str) -> None:
        """Note that the history lacks a version, given alone."""
        self._execute(
            "insert into lockstep.refused_version (view_schema, generation, source_schema, source_table, tag, key_digest, reason) "
            "values (:view_schema, :generation, :source_schema, :source_table, :tag, :key_digest, :reason) on conflict do nothing",
            source_schema=version.table.schema,
            source_table=version.table.name,
            tag=version.tags[0],
            key_digest=_digest(version.keys[0]),
            reason=reason,
        )

    def retry(self, versions: TableEvents) -> None:
        """These versions are about to be written again: those that the history lacked are no longer known to be lacking."""
        name = versions.table
        lacking: Sequence[Any] = self._execute(
            "select tag, key_digest from lockstep.refused_version where view_schema = :view_schema and generation = :generation "
            "and source_schema = :source_schema and source_table = :source_table",
            source_schema=name.schema,
            source_table=name.name,
        ).fetchall()
        if not lacking:
            return
        written = {(tag, _digest(key)) for tag, key in zip(versions.tags, versions.keys, strict=True)}
        for tag, digest in lacking:
            if (tag, digest) in written:
                self._execute(
                    "delete from lockstep.refused_version where view_schema = :view_schema and generation = :generation "
                    "and source_schema = :source_schema and source_table = :source_table and tag = :tag and key_digest = :digest",
                    source_schema=name.schema,
                    source_table=name.name,
                    tag=tag,
                    digest=digest,
                )


def _digest(key: bytes) -> str:
    """Of a key that may be too long for an index, and is nobody's business here."""
    return hashlib.sha256(key).hexdigest()
