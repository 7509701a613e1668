"""Reads rows of tables. Under a slot's exported snapshot, these are exactly those committed before its consistent
point."""

import contextlib
import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import pq, sql

from cdc.model.closing import Closing
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import Table, TableName, quote_identifier
from cdc.postgres.catalogue import FIRST_USER_OID, load_tables, row_filters
from cdc.postgres.connection import LOCK_TIMEOUT, connect, connection_error
from cdc.postgres.key_types import KeyType, key_types
from cdc.postgres.memberships import memberships
from cdc.postgres.settings import SourceSettings
from cdc.protocol.copy_text import split_row
from cdc.protocol.membership import Membership
from cdc.protocol.pgoutput import Fields
from cdc.readiness import wait_ready
from snapshot.keys import KeyTexts
from snapshot.ranges import ONLY, Part, Relation
from snapshot.row_events import Line

APPLICATION = "lockstep snapshot"

_WAIT_S: Final = 1.0
"""How long no row may come before ``while_waiting`` is called."""

_LINES_AT_ONCE: Final = 1000
_BYTES_AT_ONCE: Final = 256 * 1024
"""The limits of one list of rows: their number, and the bytes after which no further row is added."""

_NAMES_NONE: Final = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.WrongObjectType,
)
"""PostgreSQL's errors if no table has the name."""

# pg_partition_tree() would lock every partition until the transaction ends, and thousands don't fit the lock table.
_RELATIONS: Final = """
    with recursive root as (
        select c.oid, c.relkind from pg_class c where c.oid = to_regclass(%(name)s)
    ), tree(oid, relkind) as (
        select oid, relkind from root
        union all
        select c.oid, c.relkind from tree join pg_inherits i on i.inhparent = tree.oid and not i.inhdetachpending
        join pg_class c on c.oid = i.inhrelid where tree.relkind = 'p'
    )
    select format('%%I.%%I', n.nspname, c.relname), concat(c.oid, '.', c.relfilenode),
           case when a.amname = 'heap' then pg_relation_size(c.oid) / current_setting('block_size')::int end,
           case when c.relkind = 'r' then coalesce(pg_table_size(c.oid), 0) else 0 end,
           c.oid = root.oid or c.relkind = 'r' and has_table_privilege(c.oid, 'select')
               and has_schema_privilege(n.oid, 'usage') and not row_security_active(c.oid)
    from root cross join tree
    join pg_class c on c.oid = tree.oid
    join pg_namespace n on n.oid = c.relnamespace
    left join pg_am a on a.oid = c.relam
    where tree.relkind <> 'p' and (%(leaves)s::oid[] is null or c.oid = any(%(leaves)s::oid[]))
    order by c.oid
"""
"""Name, identity of its file, blocks if ctids count them, bytes with large values, and whether it can be read by
itself."""

_FILE_NOW: Final = """
    select concat(c.oid, '.', coalesce(pg_relation_filenode(c.oid), 0)) from (select to_regclass(%s)::oid as oid) c
"""
"""The same identity of a relation's present file, even inside a snapshot."""

_MOVED: Final = """
    select c.relname from pg_locks l join pg_class c on c.oid = l.relation
    where l.locktype = 'relation' and l.pid = pg_backend_pid() and c.relkind = 'r' and c.oid >= %s
      and c.relfilenode <> 0 and c.relfilenode is distinct from pg_relation_filenode(c.oid)
    limit 1
"""
"""A table that we hold locked whose file in the snapshot isn't the present one."""


@dataclass(frozen=True, slots=True)
class FoundKey:
    """A key that was looked up: its values in the order of the table's columns, None for the other columns. The values
    are the row's if there is one, else the given ones as PostgreSQL prints them."""

    fields: Fields
    has_row: bool


def _nothing() -> None:
    pass


class TableRefused(LockstepError):
    """Our role may not read the table, or a policy hides rows of it. That means nothing for any key."""


class TableLocked(Unavailable):
    """Others have locked the table, or wait to do so."""


