"""Rows as rows in a SQL warehouse: one table per source table and generation, read through views of the live rows.

=================================  =====================================================================
``shop_g1.orders``                 generation 1: the source's columns, ``_tag``, ``_deleted``
``shop.orders``                    view of the live generation's rows that aren't deleted
``lockstep.*``                     whose turn it is to write, what was applied, how far it is, notes (``migrations.warehouse``)
=================================  =====================================================================

A batch is one transaction: check the fence, COPY into a staging table, merge by tag, store the offsets, commit. A writer that was
replaced finds another fence and is refused before it has written anything. Deleted rows stay with their key and tag, since without
the tag an older write would bring them back.

Columns have the source's types without modifiers, so no value that the source could hold is too long or too precise here. Types
with rules of their own that a warehouse may not share (enums, domains, money, xml, ``char(n)``, extensions) are ``text``. Columns that are
no key are nullable, whatever the source says: a deletion has the key only.

**Bulk.** Until ``end_bulk`` the tables of a generation have no primary key, and a batch is copied straight into them. At the end the
newest version of each row stays and the key is made, in one transaction. ``lockstep.writer`` says which way a generation is written,
in the row that every batch looks at for its fence. Only a generation that is empty and not live is loaded like that, and it doesn't
go live before the end.

**Readers.** A switch replaces all views in one transaction, with their grants: a reader sees the old generation or the new one,
never neither. It locks all views before it touches them, and never waits for one while it holds another: a reader that uses several
in one transaction is never chosen as the victim of a deadlock. While something reads for longer than ``lock_timeout_s``, the
switch is ``Unavailable``, and nothing has changed. Two things are PostgreSQL's own and can't be helped from here: a prepared ``select *`` fails once
when the new generation has other columns ("cached plan must not change result type"; name the columns), and a transaction at
REPEATABLE READ that began before the new generation's rows were written doesn't see them.

Tables of schema ``public`` keep their names, others are called ``schema__table``; two tables that would get the same name
are refused.

PostgreSQL is the one dialect so far.
"""

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, cast

import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from cdc.model.errors import ConfigurationError, Fenced, LockstepError, Unavailable
from cdc.model.event import Events, JsonValue, TableEvents, parse_key, parse_object
from cdc.model.table import Column, Table, TableName, quote_identifier
from cdc.protocol.copytext import split_row
from cdc.protocol.pgvalues import SESSION_SETTINGS, json_encoder
from sinks.access import Login, Tls
from sinks.copy_text import array_literal, copy_line, plain_text
from sinks.progress_json import dump_progress, load_progress
from sinks.projection import Excluded
from sinks.shape import Shape, unknown_column, unprepared
from sinks.sink import NOTHING_ADDED, AddedValues, Batch, Outcome, Progress, Rejection, StoredRow

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult, Engine

TAG_COLUMN: Final = "_tag"
DELETED_COLUMN: Final = "_deleted"

_IDENTIFIER_BYTES_MAX: Final = 63  # NAMEDATALEN - 1; PostgreSQL would cut longer names in silence
_COPY_LINES: Final = 1000  # per write: few calls, little memory

# Types that any PostgreSQL has, and whose text it reads back as the same value.
_SAME_TYPE: Final = frozenset(
    (
        *(
            "bool",
            "int2",
            "int4",
            "int8",
            "oid",
            "float4",
            "float8",
            "numeric",
            "text",
            "uuid",
            "bytea",
            "json",
            "jsonb",
        ),
        *("date", "time", "timetz", "timestamp", "timestamptz", "interval"),
        *("inet", "cidr", "macaddr", "macaddr8", "varbit"),
        *("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange"),
    )
)

# SQLSTATE classes. Data errors belong to a row; 54 is "index row too large" and the like.
_ROW_CLASSES: Final = ("22", "23", "54")
# Connections, transaction rollbacks, insufficient connections, operator intervention, busy objects, timeouts.
_PASSING: Final = ("08", "40", "25P03", "53300", "55P03", "57")
_UNIQUE_VIOLATION: Final = "23505"
# For the sorting at the end of a bulk load, which is done once and by nobody else.
_BULK_MEMORY: Final = "256MB"
# An index takes 2704 bytes; a character of text may have four of them, and one of an array's or jsonb's text stands for more.
_KEY_CHARACTERS_SAFE: Final = 300
_SHORT_TYPES: Final = frozenset(
    (
        *("bool", "int2", "int4", "int8", "oid", "float4", "float8", "uuid"),
        *("date", "time", "timetz", "timestamp", "timestamptz", "interval", "inet", "cidr", "macaddr", "macaddr8"),
    )
)
_LOCK_NOT_AVAILABLE: Final = "55P03"
# Readers of a view wait behind us while we wait for it, so not for long at a time; and much less than deadlock_timeout (1 s)
# while we hold others.
_FIRST_LOCK_MS: Final = 500
_SECOND_LOCK_MS: Final = 10
_RETRY_AFTER_S: Final = 1.0
_HINTS: Final = {
    "28": "check user and password of this sink",
    "3D": "create the database, or mend the address of this sink",
    "3F": "the schema was removed; restart the job, or build it anew: lockstep rebuild",
    "42501": "grant the sink's user CREATE on the database, and ownership of the schemas it made",
    "42P01": "a table or view was removed; restart the job, or build it anew: lockstep rebuild",
    "2BP01": "something of yours depends on the view; recreate it after the switch",
    "53100": "the warehouse's disk is full: free space",
    "53200": "the warehouse is out of memory",
    "58030": "the warehouse can't read or write its files: look at its log",
}
# Without a connection there is no SQLSTATE, only the server's words.
_REFUSED_AT_THE_DOOR: Final = {
    "authentication failed": "check user and password of this sink",
    "no password supplied": "set the password of this sink",
    "no pg_hba.conf entry": "allow this machine and user in the warehouse's pg_hba.conf, with TLS where it asks for it",
    "does not exist": "check database and user of this sink",
    "permission denied": "grant the user CONNECT on the database",
    "certificate verify failed": "set tls.ca_file of this sink to the authority's certificate",
    "does not support SSL": "switch TLS on at the warehouse, or remove tls and sslmode from this sink",
    "could not translate host name": "check the address of this sink",
}
_COPY_COLUMN = re.compile(r", column (?P<name>[^:\n]+)")


