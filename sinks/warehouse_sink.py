"""Rows as rows in a SQL warehouse: one table per source table and generation, read through views of the live rows.

=================================  =====================================================================
``shop_g1.orders``                 generation 1: the source's columns, ``_tag``, ``_deleted``
``shop.orders``                    view of the live generation's rows that aren't deleted
``lockstep.*``                     whose turn it is to write, what was applied, how far it is (``migrations.warehouse``)
=================================  =====================================================================

A batch is one transaction: check the fence, COPY into a staging table, merge by tag, store the offsets, commit. A writer that was
replaced finds another fence and is refused before it has written anything. Deleted rows stay with their key and tag, since without
the tag an older write would bring them back.

Columns have the source's types without modifiers, so no value that the source could hold is too long or too precise here. Types
with rules of their own that a warehouse may not share (enums, domains, money, xml, ``char(n)``, extensions) are ``text``. Columns that are
no key are nullable, whatever the source says: a deletion has the key only.

Tables of schema ``public`` keep their names, others are called ``schema__table``; two tables that would get the same name
are refused.

PostgreSQL is the one dialect so far.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from cdc.model.errors import ConfigurationError, Fenced, LockstepError, Unavailable
from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import Column, Table, TableName, quote_identifier
from cdc.protocol.copytext import split_row
from cdc.protocol.pgvalues import SESSION_SETTINGS, json_encoder
from sinks.access import Login, Tls
from sinks.copy_text import copy_line
from sinks.progress_json import dump_progress, load_progress
from sinks.shape import Shape, unknown_column, unprepared
from sinks.sink import Batch, Outcome, Progress, Rejection, StoredRow

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult, Engine

TAG_COLUMN: Final = "_tag"
DELETED_COLUMN: Final = "_deleted"

_IDENTIFIER_BYTES_MAX: Final = 63  # NAMEDATALEN - 1; PostgreSQL would cut longer names in silence
_COPY_CHARACTERS: Final = 256 * 1024  # per write: few calls, little memory

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
_RETRY_AFTER_S: Final = 1.0
_HINTS: Final = {
    "28": "check user and password of this sink",
    "3D": "create the database, or mend the address of this sink",
    "3F": "the schema was removed; restart the job, or build it anew: give the sink another name in lockstep.toml",
    "42501": "grant the sink's user CREATE on the database, and ownership of the schemas it made",
    "42P01": "a table or view was removed; restart the job, or build it anew: give the sink another name in lockstep.toml",
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
    over what the address says.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    type: Literal["warehouse"] = "warehouse"
    url: SecretStr
    schema_name: str | None = Field(None, alias="schema", min_length=1)
    tables: tuple[str, ...] = ()
    login: Login = Login()
    tls: Tls | None = None
    connect_timeout_s: int = Field(10, gt=0)
    lock_timeout_s: float = Field(5.0, gt=0)
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

    def line(self, event: RowEvent) -> str:
        """An event as a line of COPY. A deletion has its key and null for the rest, as has a row that lacks a column."""
        row = event.row
        held = event.key if row is None else row
        return copy_line([*map(held.get, self.columns), event.tag, row is None])

    def check_columns(self, event: RowEvent) -> None:
        """Raises LockstepError for a column that the table doesn't have."""
        for name in event.row or ():
            if name not in self.known:
                raise unknown_column(event.table, name)