class NoRoomForLocks(Unavailable):
    """One read needs more locks, for partitions and indexes, than the server has left."""


class TableMoved(Unavailable):
    """A table or a partition was emptied or rewritten after the snapshot, which may show it empty."""


class UnreadableKey(Exception):
    """A key isn't of the table's type, or can't be compared. Says which kind of error it was, never a value."""


class RowReader(Closing):
    """Reads the rows of tables over a connection that is in a transaction."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._filters: Mapping[TableName, str] = {}

    def tables(
        self,
        names: Sequence[TableName],
        publication: str,
        keys: Mapping[TableName, Sequence[str]] | None = None,
    ) -> dict[TableName, Table]:
        """The shapes as of the snapshot. From here on ``lines`` leaves out what the publication filters out."""
        self._filters = row_filters(self._connection, publication)
        return load_tables(self._connection, names, publication, keys)

    def memberships(self, publication: str, names: Sequence[TableName]) -> dict[TableName, Membership]:
        """What the tables were and how they were published, as of the snapshot."""
        return memberships(self._connection, publication, names)

    def _lock(self, sources: Iterable[str]) -> None:
        try:
            self._connection.execute(f"lock table {', '.join(sources)} in access share mode".encode())
        except _NAMES_NONE as error:  # names resolve as of now, even inside a snapshot
            raise Unavailable(f"a table was renamed, moved or dropped while the copy began: {error}") from error
        except psycopg.errors.LockNotAvailable as error:
            raise TableLocked(connection_error(error).message, retry_after_s=1.0) from error
        except psycopg.OperationalError as error:
            raise connection_error(error) from error

    def _lock_alone(self, relation: Relation | Part) -> None:
        """Keep a partition, or a table, as it is recorded until ``_let_go``. Only one is locked at a time, since
        thousands would exceed the server's locks. Raises TableLocked, and Unavailable if its file has changed: in an
        older snapshot, an emptied relation looks empty."""
        self._connection.execute("savepoint alone")
        self._lock([relation.sql])
        row = self._connection.execute(_FILE_NOW, (relation.sql.removeprefix(ONLY),)).fetchone()
        if row is None or row[0] != relation.storage:
            raise Unavailable(
                f"{relation.table}: {relation.sql.removeprefix(ONLY)} was emptied, rewritten or dropped while it was"
                " copied"
            )

    def _let_go(self) -> None:
        """Only a rollback ends locks within a transaction."""
        self._connection.execute("rollback to savepoint alone")
        self._connection.execute("release savepoint alone")

    def relations(self, table: Table, leaves: Sequence[int] = ()) -> list[Relation]:
        """What holds the table's rows: its partitions, at any depth, or itself. With ``leaves``, only these oids. It is
        the table as a whole if there is no partition, or one that our role may read only through the table."""
        asked = {"name": table.name.regclass, "leaves": list(leaves) or None}
        with refusals(table):
            found = self._connection.execute(_RELATIONS, asked).fetchall()
        is_readable = all(is_leaf_readable for *_, is_leaf_readable in found)
        if not found or not (is_readable or leaves):  # some of them can't be read through the table
            files = " ".join(sorted(storage for _, storage, *_ in found))
            storage = hashlib.sha256(files.encode()).hexdigest()[:16]
            return [Relation(table.name, table.name.sql, storage, None, sum(size for _, _, _, size, _ in found))]
        return [
            Relation(table.name, f"{ONLY}{name}", storage, blocks, size) for name, storage, blocks, size, _ in found
        ]

    def part(
        self, table: Table, part: Part, *, where: str = "", while_waiting: Callable[[], None] = _nothing
    ) -> Iterator[list[Line]]:
        """The rows of a part of a table, in lists as from ``lines``; ``where``: one more condition. Raises as
        ``lines``."""
        bounds = [
            f"ctid {comparison} '({block:d},0)'"
            for comparison, block in ((">=", part.first), ("<", part.end))
            if block is not None
        ]
        more = [f"({condition})" for condition in (self._filters.get(table.name), where) if condition]
        conditions = " and ".join([*bounds, *more])
        where = f" where {conditions}" if conditions else ""
        with refusals(table, whole=not part.is_alone):
            yield from copied_lines(self._connection, f"select {_columns(table)} from {part.sql}{where}", while_waiting)

    def estimated_rows(self, table: Table) -> int:
        """The planner's estimate, for the progress bar; 0 if the table was never analysed."""
        row = self._connection.execute(
            "select greatest(reltuples, 0)::bigint from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where n.nspname = %s and c.relname = %s",
            (table.name.schema, table.name.name),
        ).fetchone()
        return row[0] if row else 0

    def lines(
        self, table: Table, leaves: Sequence[int] = (), *, while_waiting: Callable[[], None] = _nothing
    ) -> Iterator[list[Line]]:
        """Every row, with its values in the order of the table's columns. The rows have no particular order.

        They come in lists of those that the server has sent by then. With ``leaves``, oids of partitions, only their
        rows. ``while_waiting`` is called now and then while no row comes, since a condition may leave out millions;
        what it raises ends the reading. Raises Unavailable if the connection is lost, and LockstepError if PostgreSQL
        refuses.
        """
        columns = _columns(table)
        for relation in self.relations(table, leaves):
            with refusals(table, whole=not relation.is_alone):
                if relation.is_alone:
                    self._lock_alone(relation)
                # Through a query: COPY of a table by name accepts neither a partitioned one nor a condition.
                yield from copied_lines(
                    self._connection, f"select {columns} from {relation.sql}{self._where(table)}", while_waiting
                )
                if relation.is_alone:
                    self._let_go()

    def find(
        self, table: Table, keys: Sequence[KeyTexts], *, while_waiting: Callable[[], None] = _nothing
    ) -> list[FoundKey]:
        """Which of these keys have a published row, in no particular order. Raises UnreadableKey if PostgreSQL can't
        read or compare one of them, NoRoomForLocks if fewer keys may work, TableRefused if we may not read the table,
        TableLocked if others have locked it or a partition of it, TableMoved, and as ``lines``."""
        wanted_sql, matches, rows_sql = self._wanted(table, keys)
        names = [quote_identifier(name) for name in table.key]
        values = ", ".join(f"coalesce(t.{name}, k.{name})" for name in names)
        query = f"select t.{names[0]} is not null, {values} from {wanted_sql} left join {rows_sql} on {matches}"
        indexes = [[column.name for column in table.columns].index(name) for name in table.key]
        found_keys = []
        try:
            # A savepoint keeps the snapshot usable after an error. Its end unlocks the partitions.
            with self._connection.transaction(force_rollback=True):
                for is_there, *key in copied_values(self._connection, query, while_waiting):
                    fields: list[Any] = [None] * len(table.columns)
                    for index, value in zip(indexes, key, strict=True):
                        fields[index] = value
                    found_keys.append(FoundKey(tuple(fields), is_there == b"t"))
                self._require_unmoved(table)
        except psycopg.errors.InsufficientPrivilege as error:
            raise TableRefused(connection_error(error).message) from error
        except psycopg.errors.LockNotAvailable as error:
            raise TableLocked(connection_error(error).message, retry_after_s=1.0) from error
        except psycopg.Error as error:
            if lacks_locks(error):
                raise no_room(table.name) from error
            refused = connection_error(error)
            if isinstance(error, psycopg.OperationalError) and isinstance(refused, Unavailable):
                raise refused from error
            raise UnreadableKey(type(error).__name__) from None
        return found_keys

    def rows_of(
        self, table: Table, keys: Sequence[KeyTexts], *, while_waiting: Callable[[], None] = _nothing
    ) -> Generator[Fields, None, None]:
        """The values of these keys' rows. ``find`` must have read the keys before. Raises NoRoomForLocks, before the
        first row, if fewer keys may work, TableMoved after the last one, and as ``lines``."""
        wanted_sql, matches, rows_sql = self._wanted(table, keys)
        columns = ", ".join(f"t.{quote_identifier(column.name)}" for column in table.columns)
        query = f"select {columns} from {wanted_sql} join {rows_sql} on {matches}"
        with refusals(table), self._connection.transaction(force_rollback=True):
            yield from copied_values(self._connection, query, while_waiting)
            self._require_unmoved(table)

    def _require_unmoved(self, table: Table) -> None:
        """Raises TableMoved if something that was read, and is locked since then, may have looked empty. A query locks
        partitions when it reads them, which is after the snapshot was taken."""
        moved = self._connection.execute(_MOVED, (FIRST_USER_OID,)).fetchone()
        if moved is not None:
            raise TableMoved(
                f"{table.name}: {moved[0]} was emptied or rewritten while keys of it were looked for", retry_after_s=1.0
            )

    def keys_where(self, table: Table, where: str, most: int) -> list[Fields]:
        """The keys of the rows for which this SQL holds, at most so many. Raises psycopg's errors."""
        names = ", ".join(quote_identifier(name) for name in table.key)
        source = self._source(table)
        return list(
            copied_values(self._connection, f"select {names} from {source} where ({where}) limit {most:d}", _nothing)
        )

    def _wanted(self, table: Table, keys: Sequence[KeyTexts]) -> tuple[str, str, str]:
        """(the keys in their types, as ``k``; how they match the table as ``t``; the rows that may match, as ``t``).
        Only conditions with constants exclude partitions while a query is planned. Excluded ones aren't locked."""
        oids = [column.type_oid for column in table.key_columns]
        types = key_types(self._connection, oids)
        names = [quote_identifier(name) for name in table.key]
        texts = [f"c{index}" for index in range(len(names))]
        casts = ", ".join(f"{text}::{kind.sql} as {name}" for text, kind, name in zip(texts, types, names, strict=True))
        literals = [
            [sql.Literal(text).as_string(self._connection) for text in column] for column in zip(*keys, strict=True)
        ]
        values = ", ".join(f"array[{', '.join(column)}]::text[]" for column in literals)
        matches = " and ".join(f"t.{name} {kind.equals} k.{name}" for name, kind in zip(names, types, strict=True))
        source = self._source(table)
        conditions = [self._filters.get(table.name, "")]
        if not source.startswith(ONLY):
            conditions.append(_any_of(table, names, types, literals))
        where = " and ".join(f"({condition})" for condition in conditions if condition)
        return (
            f"(select {casts} from unnest({values}) as texts({', '.join(texts)})) k",
            matches,
            f"(select * from {source}{f' where {where}' if where else ''}) t",
        )

    def _where(self, table: Table) -> str:
        condition = self._filters.get(table.name)
        return f" where {condition}" if condition else ""

    def _source(self, table: Table) -> str:
        """What to select from. Tables that inherit from an ordinary one are tables of their own."""
        partitioned = self._connection.execute(
            "select 1 from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where n.nspname = %s and c.relname = %s and c.relkind = 'p'",
            (table.name.schema, table.name.name),
        ).fetchone()
        return table.name.sql if partitioned else f"{ONLY}{table.name.sql}"

    def close(self) -> None:
        self._connection.close()