class WarehouseSettings(BaseModel):
    """A PostgreSQL warehouse by SQLAlchemy address, ``postgresql+psycopg://user@host/database``.

    ``schema_name`` is where the views are, ``schema`` in the file; without it the sink's name. ``login`` and ``tls`` win
    over what the address says. ``exclude`` names columns that never get here. ``schema_changes`` is what becomes of a column that the
    source renames or drops: ``stop`` keeps what is here and stops at a new name, ``follow`` does here what was done there.

    ``max_open_rejections`` is how many rows that it refused may be kept; before there are more, the job stops.
    """

    SHAPING: ClassVar[frozenset[str]] = frozenset({"tables", "exclude"})

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    type: Literal["warehouse"] = "warehouse"
    url: SecretStr
    schema_name: str | None = Field(None, alias="schema", min_length=1)
    tables: tuple[str, ...] = ()
    exclude: Excluded = ()
    schema_changes: Literal["stop", "follow"] = "stop"
    login: Login = Login()
    tls: Tls | None = None
    connect_timeout_s: int = Field(10, gt=0)
    lock_timeout_s: float = Field(5.0, gt=0)
    max_open_rejections: int = Field(10_000, ge=0)
    idle_in_transaction_timeout_s: float = Field(60.0, gt=0)


def column_type(column: Column) -> str:
    """The SQL type of a column in the warehouse."""
    return _stored_type(column) + ("[]" if column.is_array else "")


def _stored_type(column: Column) -> str:
    """The type of a column's values, or of its array's elements."""
    # Plain "bit" would be one bit.
    value_type = "varbit" if column.value_type == "bit" else column.value_type
    return value_type if value_type in _SAME_TYPE else "text"


def warehouse_name(name: TableName) -> str:
    """What a source table is called in the warehouse. Raises LockstepError when that is too long for PostgreSQL."""
    text = name.name if name.schema == "public" else f"{name.schema}__{name.name}"
    return _fitting(text, f"table {name}")


def create_table_sql(schema: str, shape: Shape) -> str:
    """DDL of a generation's table. Raises LockstepError for a column whose name is taken by ours."""
    for column in shape.columns:
        if column.name in (TAG_COLUMN, DELETED_COLUMN):
            raise LockstepError(
                f"table {shape.table.name} has a column {column.name!r}, a name that the warehouse sink needs for itself",
                hint="rename the column at the source, or leave it out with a column list of the publication",
            )
    lines = [f"{quote_identifier(column.name)} {column_type(column)}" for column in shape.columns]
    lines.append(f'{quote_identifier(TAG_COLUMN)} char(28) collate "C" not null')
    lines.append(f"{quote_identifier(DELETED_COLUMN)} boolean not null")
    lines.append(f"primary key ({_names(shape.table.key)})")
    return f"create table if not exists {_target(schema, shape.table.name)} (\n  " + ",\n  ".join(lines) + "\n)"


class _Statements:
    """The SQL of one table, made once per connection and shape."""

    def __init__(self, schema: str, shape: Shape, staging: str) -> None:
        self.shape = shape
        self.columns = tuple(column.name for column in shape.columns)
        self.known = frozenset(self.columns)
        # A row that has all columns is the rule. (itemgetter of one name gives the value itself.)
        self._take: Callable[[Mapping[str, JsonValue]], tuple[JsonValue, ...]] = (
            itemgetter(*self.columns) if len(self.columns) > 1 else lambda row: (row[self.columns[0]],)
        )
        self.key_may_be_long = any(
            column.is_array or column_type(column) not in _SHORT_TYPES for column in shape.table.key_columns
        )
        target = _target(schema, shape.table.name)
        stage = f"pg_temp.{quote_identifier(staging)}"
        stored = (*self.columns, TAG_COLUMN, DELETED_COLUMN)
        key = frozenset(shape.table.key)
        assignments = ", ".join(
            f"{quote_identifier(name)} = excluded.{quote_identifier(name)}" for name in stored if name not in key
        )
        self.create_staging = (
            f"create temporary table {quote_identifier(staging)} (like {target}) on commit delete rows"
        )
        self.append = f"copy {target} ({_names(stored)}) from stdin"
        self.create_probe = (
            f"create temporary table {quote_identifier(f'{staging}_probe')} "
            f"(like {target}, primary key ({_names(shape.table.key)})) on commit drop"
        )
        self.copy_probe = f"copy pg_temp.{quote_identifier(f'{staging}_probe')} ({_names(stored)}) from stdin"
        self.drop_probe = f"drop table pg_temp.{quote_identifier(f'{staging}_probe')}"
        self.empty_staging = f"truncate {stage}"
        self.copy = f"copy {stage} ({_names(stored)}) from stdin"
        # In key order, so that two writers take their row locks in the same order and can't wait for each other.
        self.merge = (
            f"insert into {target} as known ({_names(stored)})\n"
            f"select {_names(stored)} from {stage} order by {_names(shape.table.key)}\n"
            f"on conflict ({_names(shape.table.key)}) do update\n"
            f"set {assignments}\n"
            f"where excluded.{quote_identifier(TAG_COLUMN)} > known.{quote_identifier(TAG_COLUMN)}"
        )
        self.merge_again = (
            f"{self.merge} or excluded.{quote_identifier(TAG_COLUMN)} = known.{quote_identifier(TAG_COLUMN)}"
        )

    def lines(self, events: TableEvents) -> Iterator[str]:
        """Events as lines of COPY. A deletion has its key and null for the rest, as has a row that lacks a column.

        Raises _UnknownColumn.
        """
        take, columns = self._take, self.columns
        for key, tag, row in zip(events.keys, events.tags, events.rows, strict=True):
            held = parse_key(key) if row is None else parse_object(row)
            if len(held) == len(columns):
                try:
                    values = take(held)
                except KeyError:
                    values = self._known_values(held)
            else:
                values = self._known_values(held)
            yield copy_line((*values, tag, "t" if row is None else "f"))

    def _known_values(self, held: Mapping[str, JsonValue]) -> tuple[JsonValue, ...]:
        for name in held:
            if name not in self.known:
                raise _UnknownColumn(self.shape.table.name, name)
        return tuple(map(held.get, self.columns))

    def with_long_keys(self, events: TableEvents) -> list[int]:
        """The places of events whose key may be too long for an index."""
        if not self.key_may_be_long:
            return []
        # A key's JSON is no shorter than its values.
        long = [place for place, key in enumerate(events.keys) if len(key) > _KEY_CHARACTERS_SAFE]
        return [place for place in long if sum(map(_length, events[place].key.values())) > _KEY_CHARACTERS_SAFE]