class WarehouseSink:
    """Applies events to a PostgreSQL database. Connects at the first call, and again after a lost connection."""

    def __init__(self, name: str, settings: WarehouseSettings, generation: int) -> None:
        self._name = name
        self._settings = settings
        self._generation = generation
        self._views = _fitting(settings.schema_name or name, f"schema of sink {name!r}")
        self._schema = _fitting(f"{self._views}_g{generation}", f"schema of sink {name!r}")
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._statements: dict[TableName, _Statements] = {}
        self._stagings = 0
        self._fence = 0

    def prepare(self, tables: Sequence[Table]) -> None:
        from migrations.warehouse import upgrade

        with self._transaction() as connection:
            upgrade(connection)
            self._execute("insert into lockstep.sink (view_schema) values (:view_schema) on conflict do nothing")
            # One at a time: two jobs that start together would both create the same table.
            live = self._execute(
                "select live_generation from lockstep.sink where view_schema = :view_schema for update"
            ).scalar()
            shapes = self._load_shapes()
            known = dict(shapes)
            for table in tables:
                held = known.get(table.name)
                shapes[table.name] = Shape.of(table) if held is None else held.evolve(table)
            _check_names_differ(shapes)
            self._create_schema(self._schema)
            for name, shape in shapes.items():
                if shape != known.get(name):
                    self._build(shape, known.get(name))
            self._execute(
                "insert into lockstep.writer (view_schema, generation, fence) values (:view_schema, :generation, 0) on conflict do nothing"
            )
            if live is None:
                self._execute("update lockstep.sink set live_generation = :generation where view_schema = :view_schema")
            if live in (None, self._generation):
                self._show(shapes)
        self._disconnect()  # staging tables have the shapes of before

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

    def apply(self, batch: Batch) -> Outcome:
        by_table: dict[TableName, list[RowEvent]] = {}
        for event in batch.events:
            by_table.setdefault(event.table, []).append(event)
        # Always the same order of tables too, against deadlocks.
        names = sorted(by_table)
        self._stage_for(by_table)
        applied = 0
        rejections: list[Rejection] = []
        with self._transaction():
            self._check_fence(batch.fence)
            for name in names:
                applied += self._merge(self._statements[name], by_table[name], rejections)
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
        return Outcome(applied, len(batch.events) - applied - len(rejections), rejections)

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
        return None if live is None else int(live)

    def switch(self) -> None:
        with self._transaction():
            if not self._has_bookkeeping():
                raise self._missing()
            self._execute("select 1 from lockstep.sink where view_schema = :view_schema for update")
            shapes = self._load_shapes()
            if not shapes:
                raise self._missing()
            self._show(shapes)
            self._execute("update lockstep.sink set live_generation = :generation where view_schema = :view_schema")

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
        self._disconnect()

    def scan(self, table: Table) -> Iterator[StoredRow]:
        encoders = [json_encoder(_stored_type(column), column.is_array) for column in table.columns]
        names = [column.name for column in table.columns]
        selection = _live_rows(_target(self._schema, table.name), [TAG_COLUMN, *names])
        # A connection of its own: the caller may apply a batch between two rows, and may take its time.
        with self._translated(), self._open() as connection, connection.begin():
            connection.exec_driver_sql("set local idle_in_transaction_session_timeout = 0")
            driver: Any = connection.connection.driver_connection
            # COPY prints values as they were read; a cast to text would print a boolean in another way.
            with driver.cursor() as cursor, cursor.copy(f"copy ({selection}) to stdout") as copy:
                for line in _lines(copy):
                    tag, *values = split_row(line)
                    assert isinstance(tag, bytes)
                    row: dict[str, JsonValue] = {
                        name: None if value is None else orjson.loads(encode(cast("bytes", value)))
                        for name, encode, value in zip(names, encoders, values, strict=True)
                    }
                    yield StoredRow({name: row[name] for name in table.key}, row, tag.decode())

    def close(self) -> None:
        self._disconnect()
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _merge(self, statements: _Statements, events: Sequence[RowEvent], rejections: list[Rejection]) -> int:
        """How many of the events won. One bad row fails the whole COPY, so halves are tried until it stands alone.

        k bad rows among n cost about 2 k log n further attempts.
        """
        connection = self._connected()
        savepoint = connection.begin_nested()
        try:
            won = self._copy_and_merge(connection, statements, events)
        except self._driver_errors() as error:
            if not _state(error).startswith(_ROW_CLASSES):
                raise
            savepoint.rollback()
            if len(events) == 1:
                rejections.append(Rejection(events[0], _reason(error)))
                return 0
        else:
            savepoint.commit()
            return won
        middle = len(events) // 2
        won = self._merge(statements, events[:middle], rejections)
        self._run(statements.empty_staging)  # the commit does it else
        return won + self._merge(statements, events[middle:], rejections)

    def _copy_and_merge(self, connection: "Connection", statements: _Statements, events: Sequence[RowEvent]) -> int:
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy(statements.copy) as copy:
            lines: list[str] = []
            characters = 0
            for event in events:
                line = statements.line(event)
                lines.append(line)
                characters += len(line)
                if characters >= _COPY_CHARACTERS:
                    copy.write("".join(lines))
                    lines.clear()
                    characters = 0
            copy.write("".join(lines))
        return int(self._run(statements.merge).rowcount)

    def _stage_for(self, events: Mapping[TableName, Sequence[RowEvent]]) -> None:
        """A staging table for each table, made once per connection, and again when the table has got columns."""
        outdated = [name for name, of_table in events.items() if not self._fits(name, of_table)]
        if not outdated:
            return
        made = {}
        with self._transaction():
            if not self._has_bookkeeping():
                raise self._missing()
            shapes = self._load_shapes()
            for name in outdated:
                if name not in shapes:
                    raise unprepared(name)
                self._stagings += 1
                made[name] = _Statements(self._schema, shapes[name], f"lockstep_staging_{self._stagings}")
                self._run(made[name].create_staging)
        self._statements.update(made)
        for name in outdated:
            for event in events[name]:
                made[name].check_columns(event)

    def _fits(self, name: TableName, events: Sequence[RowEvent]) -> bool:
        statements = self._statements.get(name)
        return statements is not None and all(
            event.row is None or statements.known.issuperset(event.row) for event in events
        )

    def _build(self, shape: Shape, known: Shape | None) -> None:
        if known is None:
            self._run(create_table_sql(self._schema, shape))
        else:
            create_table_sql(self._schema, shape)  # refuses the same names
            for column in shape.columns[len(known.columns) :]:
                self._run(
                    f"alter table {_target(self._schema, shape.table.name)} "
                    f"add column if not exists {quote_identifier(column.name)} {column_type(column)}"
                )
        self._execute(
            "insert into lockstep.prepared_table (view_schema, generation, source_schema, source_table, shape) "
            "values (:view_schema, :generation, :source_schema, :source_table, :shape) "
            "on conflict (view_schema, generation, source_schema, source_table) do update set shape = excluded.shape",
            source_schema=shape.table.name.schema,
            source_table=shape.table.name.name,
            shape=shape.to_json(),
        )

    def _show(self, shapes: Mapping[TableName, Shape]) -> None:
        """Point the views at this generation; tables that it doesn't have lose theirs."""
        views = quote_identifier(self._views)
        self._create_schema(self._views)
        others: Sequence[Any] = self._execute(
            "select distinct source_schema, source_table from lockstep.prepared_table where view_schema = :view_schema"
        ).all()
        for other in others:
            name = TableName(other[0], other[1])
            if name not in shapes:
                gone = quote_identifier(warehouse_name(name))
                self._run(f"drop view if exists {views}.{gone}")
        for name, shape in sorted(shapes.items()):
            view = f"{views}.{quote_identifier(warehouse_name(name))}"
            query = _live_rows(_target(self._schema, name), [column.name for column in shape.columns])
            savepoint = self._connected().begin_nested()
            try:
                self._run(f"create or replace view {view} as {query}")
            except self._driver_errors() as error:
                savepoint.rollback()
                if _state(error) != "42P16":
                    raise
                # Columns in another order or of another type can't be replaced in place.
                self._run(f"drop view {view}")
                self._run(f"create view {view} as {query}")
            else:
                savepoint.commit()

    def _create_schema(self, schema: str) -> None:
        # "create schema if not exists" asks for the right to create schemas even where it exists.
        if self._execute("select to_regnamespace(:name) is null", name=quote_identifier(schema)).scalar():
            self._run(f"create schema {quote_identifier(schema)}")

    def _load_shapes(self) -> dict[TableName, Shape]:
        rows: Iterable[Any] = self._execute(
            "select source_schema, source_table, shape from lockstep.prepared_table "
            "where view_schema = :view_schema and generation = :generation"
        )
        return {TableName(row[0], row[1]): Shape.from_json(row[2]) for row in rows}

    def _check_fence(self, fence: int) -> None:
        """Hold the right to write until the transaction ends. Raises Fenced when another job has it."""
        held = self._execute(
            "select 1 from lockstep.writer where view_schema = :view_schema and generation = :generation and fence = :fence for share",
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

    def _has_bookkeeping(self) -> bool:
        return bool(self._execute("select to_regclass('lockstep.progress') is not null").scalar())

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
                timeout_ms = int(self._settings.lock_timeout_s * 1000)
                self._connection.execute(text(f"set local lock_timeout = {timeout_ms}"))
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