class SnapshotReader(RowReader):
    """A connection inside the snapshot. It must be opened while the slot's connection still runs nothing else. So must
    ``rest`` and ``hold`` be called, since they begin another transaction inside the snapshot."""

    def __init__(self, source: SourceSettings, snapshot_name: str) -> None:
        super().__init__(connect(source, application=APPLICATION))
        self._snapshot_name = snapshot_name
        self._held: Part | None = None
        try:
            self._connection.execute(LOCK_TIMEOUT)
            self._begin()
        except BaseException:
            self._connection.close()
            raise

    def _begin(self) -> None:
        self._connection.execute("begin transaction isolation level repeatable read, read only")
        self._connection.execute(f"set transaction snapshot '{self._snapshot_name}'".encode())  # the server's own name

    def rest(self) -> None:
        """Release the locks of all tables. Raises Unavailable, also if the snapshot is gone."""
        self._held = None
        try:
            self._connection.execute("rollback")
            self._begin()
        except psycopg.Error as error:
            raise Unavailable(f"the snapshot can't be read: {connection_error(error).message}") from error

    def hold(self, part: Part, membership_before: Membership, publication: str, other: psycopg.Connection[Any]) -> None:
        """Keep a part's table from being altered, and its partition as it is, until another part is held. All others
        are released. Raises as ``lock_unchanged``, TableLocked if it is locked, and Unavailable if the partition was
        emptied, rewritten or dropped."""
        if self._held is not None and self._held.table == part.table:
            if self._held.sql == part.sql:
                return
            self._let_go()
        else:
            self.rest()
            self.lock_unchanged({part.table: membership_before}, publication, other)
        self._held = None
        if part.is_alone:
            self._lock_alone(part)
        self._held = part

    def snapshot(self) -> str:
        """PostgreSQL's text of the snapshot: which transactions it shows."""
        return str(self._connection.execute("select pg_current_snapshot()::text").fetchall()[0][0])

    def next_xid(self) -> int:
        """The first transaction unknown to the snapshot, in 64 bits."""
        query = "select pg_snapshot_xmax(pg_current_snapshot())::text::int8"
        return int(self._connection.execute(query).fetchall()[0][0])

    def lock_unchanged(
        self, memberships_before: Mapping[TableName, Membership], publication: str, other: psycopg.Connection[Any]
    ) -> None:
        """Keep the tables from being altered until this is closed; writes to them go on.

        Their partitions aren't locked: altering them through the table locks the table first.

        A snapshot doesn't keep old columns readable, and shows a table as empty that was rewritten or truncated after
        it. So the tables are compared with what the ``other`` connection sees now. Raises Unavailable if they are
        locked or differ from ``memberships_before``, those of the snapshot.
        """
        self._lock(f"{ONLY}{name.sql}" for name in memberships_before)
        now = memberships(other, publication, list(memberships_before))
        altered = [
            str(name) for name, membership_before in memberships_before.items() if now.get(name) != membership_before
        ]
        if altered:
            raise Unavailable(f"{', '.join(altered)} changed while the copy began")

    def read_with(self, filters: Mapping[TableName, str]) -> None:
        """From here on ``part`` leaves out rows that don't meet these conditions."""
        self._filters = filters

    @property
    def filters(self) -> Mapping[TableName, str]:
        return self._filters


