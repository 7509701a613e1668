"""Reads chunks: each in a short transaction of its own, without a slot, and without waiting for other transactions."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

from cdc.model.errors import Unavailable
from cdc.model.lsn import Lsn, parse_lsn
from cdc.model.table import Table, TableName, quote_identifier
from cdc.postgres.catalogue import keys_can_swap
from cdc.postgres.connection import connect, connection_error
from cdc.postgres.key_types import KeyType, after_key, key_types
from cdc.postgres.settings import SourceSettings
from cdc.protocol.copy_text import split_row
from cdc.protocol.pgoutput import Field, Fields
from cdc.protocol.visibility import SourceSnapshot
from snapshot.chunks import BYTES_MAX
from snapshot.keys import KeyTexts
from snapshot.ranges import ONLY
from snapshot.table_reader import (
    APPLICATION,
    FoundKey,
    NoRoomForLocks,
    RowReader,
    TableMoved,
    UnreadableKey,
    copied_lines,
    lacks_locks,
    no_room,
    refusals,
)

_LOCK_TIMEOUT_MS: Final = 50
"""The stream stands still meanwhile."""

_POINT: Final = """
select pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, c.oid::bigint,
    (select coalesce(md5(string_agg(concat_ws(' ', a.attnum, a.xmin), ', ' order by a.attnum)), '')
     from pg_attribute a where a.attrelid = c.oid and a.attnum > 0)
from pg_class c where c.oid = to_regclass(%s)
"""

_HAS_ORDER: Final = """
with key as (
    select k.place, a.attnum, a.attcollation, a.attnotnull from unnest(%s::text[]) with ordinality as k(name, place)
    join pg_attribute a on a.attrelid = %s and a.attname = k.name and not a.attisdropped
), numbers as (
    select array_agg(attnum order by place) as columns, count(*)::int as count, bool_and(attnotnull) as not_null
    from key
)
select exists (
    select from pg_index i join pg_class x on x.oid = i.indexrelid join pg_am m on m.oid = x.relam, numbers
    where i.indrelid = %s and m.amname = 'btree' and i.indisvalid and i.indpred is null and numbers.not_null
      and (i.indkey::int2[])[0:numbers.count - 1] = numbers.columns
      and (select count(distinct o) = 1 and bool_and(o in (0, 3))
           from unnest((i.indoption::int2[])[0:numbers.count - 1]) o)
      and not exists (
          select from key join pg_opclass c on c.oid = (i.indclass::oid[])[key.place - 1]
          where not c.opcdefault or (i.indcollation::oid[])[key.place - 1] <> key.attcollation)
)
"""

_PARTITIONS: Final = """
with recursive tree(oid) as (
    select inhrelid from pg_inherits where inhparent = %s
    union all
    select i.inhrelid from tree join pg_inherits i on i.inhparent = tree.oid
)
select count(*) from tree join pg_class c on c.oid = tree.oid where c.relispartition
"""

_NOT_COMMITTING: Final = """
select backend_xid::text::bigint from pg_stat_activity
where backend_xid is not null
  and (state like 'idle in transaction%%' or wait_event_type in ('Client', 'Lock') or wait_event = 'PgSleep'
       or query_start > %s)
"""


PARTITIONS_MAX: Final = 256
"""How many partitions one query reads in key order: planning takes about a millisecond per ten."""


class Locked(Exception):
    """Somebody has locked the table, or another one of its publication, or has moved a partition meanwhile."""


class Gone(Exception):
    """No table has the name, or it isn't published."""


class NothingYet(Exception):
    """No row came in the time that a chunk has. There may be millions of dead ones before the next."""


class TooLarge(Exception):
    """The rows of several keys are larger than a chunk may be."""


class _Enough(Exception):
    """The time of a chunk is over."""


@dataclass(frozen=True, slots=True)
class Point:
    """What a snapshot of the source sees, all of it before ``lsn``. The table is locked against alterations.
    ``columns`` is a digest of when its columns were last altered."""

    snapshot: SourceSnapshot
    lsn: Lsn
    oid: int
    columns: str


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """How a table is read in the order of its key."""

    source: str
    names: Sequence[str]
    types: Sequence[KeyType]