class _UnknownColumn(Exception):
    """An event has a column that its table didn't have when it was looked at."""

    def __init__(self, table: TableName, column: str) -> None:
        super().__init__(table, column)
        self.table = table
        self.column = column


@dataclass(frozen=True, slots=True)
class _View:
    """A table's view as the database has it. ``name`` is quoted; ``generations`` are those whose tables it reads."""

    table: TableName
    name: str
    owner: str
    options: tuple[str, ...]
    columns: tuple[str, ...]
    generations: frozenset[int]


class WarehouseSink:
    """Applies events to a PostgreSQL database. Connects at the first call, and again after a lost connection."""

    def __init__(self, name: str, settings: WarehouseSettings, generation: int) -> None:
        self._name = name
        self._settings = settings
        self._generation = generation
        self._views = _fitting(settings.schema_name or name, f"schema of sink {name!r}")
        self._schema = _fitting(f"{self._views}_g{generation}", f"schema of sink {name!r}")
        self._generation_schema = re.compile(re.escape(self._views) + r"_g(?P<generation>\d+)")
        self._lock_timeout_ms = max(1, int(settings.lock_timeout_s * 1000))
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._statements: dict[TableName, _Statements] = {}
        self._stagings = 0
        self._fence = 0

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        from migrations.warehouse import upgrade

        with self._transaction() as connection:
            upgrade(connection)
            self._execute("insert into lockstep.sink (view_schema) values (:view_schema) on conflict do nothing")
            # One at a time: two jobs that start together would both create the same table.
            live = self._execute(
                "select live_generation from lockstep.sink where view_schema = :view_schema for update"
            ).scalar()
            self._execute(
                "insert into lockstep.writer (view_schema, generation, fence) values (:view_schema, :generation, 0) on conflict do nothing"
            )
            is_bulk = self._is_bulk("for update")
            shapes = self._load_shapes()
            known = dict(shapes)
            for table in tables:
                held = known.get(table.name)
                shapes[table.name] = Shape.of(table) if held is None else self._next_shape(held, table)
            _check_names_differ(shapes)
            self._create_schema(self._schema)
            changed = [shape for name, shape in shapes.items() if shape != known.get(name)]
            if live == self._generation and changed:
                # As readers do it: the view before its table. The other way round one could wait for the other.
                self._hold(self._views_held(shape.table.name for shape in changed))
            for shape in changed:
                held = known.get(shape.table.name)
                self._build(shape, held, added.get(shape.table.name, {}))
                if live == self._generation and held is not None:
                    self._rename_in_view(shape.table.name, held.steps_to(shape).renamed)
                if is_bulk:
                    self._drop_key(_target(self._schema, shape.table.name))
            if live is None and go_live and not is_bulk:
                live = self._generation
                self._execute("update lockstep.sink set live_generation = :generation where view_schema = :view_schema")
            if live == self._generation:
                self._show(shapes)
            # Now that no view has them any more.
            for shape in changed:
                self._drop_columns(shape, known.get(shape.table.name, shape))
        self._disconnect()  # staging tables have the shapes of before
        return NOTHING_ADDED

    def begin_bulk(self) -> None:
        """Has no effect on a generation that has rows already, or readers: its rows stay one per key throughout."""
        with self._transaction():
            if not self._has_bookkeeping():
                raise self._missing()
            live = self._execute(
                "select live_generation from lockstep.sink where view_schema = :view_schema for update"
            ).scalar()
            is_bulk = self._is_bulk("for update")
            if is_bulk is None:
                raise self._missing()
            tables = [_target(self._schema, name) for name in self._load_shapes()]
            if is_bulk or live == self._generation or any(map(self._has_rows, tables)):
                return
            for table in tables:
                self._drop_key(table)
            self._set_bulk(True)

    def end_bulk(self) -> None:
        with self._transaction():
            if not self._has_bookkeeping() or not self._is_bulk("for update"):
                return
            self._run(f"set local work_mem = '{_BULK_MEMORY}'; set local maintenance_work_mem = '{_BULK_MEMORY}'")
            shapes = self._load_shapes()
            spare = _name_beside(map(warehouse_name, shapes))
            for _, shape in sorted(shapes.items()):
                self._add_key(shape, f"{quote_identifier(self._schema)}.{quote_identifier(spare)}")
            self._set_bulk(False)

    def claim(self) -> int:
        """Become the writer. Waits for the old writer's batch at most ``lock_timeout_s``, then raises Unavailable."""
        with self._transaction():
            fence = self._execute(
                "update lockstep.writer set fence = fence + 1, claimed_at = now() "
                "where view_schema = :view_schema and generation = :generation returning fence"
            ).scalar()
        if fence is None:
            raise self._missing()
        self._fence = int(fence)
        return self._fence

    def fence(self) -> int:
        fence = None
        with self._transaction():
            if self._has_bookkeeping():
                fence = self._execute(
                    "select fence from lockstep.writer where view_schema = :view_schema and generation = :generation"
                ).scalar()
        if fence is None:
            raise self._missing()
        return int(fence)

    def apply(self, batch: Batch) -> Outcome:
        # Always the same order of tables too, against deadlocks.
        tables = sorted(Events.of(batch.events).tables, key=lambda events: events.table)
        self._stage_for([events.table for events in tables if events.table not in self._statements])
        looked_again: set[TableName] = set()
        while True:
            try:
                return self._apply(tables, batch)
            except _UnknownColumn as unknown:
                if unknown.table in looked_again:
                    raise unknown_column(unknown.table, unknown.column) from None
                looked_again.add(unknown.table)
                self._stage_for([unknown.table])  # the table may have got it since we looked

    def _apply(self, tables: Sequence[TableEvents], batch: Batch) -> Outcome:
        """One transaction. Raises _UnknownColumn, after which nothing of it has happened."""
        applied = 0
        rejections: list[Rejection] = []
        with self._transaction():
            is_bulk = self._check_fence(batch.fence)
            for events in tables:
                write = self._append if is_bulk else partial(self._merge, replays=batch.replays)
                applied += write(self._statements[events.table], events, rejections)
            for (topic, partition), next_offset in sorted(batch.next_offsets.items()):
                self._execute(
                    "insert into lockstep.applied_offset as known (view_schema, generation, topic, partition, next_offset) "
                    "values (:view_schema, :generation, :topic, :partition, :next_offset) "
                    "on conflict (view_schema, generation, topic, partition) do update "
                    "set next_offset = greatest(known.next_offset, excluded.next_offset), applied_at = now()",
                    topic=topic,
                    partition=partition,
                    next_offset=next_offset,
                )
        return Outcome(applied, sum(map(len, tables)) - applied - len(rejections), rejections)

    def load_progress(self) -> Progress | None:
        with self._transaction():
            if not self._has_bookkeeping():
                return None
            text = self._execute(
                "select document from lockstep.progress where view_schema = :view_schema and generation = :generation"
            ).scalar()
        return None if text is None else load_progress(text)

    def save_progress(self, progress: Progress) -> None:
        with self._transaction():
            self._check_fence(self._fence)
            self._execute(
                "insert into lockstep.progress "
                "(view_schema, generation, watermark_lsn, commit_time_ms, updated_at_ms, document) "
                "values (:view_schema, :generation, :watermark_lsn, :commit_time_ms, :updated_at_ms, :document) "
                "on conflict (view_schema, generation) do update set watermark_lsn = excluded.watermark_lsn, "
                "commit_time_ms = excluded.commit_time_ms, updated_at_ms = excluded.updated_at_ms, "
                "document = excluded.document",
                watermark_lsn=progress.watermark_lsn,
                commit_time_ms=progress.commit_time_ms,
                updated_at_ms=progress.updated_at_ms,
                document=dump_progress(progress).decode(),
            )

    def live_generation(self) -> int | None:
        with self._transaction():
            if not self._has_bookkeeping():
                return None
            live = self._execute("select live_generation from lockstep.sink where view_schema = :view_schema").scalar()
            # A view that is missing is shown again by the next prepare; one of something else is somebody's intention.
            for view in self._views_held(self._tables_of_all_generations()):
                if live is not None and view.generations != {int(live)}:
                    raise LockstepError(
                        f"view {view.name} reads generation {', '.join(map(str, sorted(view.generations)))}, "
                        f"generation {live} was made live",
                        hint="somebody replaced it by hand; switch to the generation that is meant to be live",
                    )
        return None if live is None else int(live)

    def generations(self) -> list[int]:
        with self._transaction():
            if not self._has_bookkeeping():
                return []
            rows: Iterable[Any] = self._execute(
                "select generation from lockstep.writer where view_schema = :view_schema order by generation"
            )
            return [int(row[0]) for row in rows]

    def switch(self) -> None:
        with self._transaction():
            if not self._has_bookkeeping():
                raise self._missing()
            self._execute("select 1 from lockstep.sink where view_schema = :view_schema for update")
            shapes = self._load_shapes()
            if not shapes:
                raise self._missing()
            if self._is_bulk("for share"):
                raise LockstepError(
                    f"generation {self._generation} is still being loaded in bulk",
                    hint="switch when its load has ended",
                )
            self._show(shapes)
            self._execute("update lockstep.sink set live_generation = :generation where view_schema = :view_schema")

    def keep_only(self, tables: Collection[TableName]) -> list[TableName]:
        with self._transaction():
            if not self._has_bookkeeping():
                return []
            live = self._execute(
                "select live_generation from lockstep.sink where view_schema = :view_schema for update"
            ).scalar()
            others = sorted(self._load_shapes().keys() - set(tables))
            if live == self._generation:
                # One that reads something else too is somebody's own: then the server refuses to drop the table.
                views = [view for view in self._views_held(others) if view.generations == {self._generation}]
                self._hold(views)
                for view in views:
                    self._run(f"drop view {view.name}")
            for name in others:
                self._run(f"drop table {_target(self._schema, name)}")
                self._execute(
                    "delete from lockstep.prepared_table where view_schema = :view_schema and generation = :generation "
                    "and source_schema = :source_schema and source_table = :source_table",
                    source_schema=name.schema,
                    source_table=name.name,
                )
        self._disconnect()  # staging tables are like those that are gone
        return others

    def drop(self) -> None:
        with self._transaction():
            if not self._has_bookkeeping():
                return
            live = self._execute(
                "select live_generation from lockstep.sink where view_schema = :view_schema for update"
            ).scalar()
            if live == self._generation:
                raise LockstepError(
                    f"generation {self._generation} is live",
                    hint="switch to another generation before you drop this one",
                )
            self._run(f"drop schema if exists {quote_identifier(self._schema)} cascade")
            for bookkeeping in ("writer", "prepared_table", "applied_offset", "progress"):
                self._execute(
                    f"delete from lockstep.{bookkeeping} where view_schema = :view_schema and generation = :generation"
                )
            self._execute(
                "delete from lockstep.note where view_schema = :view_schema and starts_with(name, :beginning)",
                beginning=f"g{self._generation}.",
            )
        self._disconnect()

    def load_note(self, name: str) -> str | None:
        with self._transaction():
            if not self._has_bookkeeping():
                return None
            note = self._execute(
                "select note from lockstep.note where view_schema = :view_schema and name = :name", name=name
            ).scalar()
        return None if note is None else str(note)

    def save_note(self, name: str, text: str | None) -> None:
        from migrations.warehouse import upgrade

        with self._transaction() as connection:
            if not self._has_bookkeeping():
                upgrade(connection)
            if text is None:
                self._execute("delete from lockstep.note where view_schema = :view_schema and name = :name", name=name)
            else:
                self._execute(
                    "insert into lockstep.note (view_schema, name, note) values (:view_schema, :name, :note) "
                    "on conflict (view_schema, name) do update set note = excluded.note, updated_at = now()",
                    name=name,
                    note=text,
                )

    def create_note(self, name: str, text: str) -> bool:
        from migrations.warehouse import upgrade

        with self._transaction() as connection:
            if not self._has_bookkeeping():
                upgrade(connection)
            created = self._execute(
                "insert into lockstep.note (view_schema, name, note) values (:view_schema, :name, :note) "
                "on conflict (view_schema, name) do nothing",
                name=name,
                note=text,
            )
            return bool(created.rowcount)

    def scan(self, table: Table) -> Iterator[StoredRow]:
        stored = _stored_row(table)
        names = [column.name for column in table.columns]
        selection = _live_rows(_target(self._schema, table.name), [TAG_COLUMN, *names])
        # A connection of its own: the caller may apply a batch between two rows, and may take its time.
        with self._translated(), self._open() as connection, connection.begin():
            connection.exec_driver_sql("set local idle_in_transaction_session_timeout = 0")
            driver: Any = connection.connection.driver_connection
            # COPY prints values as they were read; a cast to text would print a boolean in another way.
            with driver.cursor() as cursor, cursor.copy(f"copy ({selection}) to stdout") as copy:
                for line in _lines(copy):
                    yield stored(cast("tuple[bytes | None, ...]", split_row(line)))

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        texts = list(dict.fromkeys(tuple(_text(key[name]) for name in table.key) for key in keys))
        if not texts:
            return
        query = _rows_by_key_sql(_target(self._schema, table.name), table)
        with self._transaction() as connection:
            driver: Any = connection.connection.driver_connection
            with driver.cursor() as cursor:
                cursor.execute(query, [list(column) for column in zip(*texts, strict=True)])
                # The texts as the server sent them: the same as COPY's, and nothing that the driver made of them.
                result = cursor.pgresult
                found = [
                    tuple(result.get_value(number, field) for field in range(result.nfields))
                    for number in range(result.ntuples)
                ]
        yield from map(_stored_row(table), found)

    def close(self) -> None:
        self._disconnect()
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _merge(
        self, statements: _Statements, events: TableEvents, rejections: list[Rejection], *, replays: bool
    ) -> int:
        """How many of the events won over what is there."""
        merge = statements.merge_again if replays else statements.merge

        def write(portion: TableEvents) -> int:
            if len(portion) < len(events):
                self._run(statements.empty_staging)  # the commit does it else
            self._copy(statements.copy, statements, portion)
            return int(self._run(merge).rowcount)

        return self._in_halves(write, events, rejections)

    def _append(self, statements: _Statements, events: TableEvents, rejections: list[Rejection]) -> int:
        """How many of the events stand in the table now, in which a key may have several rows until ``end_bulk``."""

        def write(portion: TableEvents) -> int:
            self._copy(statements.append, statements, portion)
            return len(portion)

        return self._in_halves(write, self._indexable(statements, events, rejections), rejections)

    def _indexable(self, statements: _Statements, events: TableEvents, rejections: list[Rejection]) -> TableEvents:
        """The events without those whose key is too long for an index, which nothing else would find out before the end."""
        long = statements.with_long_keys(events)
        if not long:
            return events

        def write(portion: TableEvents) -> int:
            self._run(statements.create_probe)
            self._copy(statements.copy_probe, statements, portion)
            self._run(statements.drop_probe)
            return len(portion)

        refused: list[Rejection] = []
        self._in_halves(write, events.select(long), refused)
        rejections += refused
        refused_keys = [rejection.event.key for rejection in refused]
        gone = {place for place in long if events[place].key in refused_keys}
        return events.select([place for place in range(len(events)) if place not in gone])

    def _in_halves(self, write: Callable[[TableEvents], int], events: TableEvents, rejections: list[Rejection]) -> int:
        """The sum of what ``write`` returns. One bad row fails the whole COPY, so halves are tried until it stands alone.

        k bad rows among n cost about 2 k log n further attempts.
        """
        savepoint = self._connected().begin_nested()
        try:
            written = write(events)
        except self._driver_errors() as error:
            if not _state(error).startswith(_ROW_CLASSES):
                raise
            savepoint.rollback()
            if len(events) == 1:
                rejections.append(Rejection(events[0], _reason(error)))
                return 0
        else:
            savepoint.commit()
            return written
        middle = len(events) // 2
        first = self._in_halves(write, events[:middle], rejections)
        return first + self._in_halves(write, events[middle:], rejections)

    def _copy(self, into: str, statements: _Statements, events: TableEvents) -> None:
        driver: Any = self._connected().connection.driver_connection
        with driver.cursor() as cursor, cursor.copy(into) as copy:
            lines = statements.lines(events)
            while block := "".join(islice(lines, _COPY_LINES)):
                copy.write(block)

    def _stage_for(self, names: Sequence[TableName]) -> None:
        """Look at these tables as they are now and make a staging table for each, for as long as the connection lasts."""
        if not names:
            return
        made = {}
        with self._transaction():
            if not self._has_bookkeeping():
                raise self._missing()
            shapes = self._load_shapes()
            for name in names:
                if name not in shapes:
                    raise unprepared(name)
                self._stagings += 1
                made[name] = _Statements(self._schema, shapes[name], f"lockstep_staging_{self._stagings}")
                self._run(made[name].create_staging)
        self._statements.update(made)

    def _build(self, shape: Shape, known: Shape | None, added: Mapping[str, JsonValue]) -> None:
        """Make a table, or the columns that it lacks; those of ``added`` have these values in the rows that are there."""
        if known is None:
            self._run(create_table_sql(self._schema, shape))
        else:
            create_table_sql(self._schema, shape)  # refuses the same names
            alter = f"alter table {_target(self._schema, shape.table.name)}"
            steps = known.steps_to(shape)
            for old, new in steps.renamed.items():
                self._run(f"{alter} rename column {quote_identifier(old)} to {quote_identifier(new)}")
            for column in steps.added:
                name, value = quote_identifier(column.name), added.get(column.name)
                add = f"{alter} add column if not exists {name} {column_type(column)}"
                if value is None:
                    self._run(add)
                else:
                    # A change of the catalogue alone, however many rows there are, and later rows say themselves what they have.
                    self._run(f"{add} default {_literal(value)}::{column_type(column)}")
                    self._run(f"{alter} alter column {name} drop default")
        self._execute(
            "insert into lockstep.prepared_table (view_schema, generation, source_schema, source_table, shape) "
            "values (:view_schema, :generation, :source_schema, :source_table, :shape) "
            "on conflict (view_schema, generation, source_schema, source_table) do update set shape = excluded.shape",
            source_schema=shape.table.name.schema,
            source_table=shape.table.name.name,
            shape=shape.to_json(),
        )

    def _next_shape(self, held: Shape, table: Table) -> Shape:
        return held.follow(table) if self._settings.schema_changes == "follow" else held.evolve(table)

    def _drop_columns(self, shape: Shape, known: Shape) -> None:
        for name in known.steps_to(shape).dropped:
            self._run(f"alter table {_target(self._schema, shape.table.name)} drop column {quote_identifier(name)}")

    def _rename_in_view(self, name: TableName, renamed: Mapping[str, str]) -> None:
        """So that the view, with its grants and what others built on it, stays the same one."""
        for view in self._views_held([name]):
            for old, new in renamed.items():
                if old in view.columns:
                    self._run(
                        f"alter view {view.name} rename column {quote_identifier(old)} to {quote_identifier(new)}"
                    )

    def _show(self, shapes: Mapping[TableName, Shape]) -> None:
        """Point the views at this generation; tables that it doesn't have lose theirs."""
        self._create_schema(self._views)
        held = {view.table: view for view in self._views_held({*shapes, *self._tables_of_all_generations()})}
        gone = [view for name, view in held.items() if name not in shapes]
        made = {name: shape for name, shape in shapes.items() if not self._shows(held.get(name), shape)}
        self._hold([*gone, *(held[name] for name in made if name in held)])
        for view in gone:
            self._run(f"drop view {view.name}")
        for name, shape in sorted(made.items()):
            self._make_view(name, shape, held.get(name))

    def _make_view(self, name: TableName, shape: Shape, old: "_View | None") -> None:
        view = self._view_name(name)
        options = f" with ({', '.join(old.options)})" if old is not None and old.options else ""
        query = _live_rows(_target(self._schema, name), [column.name for column in shape.columns])
        savepoint = self._connected().begin_nested()
        try:
            self._run(f"create or replace view {view}{options} as {query}")
        except self._driver_errors() as error:
            savepoint.rollback()
            if _state(error) != "42P16":
                raise
            # Columns in another order or of another type can't be replaced in place.
            grants = self._grants(name, shape)
            self._run(f"drop view {view}")
            self._run(f"create view {view}{options} as {query}")
            for grant in grants:
                self._run(grant)
        else:
            savepoint.commit()

    def _shows(self, view: "_View | None", shape: Shape) -> bool:
        return (
            view is not None
            and view.generations == {self._generation}
            and view.columns == tuple(column.name for column in shape.columns)
        )

    def _grants(self, name: TableName, shape: Shape) -> list[str]:
        """What others may do with a view and with those of its columns that stay, as statements."""
        rows: Iterable[Any] = self._execute(
            "with view as (select c.oid, c.relowner, c.relacl from pg_class c join pg_namespace n on n.oid = c.relnamespace "
            "where n.nspname = :view_schema and c.relname = :name), "
            "acl as (select null::text as column_name, relowner, (aclexplode(relacl)).* from view "
            "union all select a.attname::text, relowner, (aclexplode(a.attacl)).* from view join pg_attribute a "
            "on a.attrelid = view.oid and a.attnum > 0 and not a.attisdropped) "
            "select column_name, privilege_type, is_grantable, case grantee when 0 then null else pg_get_userbyid(grantee) end "
            "from acl where grantee <> relowner",
            name=warehouse_name(name),
        )
        stay = {column.name for column in shape.columns}
        return [
            f"grant {privilege}{'' if of_column is None else f' ({quote_identifier(of_column)})'} on {self._view_name(name)} "
            f"to {'public' if grantee is None else quote_identifier(grantee)}{' with grant option' if may_grant else ''}"
            for of_column, privilege, may_grant, grantee in rows
            if of_column is None or of_column in stay
        ]

    def _views_held(self, names: Iterable[TableName]) -> list["_View"]:
        """The views of these tables, as they are. Raises LockstepError where something else has a view's name."""
        known = {warehouse_name(name): name for name in names}
        rows: Iterable[Any] = self._execute(
            "select c.relname, c.relkind::text, pg_get_userbyid(c.relowner), coalesce(c.reloptions, '{}'), "
            "array(select a.attname::text from pg_attribute a "
            "where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum), "
            "array(select distinct tn.nspname::text from pg_rewrite r "
            "join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid "
            "and d.refclassid = 'pg_class'::regclass and d.refobjid <> c.oid "
            "join pg_class t on t.oid = d.refobjid join pg_namespace tn on tn.oid = t.relnamespace where r.ev_class = c.oid) "
            "from pg_class c join pg_namespace n on n.oid = c.relnamespace "
            "where n.nspname = :view_schema and c.relname = any(:names) order by c.relname",
            names=list(known),
        )
        views = []
        for relation, kind, owner, options, columns, schemas in rows:
            name = self._view_name(known[relation])
            ours = [self._generation_schema.fullmatch(schema) for schema in schemas]
            generations = frozenset(int(match["generation"]) for match in ours if match is not None)
            if kind != "v" or not ours or None in ours:
                what = "a view of something else" if kind == "v" else "no view"
                raise LockstepError(
                    f"{name}, the view by which readers find this sink's live rows of {known[relation]}, is {what} now",
                    hint="somebody replaced it: rename or remove what is there, then try again; nothing was changed",
                )
            views.append(_View(known[relation], name, owner, tuple(options), tuple(columns), generations))
        return views

    def _hold(self, views: Sequence["_View"]) -> None:
        """Lock these views against readers until the transaction ends; raise Unavailable when they are read for too long.

        A reader that waits for one of these views while it holds another would make a deadlock with us, and the server ends
        one of both once that has lasted for ``deadlock_timeout``. So what we wait for long is the first lock alone; who is in
        the way of another one gets everything back at once, and that view is the first of the next attempt.
        """
        deadline = time.monotonic() + self._settings.lock_timeout_s
        pending = list(views)
        while pending:
            blocked = self._try_to_hold(pending, deadline)
            if blocked is None:
                break
            pending = [blocked, *(view for view in pending if view is not blocked)]
        self._run(f"set local lock_timeout = {self._lock_timeout_ms}")

    def _try_to_hold(self, views: Sequence["_View"], deadline: float) -> "_View | None":
        """Lock all or none. Returns the view that something else holds, or raises Unavailable after the deadline."""
        savepoint = self._connected().begin_nested()
        for number, view in enumerate(views):
            wait_ms = _SECOND_LOCK_MS if number else min(_FIRST_LOCK_MS, self._lock_timeout_ms)
            try:
                # Changes nothing. LOCK TABLE would lock what the view reads, too, and so wait for whole batches.
                self._run(
                    f"set local lock_timeout = {wait_ms}; "
                    f"alter view if exists {view.name} owner to {quote_identifier(view.owner)}"
                )
            except self._driver_errors() as error:
                savepoint.rollback()
                if _state(error) != _LOCK_NOT_AVAILABLE or time.monotonic() >= deadline:
                    raise
                return view
        savepoint.commit()
        return None

    def _view_name(self, name: TableName) -> str:
        return f"{quote_identifier(self._views)}.{quote_identifier(warehouse_name(name))}"

    def _tables_of_all_generations(self) -> set[TableName]:
        rows: Iterable[Any] = self._execute(
            "select distinct source_schema, source_table from lockstep.prepared_table where view_schema = :view_schema"
        )
        return {TableName(row[0], row[1]) for row in rows}

    def _create_schema(self, schema: str) -> None:
        # "create schema if not exists" asks for the right to create schemas even where it exists.
        if self._execute("select to_regnamespace(:name) is null", name=quote_identifier(schema)).scalar():
            self._run(f"create schema {quote_identifier(schema)}")

    def _is_bulk(self, lock: str) -> bool | None:
        """Whether this generation is loaded in bulk, held like that with the lock; None when it doesn't exist."""
        is_bulk = self._execute(
            f"select is_bulk from lockstep.writer where view_schema = :view_schema and generation = :generation {lock}"
        ).scalar()
        return None if is_bulk is None else bool(is_bulk)

    def _set_bulk(self, is_bulk: bool) -> None:
        self._execute(
            "update lockstep.writer set is_bulk = :is_bulk where view_schema = :view_schema and generation = :generation",
            is_bulk=is_bulk,
        )

    def _has_rows(self, table: str) -> bool:
        return bool(self._run(f"select exists (select from {table})").scalar())

    def _drop_key(self, table: str) -> None:
        name = self._execute(
            "select conname from pg_constraint where conrelid = to_regclass(:relation) and contype = 'p'",
            relation=table,
        ).scalar()
        if name is not None:
            self._run(f"alter table {table} drop constraint {quote_identifier(name)}")

    def _add_key(self, shape: Shape, spare: str) -> None:
        """Give a table its primary key back, of each row the newest version first. ``spare`` is a free name for a table."""
        table = _target(self._schema, shape.table.name)
        key = _names(shape.table.key)
        add_key = f"alter table {table} add primary key ({key})"
        # Mostly the topic had been compacted and there is nothing to clear up: then building the index finds that out best.
        savepoint = self._connected().begin_nested()
        try:
            self._run(add_key)
        except self._driver_errors() as error:
            savepoint.rollback()
            if _state(error) != _UNIQUE_VIOLATION:
                raise
            stored = _names([*(column.name for column in shape.columns), TAG_COLUMN, DELETED_COLUMN])
            # Written anew rather than deleted from, which would leave a table of holes.
            self._run(f"create table {spare} (like {table})")
            self._run(
                f"insert into {spare} ({stored}) select distinct on ({key}) {stored} from {table} "
                f"order by {key}, {quote_identifier(TAG_COLUMN)} desc"
            )
            self._run(f"drop table {table}")
            self._run(f"alter table {spare} rename to {quote_identifier(warehouse_name(shape.table.name))}")
            self._run(add_key)
        else:
            savepoint.commit()

    def _load_shapes(self) -> dict[TableName, Shape]:
        rows: Iterable[Any] = self._execute(
            "select source_schema, source_table, shape from lockstep.prepared_table "
            "where view_schema = :view_schema and generation = :generation"
        )
        return {TableName(row[0], row[1]): Shape.from_json(row[2]) for row in rows}

    def _check_fence(self, fence: int) -> bool:
        """Hold the right to write until the transaction ends. Raises Fenced when another job has it.

        Returns whether the generation is loaded in bulk, which stays so as long.
        """
        held = self._execute(
            "select is_bulk from lockstep.writer where view_schema = :view_schema and generation = :generation and fence = :fence for share",
            fence=fence,
        ).scalar()
        if held is None:
            known = self._execute(
                "select 1 from lockstep.writer where view_schema = :view_schema and generation = :generation"
            )
            if known.scalar() is None:
                raise self._missing()
            raise Fenced(
                f"another job has become the writer of sink {self._name!r}, generation {self._generation}",
                hint="stop one of the two jobs",
            )
        return bool(held)

    def _has_bookkeeping(self) -> bool:
        # The newest of its tables.
        return bool(self._execute("select to_regclass('lockstep.note') is not null").scalar())

    def _missing(self) -> LockstepError:
        return LockstepError(
            f"generation {self._generation} of sink {self._name!r} doesn't exist",
            hint="it was never prepared, or it was dropped",
        )

    def _execute(self, query: str, **values: object) -> "CursorResult[Any]":
        """A statement on the bookkeeping, with ``:view_schema`` and ``:generation`` bound."""
        from sqlalchemy import text

        return self._connected().execute(
            text(query), {"view_schema": self._views, "generation": self._generation, **values}
        )

    def _run(self, statement: str) -> "CursorResult[Any]":
        """A statement with identifiers of the source in it, in which no character is a placeholder."""
        return self._connected().exec_driver_sql(statement, execution_options={"no_parameters": True})

    @contextmanager
    def _transaction(self) -> "Iterator[Connection]":
        from sqlalchemy import text

        with self._translated():
            if self._connection is None:
                self._connection = self._open()
            with self._connection.begin():
                self._connection.execute(text(f"set local lock_timeout = {self._lock_timeout_ms}"))
                yield self._connection

    def _connected(self) -> "Connection":
        assert self._connection is not None, "only inside a transaction"
        return self._connection

    def _disconnect(self) -> None:
        self._statements.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> "Connection":
        if self._engine is None:
            self._engine = _engine(self._settings)
        return self._engine.connect()

    def _driver_errors(self) -> tuple[type[Exception], ...]:
        """SQLAlchemy wraps what it executes itself; COPY goes past it and raises the driver's own error."""
        from sqlalchemy.exc import DBAPIError

        return (DBAPIError,) if self._engine is None else (DBAPIError, self._engine.dialect.loaded_dbapi.Error)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The database's errors as ours."""
        if self._engine is None:
            self._engine = _engine(self._settings)
        try:
            yield
        except self._driver_errors() as error:
            translated = _translate(error)
            if isinstance(translated, Unavailable):
                self._disconnect()
            raise translated from error