def copied_values(
    connection: psycopg.Connection[Any], query: str, while_waiting: Callable[[], None]
) -> Generator[Fields, None, None]:
    """``copied_lines`` as values."""
    for lines in copied_lines(connection, query, while_waiting):
        for line in lines:
            yield split_row(bytes(line)[:-1])


def copied_lines(
    connection: psycopg.Connection[Any], query: str, while_waiting: Callable[[], None]
) -> Generator[list[Line], None, None]:
    """The rows of a COPY. Raises psycopg's errors. Abandoning it in the middle ends the transaction. It uses libpq
    directly: PostgreSQL reports a COPY's start only with the first few kilobytes of rows, and psycopg would wait for
    that without calling ``while_waiting``."""
    pgconn = connection.pgconn
    try:
        pgconn.send_query(f"copy ({query}) to stdout".encode())
        while pgconn.flush():
            _wait(pgconn, while_waiting, writing=True)
        while pgconn.is_busy():
            _wait(pgconn, while_waiting)
        begun = pgconn.get_result()
        receive = pgconn.get_copy_data
        while begun is not None and begun.status == pq.ExecStatus.COPY_OUT:
            lines: list[Line] = []
            room = _BYTES_AT_ONCE
            size, line = receive(1)
            while size > 0:
                lines.append(line)
                room -= size
                if room <= 0 or len(lines) == _LINES_AT_ONCE:
                    break
                size, line = receive(1)
            if lines:
                yield lines
            if size == 0:
                _wait(pgconn, while_waiting)
            elif size < 0:
                begun = pgconn.get_result()
        error = None if begun is None or begun.status == pq.ExecStatus.COMMAND_OK else begun
        while pgconn.get_result() is not None:
            pass
        if error is not None:
            raise psycopg.errors.error_from_result(error)
    finally:
        if pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
            _leave(connection)