@dataclass(frozen=True, slots=True)
class Range:
    """Rows in key order, up to the key ``last``; None: no rows follow them. ``is_cut``: there are fewer than requested,
    since they are large or took long."""

    lines: list[bytes]
    last: KeyTexts | None
    is_cut: bool = False


class ChunkReader(RowReader):
    """One connection, which is in no transaction between two chunks. ``while_waiting`` is called now and then while
    PostgreSQL takes its time."""

    def __init__(self, source: SourceSettings, while_waiting: Callable[[], None]) -> None:
        super().__init__(connect(source, application=APPLICATION))
        self._while_waiting = while_waiting
        self._connection.execute(f"set lock_timeout = {_LOCK_TIMEOUT_MS:d}")
        # Forces reading in key order by the index, whatever the statistics say: any other plan reads the whole table.
        for setting in ("enable_seqscan", "enable_bitmapscan", "enable_sort"):
            self._connection.execute(f"set {setting} = off")
        self._connection.execute("set max_parallel_workers_per_gather = 0")

    @property
    def is_closed(self) -> bool:
        return self._connection.closed

    @contextlib.contextmanager
    def at_point(self, name: TableName) -> Iterator[Point]:
        """A point of the source, for all reads of the table inside. The lock precedes the snapshot, so a change that
        altered or emptied the table is either visible or commits after the point.

        Partitions are locked when they are read. Raises Locked, also for a partition, NoRoomForLocks, and Gone. A
        question how a publication sends the table may raise Locked too, since PostgreSQL locks all tables of the
        publication for it.
        """
        execute = self._connection.execute
        try:
            try:
                execute("begin transaction isolation level repeatable read, read only")
                execute(f"lock table {ONLY}{name.sql} in access share mode".encode())
            except psycopg.errors.LockNotAvailable as error:
                raise Locked from error
            except (
                psycopg.errors.UndefinedTable,
                psycopg.errors.InvalidSchemaName,
                psycopg.errors.WrongObjectType,
            ) as error:
                raise Gone from error
            row = execute(_POINT, (name.regclass,)).fetchone()
            if row is None:
                raise Gone
            yield Point(SourceSnapshot.parse(row[0]), parse_lsn(row[1]), row[2], row[3])
        except psycopg.errors.LockNotAvailable as error:
            raise Locked from error
        except psycopg.OperationalError as error:
            raise (no_room(name) if lacks_locks(error) else connection_error(error)) from error
        except Unavailable as error:
            # From a partition, which is locked when it is read.
            if isinstance(error, TableMoved) or isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise Locked from error
            raise
        finally:
            if not self._connection.closed:
                with contextlib.suppress(psycopg.Error):
                    execute("rollback")

    def key_order(self, table: Table) -> KeyOrder | None:
        """How the table can be read in chunks. None if no index gives the order, or two rows may share a key. Also None
        if the publication leaves out key columns, so that what is sent doesn't identify a row, and for a table with
        many partitions: each chunk would open all of them, with their indexes."""
        if not table.key or not {column.name for column in table.columns}.issuperset(table.key):
            return None
        if keys_can_swap(self._connection, table):
            return None
        (partitions,) = self._connection.execute(_PARTITIONS, (table.oid,)).fetchall()[0]
        if partitions > PARTITIONS_MAX:
            return None
        row = self._connection.execute(_HAS_ORDER, (list(table.key), table.oid, table.oid)).fetchone()
        types = key_types(self._connection, [column.type_oid for column in table.key_columns])
        if row is None or not row[0] or len({kind.greater for kind in types}) > 1:
            return None
        return KeyOrder(self._source(table), [quote_identifier(column) for column in table.key], types)

    def rows_after(self, table: Table, order: KeyOrder, after: KeyTexts | None, *, rows: int, limit_s: float) -> Range:
        """The next rows of a table, limited in number, by a chunk's size and by time. Whatever the limits, there is at
        least one row, if any exists. Raises NothingYet if none came in time, and as ``lines``."""
        names = ", ".join(order.names)
        where = ""
        if after is not None:
            values = [
                f"{sql.Literal(text).as_string(self._connection)}::{kind.sql}"
                for text, kind in zip(after, order.types, strict=True)
            ]
            where = f" where {after_key(order.names, order.types, values)}"
        columns = ", ".join(quote_identifier(column.name) for column in table.columns)
        portion = f"from {order.source}{where} order by {names} limit {rows:d}"
        condition = self._filters.get(table.name)
        with refusals(table):
            if not condition:
                lines, is_all = self._some(f"select {columns} {portion}", limit_s)
                is_last = is_all and len(lines) < rows
                return Range(lines, None if is_last else _key(table, lines[-1]), is_cut=not is_all)
            # The last key of all rows that were read: of those that the publication sends, there may be none for long.
            backwards = ", ".join(f"{name} desc" for name in order.names)
            last, _ = self._some(
                f"select {names} from (select {names} {portion}) t order by {backwards} limit 1", limit_s
            )
            lines, is_all = self._some(f"select {columns} from (select * {portion}) t where ({condition})", limit_s)
            if not is_all:
                return Range(lines, _key(table, lines[-1]), is_cut=True)
            return Range(lines, tuple(map(_text, split_row(last[0][:-1]))) if last else None)

    def find_readable(
        self, table: Table, keys: Sequence[KeyTexts]
    ) -> tuple[list[FoundKey], list[tuple[KeyTexts, UnreadableKey]]]:
        """(those of these keys that PostgreSQL can read, the others). Raises as ``find``, and NoRoomForLocks if there
        is none even for one key."""
        try:
            return (self.find(table, keys, while_waiting=self._while_waiting) if keys else []), []
        except UnreadableKey as error:
            if len(keys) == 1:
                return [], [(keys[0], error)]
        except NoRoomForLocks:
            if len(keys) == 1:
                raise
        half = len(keys) // 2
        found, unreadable = self.find_readable(table, keys[:half])
        others, other_unreadable = self.find_readable(table, keys[half:])
        return found + others, unreadable + other_unreadable

    def not_committing(self, since: object) -> set[int]:
        """Transactions, by 32-bit xid, that hadn't begun to commit at this time of the server."""
        return {row[0] for row in self._connection.execute(_NOT_COMMITTING, (since,)).fetchall()}

    def running_now(self) -> tuple[object, frozenset[int]]:
        """(the server's time, the 64-bit xids of the running transactions). Something must have been committed just
        before, since newer transactions aren't listed."""
        row = self._connection.execute("select clock_timestamp(), pg_current_snapshot()::text").fetchone()
        assert row is not None
        return row[0], SourceSnapshot.parse(row[1]).running

    def rows_in_bounds(self, table: Table, keys: Sequence[KeyTexts]) -> list[Fields]:
        """The rows of these keys, which ``find_readable`` has read, in groups for which there are enough locks. Raises
        TooLarge, NoRoomForLocks for a single key, and as ``lines``."""
        rows: list[Fields] = []
        size = 0
        unread = [keys]
        while unread:
            some = unread.pop()
            try:
                with contextlib.closing(self.rows_of(table, some, while_waiting=self._while_waiting)) as found:
                    for fields in found:
                        rows.append(fields)
                        size += sum(len(value) for value in fields if isinstance(value, bytes))
                        if size > BYTES_MAX and len(keys) > 1:
                            raise TooLarge
            except NoRoomForLocks:
                if len(some) == 1:
                    raise
                unread += [some[len(some) // 2 :], some[: len(some) // 2]]
        return rows

    def _some(self, query: str, limit_s: float) -> tuple[list[bytes], bool]:
        """The lines of a query that fit into a chunk, and whether that is all. Raises NothingYet before the first."""
        lines: list[bytes] = []
        size = 0
        deadline = time.monotonic() + limit_s

        def waiting() -> None:
            self._while_waiting()
            if time.monotonic() > deadline:
                raise _Enough

        try:
            with contextlib.closing(copied_lines(self._connection, query, waiting)) as received:
                for portion in received:
                    for line in portion:
                        lines.append(bytes(line))
                        size += len(line)
                    if size > BYTES_MAX or time.monotonic() > deadline:
                        return lines, False
        except _Enough:
            if not lines:
                raise NothingYet from None
            return lines, False
        return lines, True


def _key(table: Table, line: bytes) -> KeyTexts:
    fields = dict(zip(table.columns, split_row(line[:-1]), strict=True))
    return tuple(_text(fields[column]) for column in table.key_columns)


def _text(value: Field) -> str:
    assert isinstance(value, bytes)  # key_order ensures that there is no null
    return value.decode()