def _engine(settings: WarehouseSettings) -> "Engine":
    from sqlalchemy import create_engine, event, make_url
    from sqlalchemy.exc import ArgumentError
    from sqlalchemy.pool import NullPool

    try:
        url = make_url(settings.url.get_secret_value())
    except ArgumentError as error:
        raise ConfigurationError(
            "the warehouse's address isn't an SQLAlchemy URL", hint="postgresql+psycopg://user@host:5432/database"
        ) from error
    if url.get_backend_name() != "postgresql":
        raise ConfigurationError(
            f"no warehouse sink for {url.get_backend_name()!r}",
            hint="use an address that begins with postgresql+psycopg://",
        )
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    if settings.login.user is not None:
        url = url.set(username=settings.login.user)
    password = settings.login.read_password()
    if password is not None:
        url = url.set(password=password)
    connect: dict[str, Any] = {"connect_timeout": settings.connect_timeout_s, "application_name": "lockstep"}
    if settings.tls is not None:
        tls = settings.tls
        connect["sslmode"] = "verify-full" if tls.verify else "require"
        if tls.ca_file is not None:
            connect["sslrootcert"] = str(tls.ca_file)
        elif tls.verify:
            connect["sslrootcert"] = "system"
        if tls.certificate_file is not None:
            connect["sslcert"] = str(tls.certificate_file)
        if tls.key_file is not None:
            connect["sslkey"] = str(tls.key_file)
    # hide_parameters: an error's text must not hold values.
    engine = create_engine(url, poolclass=NullPool, connect_args=connect, hide_parameters=True)
    session = {
        **SESSION_SETTINGS,
        "idle_in_transaction_session_timeout": str(int(settings.idle_in_transaction_timeout_s * 1000)),
    }

    def pin(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            for name, value in session.items():
                cursor.execute("select set_config(%s, %s, false)", (name, value))
        connection.commit()

    event.listen(engine, "connect", pin)
    return engine


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of COPY's output without their newlines, wherever its blocks end."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + bytes(block)).split(b"\n")
        yield from lines


def _stored_row(table: Table) -> Callable[[Sequence[bytes | None]], StoredRow]:
    """A reader of rows of texts: the tag, then the table's columns."""
    names = [column.name for column in table.columns]
    encoders = [json_encoder(_stored_type(column), column.is_array) for column in table.columns]

    def read(texts: Sequence[bytes | None]) -> StoredRow:
        tag, *values = texts
        assert tag is not None
        row: dict[str, JsonValue] = {
            name: None if value is None else orjson.loads(encode(value))
            for name, encode, value in zip(names, encoders, values, strict=True)
        }
        return StoredRow({name: row[name] for name in table.key}, row, tag.decode())

    return read


def _rows_by_key_sql(target: str, table: Table) -> str:
    """Live rows of keys; a parameter per key column, each a list of the values' texts."""

    def quoted(name: str) -> str:
        return quote_identifier(name).replace("%", "%%")

    selection = ", ".join(f"held.{quoted(name)}" for name in [TAG_COLUMN, *(column.name for column in table.columns)])
    wanted = [f"k{number}" for number in range(len(table.key))]
    matches = " and ".join(
        f"held.{quoted(column.name)} = wanted.{given}::{column_type(column)}"
        for given, column in zip(wanted, table.key_columns, strict=True)
    )
    return (
        f"select {selection} from {target.replace('%', '%%')} as held "
        f"join unnest({', '.join('%s::text[]' for _ in wanted)}) as wanted ({', '.join(wanted)}) on {matches} "
        f"where not held.{quoted(DELETED_COLUMN)}"
    )


def _length(value: JsonValue) -> int:
    return len(value) if isinstance(value, str) else 0 if not isinstance(value, list) else len(array_literal(value))


def _name_beside(taken: Iterable[str]) -> str:
    """A table's name that none of these is."""
    names = set(taken)
    return next(name for name in (f"lockstep_bulk_{number}" for number in count()) if name not in names)


def _text(value: JsonValue) -> str:
    """A value as PostgreSQL reads it."""
    return array_literal(value) if isinstance(value, list) else plain_text(value)


def _literal(value: JsonValue) -> str:
    """A value as a constant of SQL, whatever ``standard_conforming_strings`` says."""
    return "E'" + _text(value).replace("\\", "\\\\").replace("'", "''") + "'"


def _live_rows(target: str, columns: Sequence[str]) -> str:
    return f"select {_names(columns)} from {target} where not {quote_identifier(DELETED_COLUMN)}"


def _target(schema: str, name: TableName) -> str:
    return f"{quote_identifier(schema)}.{quote_identifier(warehouse_name(name))}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(quote_identifier(name) for name in names)


def _fitting(name: str, what: str) -> str:
    if len(name.encode()) > _IDENTIFIER_BYTES_MAX:
        raise LockstepError(
            f"{what}: the name {name!r} is longer than {_IDENTIFIER_BYTES_MAX} bytes, PostgreSQL would cut it",
            hint="choose a shorter schema for this sink, or leave the table out of its tables",
        )
    return name


def _check_names_differ(names: Iterable[TableName]) -> None:
    taken: dict[str, TableName] = {}
    for name in sorted(names):
        other = taken.setdefault(warehouse_name(name), name)
        if other != name:
            raise LockstepError(
                f"tables {other} and {name} would both be called {warehouse_name(name)!r} in the warehouse",
                hint="give one of them to another sink with another schema: set tables of both sinks",
            )


def _original(error: BaseException) -> BaseException:
    return getattr(error, "orig", None) or error


def _state(error: BaseException) -> str:
    return getattr(_original(error), "sqlstate", None) or ""


def _reason(error: BaseException) -> str:
    """Why a row was refused: SQLSTATE, its name, the column. The server's own text would hold the value."""
    original = _original(error)
    diagnostics: Any = getattr(original, "diag", None)
    column = getattr(diagnostics, "column_name", None)
    if column is None:
        found = _COPY_COLUMN.search(getattr(diagnostics, "context", None) or "")
        column = found["name"] if found else None
    where = "" if column is None else f" in column {column!r}"
    return f"{_state(error)} {type(original).__name__}{where}"


def _translate(error: BaseException) -> LockstepError:
    original = _original(error)
    state = _state(error)
    if not state:
        words = str(original)
        for sign, hint in _REFUSED_AT_THE_DOOR.items():
            if sign in words:
                return LockstepError(f"the warehouse refuses the connection: {words.strip()}", hint=hint)
        first_line = words.strip().splitlines()[0] if words.strip() else type(original).__name__
        return Unavailable(f"the warehouse doesn't answer: {first_line}", retry_after_s=_RETRY_AFTER_S)
    primary = getattr(getattr(original, "diag", None), "message_primary", None) or ""
    message = f"the warehouse refuses: {primary} ({state} {type(original).__name__})"
    if state.startswith(_ROW_CLASSES):  # the text of these may hold values
        message = f"the warehouse refuses: {_reason(error)}"
    if state.startswith(_PASSING):
        return Unavailable(message, retry_after_s=_RETRY_AFTER_S)
    hint_of = next((hint for sign, hint in _HINTS.items() if state.startswith(sign)), None)
    return LockstepError(message, hint=hint_of)