def _leave(connection: psycopg.Connection[Any]) -> None:
    """End an abandoned COPY, and with it the connection, whose transaction is useless now."""
    with contextlib.suppress(psycopg.Error):
        connection.cancel()
    connection.close()


def _wait(pgconn: pq.abc.PGconn, while_waiting: Callable[[], None], *, writing: bool = False) -> None:
    """Wait until the server sends something, or accepts more; calls ``while_waiting`` if that takes long."""
    if not wait_ready(pgconn.socket, _WAIT_S, writing=writing):
        while_waiting()
    pgconn.consume_input()


@contextlib.contextmanager
def refusals(table: Table, *, whole: bool = False) -> Iterator[None]:
    """psycopg's errors as ours, with the table's name. ``whole``: one statement reads all its partitions."""
    try:
        yield
    except psycopg.Error as error:
        if lacks_locks(error):
            if not whole:
                raise no_room(table.name) from error
            raise LockstepError(
                f"{table.name} can't be read: PostgreSQL has no room for the locks of all its partitions and indexes",
                hint="`lockstep doctor` says which max_locks_per_transaction the server needs. Or let our role read"
                " each partition: then it locks one at a time",
            ) from error
        refused = connection_error(error)
        if isinstance(refused, Unavailable):
            raise refused from error
        hint = refused.hint
        if isinstance(error, psycopg.errors.CharacterNotInRepertoire | psycopg.errors.UntranslatableCharacter):
            hint = (
                "is the database's encoding SQL_ASCII? Its text must be valid UTF-8: correct the row, then start again"
            )
        elif isinstance(error, psycopg.errors.ProgramLimitExceeded):
            hint = (
                "a row is larger than the 1 GB that PostgreSQL can send: correct it, or leave the column out with a"
                " column list of the publication (PostgreSQL 15 and later)"
            )
        raise LockstepError(f"{table.name} can't be read: {refused.message}", hint=hint) from error


def lacks_locks(error: psycopg.Error) -> bool:
    """Whether PostgreSQL's memory was too small for a lock."""
    return isinstance(error, psycopg.errors.OutOfMemory) and "max_locks_per_transaction" in str(error)


def no_room(name: TableName) -> NoRoomForLocks:
    return NoRoomForLocks(
        f"{name} can't be read now: PostgreSQL has no room for the locks of its partitions and indexes;"
        " `lockstep doctor` says which max_locks_per_transaction the server needs",
        retry_after_s=1.0,
    )


def _any_of(table: Table, names: Sequence[str], types: Sequence[KeyType], literals: Sequence[Sequence[str]]) -> str:
    """The condition that a row has one of these keys, by constants alone. Names and literals, by column, are SQL."""
    values = [[f"{literal}::{kind.sql}" for literal in column] for kind, column in zip(types, literals, strict=True)]
    if len(names) == 1 and not table.key_columns[0].is_array:
        return f"{names[0]} {types[0].equals} any(array[{', '.join(values[0])}])"
    # One condition per whole key: with hash partitioning by several columns, a list per column excludes nothing.
    equal = [
        [f"{name} {kind.equals} {value}" for value in column]
        for name, kind, column in zip(names, types, values, strict=True)
    ]
    return " or ".join(f"({' and '.join(key)})" for key in zip(*equal, strict=True))


def _columns(table: Table) -> str:
    return ", ".join(quote_identifier(column.name) for column in table.columns)
