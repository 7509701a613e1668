"""The source's rows: in key order by short statements with pauses between, or by key. No snapshot is held open.

A snapshot over a whole large table would keep VACUUM from removing what became dead meanwhile. Statements that take about a second
don't, and the pause after each of them, as long as the statement took, leaves half of one connection's worth of load.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import orjson
import psycopg
from psycopg import sql

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue
from cdc.model.lsn import Lsn
from cdc.model.table import Table, TableName, quote_identifier
from cdc.postgres.catalogue import load_tables, row_filters
from cdc.postgres.connection import LOCK_TIMEOUT, connect, connection_error
from cdc.postgres.repair_messages import request_repair
from cdc.postgres.settings import SourceSettings
from cdc.postgres.slot import emit_heartbeat
from cdc.protocol.copy_text import split_row
from cdc.protocol.envelope import TableEncoder
from cdc.protocol.pgoutput import Field, Fields
from lockstep.verify.canonical import Fingerprint, Key, Row, fingerprint, key_of, key_values
from lockstep.verify.sides.expected import Version, versions_of
from lockstep.verify.sides.sink_view import View
from lockstep.verify.waiting import Mark, Patience
from sinks.columns.copy_text import array_literal, plain_text

APPLICATION: Final = "lockstep verify"

KEYS_AT_ONCE: Final = 500

_CHUNK_ROWS_MIN: Final = 50
_CHUNK_ROWS_MAX: Final = 500_000
_GROWTH_MAX: Final = 4.0


@dataclass(frozen=True, slots=True)
class Load:
    """How hard the source is read: statements of about ``chunk_s`` seconds, then a pause of ``pause_ratio`` times what one took.

    ``first_rows`` is what the first statement asks for, while nobody knows how long it takes.
    """

    chunk_s: float = 1.0
    pause_ratio: float = 1.0
    first_rows: int = 1000


def next_chunk_rows(rows: int, *, took_s: float, chunk_s: float) -> int:
    """How many rows to ask for next, after ``rows`` took so long."""
    factor = chunk_s / took_s if took_s > 0 else _GROWTH_MAX
    wanted = int(rows * min(_GROWTH_MAX, max(1 / _GROWTH_MAX, factor)))
    return min(_CHUNK_ROWS_MAX, max(_CHUNK_ROWS_MIN, wanted))


@dataclass(frozen=True, slots=True)
class _Origin:
    """How a table is selected from: what of it, under which condition, and the types that its key is compared in."""

    relation: str
    condition: str
    key_types: tuple[str, ...]


@dataclass(slots=True)
class _Place:
    """How far a scan is: rows of this statement, and the key of the last one."""

    seen: int = 0
    last: Sequence[Field] | None = None


class SourceSide:
    """The captured tables, as the publication sends them."""

    name = "source"
    can_be_asked_often = True

    def __init__(
        self,
        source: SourceSettings,
        *,
        names: Sequence[TableName],
        publication: str,
        load: Load,
        patience: Patience,
        view: View,
    ) -> None:
        self._source = source
        self._names = tuple(names)
        self._publication = publication
        self._load = load
        self._patience = patience
        self._view = view
        self._connection: psycopg.Connection[Any] | None = None
        self._origins: dict[TableName, _Origin] = {}
        self._shapes: dict[TableName, Table] = {}

    def tables(self) -> dict[TableName, Table]:
        """The tables that exist, in the shape that is published, with their configured keys."""
        with self._talking() as connection:
            found = load_tables(connection, self._names, self._publication, self._source.keys)
            filters = row_filters(connection, self._publication)
            self._origins = {
                name: _Origin(_relation(connection, table), filters.get(name, ""), _key_types(connection, table))
                for name, table in found.items()
            }
        self._shapes = found
        return found

    def _read(self, table: Table) -> Table:
        """What has to be read of a table, of which these columns are compared."""
        return self._shapes[table.name] if self._view.changes(table.name) else table

    def mark(self) -> Mark:
        with self._talking() as connection:
            return Mark(lsn=emit_heartbeat(connection))

    def scan(self, table: Table) -> Iterator[tuple[Key, Fingerprint]]:
        origin = self._origins[table.name]
        read = self._read(table)
        encoder = _encoder(read)
        columns = _selected(read)
        names = ", ".join(quote_identifier(name) for name in table.key)
        rows_asked = self._load.first_rows
        place = _Place()
        while True:
            began = self._patience.now_s()
            place.seen = 0
            conditions = [f"({origin.condition})"] if origin.condition else []
            if place.last is not None:
                conditions.append(f"({names}) > ({self._literals(place.last, origin.key_types)})")
            where = f" where {' and '.join(conditions)}" if conditions else ""
            query = f"select {columns} from {origin.relation} t{where} order by {names} limit {rows_asked}"
            for key, row in self._view.rows(table.name, self._walk(table, query, encoder, place)):
                yield key, fingerprint(table, key, row)
            if place.seen < rows_asked:
                return
            took_s = self._patience.now_s() - began
            rows_asked = next_chunk_rows(rows_asked, took_s=took_s, chunk_s=self._load.chunk_s)
            self._patience.sleep(took_s * self._load.pause_ratio)

    def _walk(self, table: Table, query: str, encoder: TableEncoder, place: "_Place") -> Iterator[tuple[Key, Row]]:
        """The rows of a query, and how far it came."""
        for fields in self._copy(query):
            place.seen += 1
            place.last = [fields[at] for at in encoder.key_positions]
            row: Row = orjson.loads(encoder.row(fields))
            yield key_of(table, row), row

    def versions(self, table: Table, keys: Collection[Key]) -> dict[Key, Version]:
        found: dict[Key, Version] = {}
        for portion in portions(keys, KEYS_AT_ONCE):
            found |= versions_of(self._portion(table, portion))
        return found

    def passed(self) -> Mapping[Key, Collection[Fingerprint | None]]:
        """Nothing: it shows how things are, not how they came to be so."""
        return {}

    def rows(self, table: Table, keys: Collection[Key]) -> dict[Key, tuple[Version, Row]]:
        found: dict[Key, tuple[Version, Row]] = {}
        for portion in portions(keys, KEYS_AT_ONCE):
            found |= self._portion(table, portion)
        return found

    def request_repair(self, table: TableName, keys: Collection[Key], *, slot: str) -> Mark:
        """Ask the capture of this slot to publish the current rows of these keys again; a point behind the request."""
        with self._talking() as connection:
            return Mark(lsn=Lsn(request_repair(connection, table, [key_values(key) for key in keys], slot=slot)))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _portion(self, table: Table, keys: Sequence[Key]) -> dict[Key, tuple[Version, Row]]:
        began = self._patience.now_s()
        try:
            found = self._by_key(table, keys)
        except psycopg.DataError:
            # A sink may hold a key that the source's type can't have, so no row of the source has it. Which one is it?
            if len(keys) == 1:
                return {}
            half = len(keys) // 2
            return self._portion(table, keys[:half]) | self._portion(table, keys[half:])
        self._patience.sleep((self._patience.now_s() - began) * self._load.pause_ratio)
        return found

    def _by_key(self, table: Table, keys: Sequence[Key]) -> dict[Key, tuple[Version, Row]]:
        origin = self._origins[table.name]
        read = self._read(table)
        encoder = _encoder(read)
        wanted = set(keys)
        values = [list(key_values(key).values()) for key in keys]
        # A sink that was tampered with may hold anything; no row has a null in its key.
        texts = [
            list(map(_text, of_key)) for of_key in values if not any(v is None or isinstance(v, dict) for v in of_key)
        ]
        # Names that no table has, since the filter's columns aren't qualified.
        aliases = [f"lockstep_key_{at}" for at in range(len(table.key))]
        arrays = ", ".join(self._literal([text[at] for text in texts]) + "::text[]" for at in range(len(table.key)))
        matches = [
            f"t.{quote_identifier(name)} = {alias}::{of_type}"
            for name, alias, of_type in zip(table.key, aliases, origin.key_types, strict=True)
        ]
        conditions = [*matches, *([f"({origin.condition})"] if origin.condition else [])]
        # xmin: an update that changed nothing, or changed it back, is a new version nevertheless.
        query = (
            f"select {_selected(read)}, t.xmin::text from {origin.relation} t, unnest({arrays}) as k ({', '.join(aliases)})"
            f" where {' and '.join(conditions)}"
        )
        rows: dict[Key, Row] = {}
        stamps: dict[Key, str] = {}
        for *fields, stamp in self._copy(query):
            row: Row = orjson.loads(encoder.row(fields))
            key = key_of(table, row)
            if (
                key in wanted
            ):  # else one with another text of the same value, which is another key to everybody downstream
                assert isinstance(stamp, bytes)
                rows[key], stamps[key] = row, stamp.decode()
        return {
            key: (Version(fingerprint(table, key, row), stamps[key]), row)
            for key, row in self._view.rows(table.name, rows.items())
        }

    def _copy(self, query: str) -> Iterator[Fields]:
        statement = f"copy ({query}) to stdout".encode()
        with self._talking() as connection, connection.cursor() as cursor, cursor.copy(statement) as copy:
            for line in copy:
                yield split_row(bytes(line)[:-1])

    def _literals(self, values: Sequence[Field], types: Sequence[str]) -> str:
        texts = [value.decode() for value in values if isinstance(value, bytes)]
        return ", ".join(f"{self._literal(text)}::{of}" for text, of in zip(texts, types, strict=True))

    def _literal(self, value: str | list[str]) -> str:
        return sql.Literal(value).as_string(self._connection)

    @contextmanager
    def _talking(self) -> Iterator[psycopg.Connection[Any]]:
        """The connection, made where there is none, and its errors as ours."""
        self._patience.check()
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._source, application=APPLICATION)
            self._connection.execute(LOCK_TIMEOUT)
        try:
            yield self._connection
        except psycopg.OperationalError as error:
            raise connection_error(error) from error
        except (psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedTable) as error:
            raise LockstepError(
                "a table has got another shape while it was compared", hint="start the comparison again"
            ) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise LockstepError(
                f"the source refuses: {error.diag.message_primary}",
                hint="grant the role of source.dsn SELECT on the table",
            ) from error


def portions(keys: Collection[Key], size: int) -> Iterator[list[Key]]:
    """The keys in lists of at most ``size``."""
    remaining = iter(keys)
    while portion := list(islice(remaining, size)):
        yield portion


def _encoder(table: Table) -> TableEncoder:
    return TableEncoder(table, server="", database="", version="")


def _selected(table: Table) -> str:
    return ", ".join(f"t.{quote_identifier(column.name)}" for column in table.columns)


def _text(value: JsonValue) -> str:
    return array_literal(value) if isinstance(value, list) else plain_text(value)


def _relation(connection: psycopg.Connection[Any], table: Table) -> str:
    """Tables that inherit from an ordinary one are tables of their own; partitions belong to theirs."""
    row = connection.execute("select relkind::text from pg_class where oid = %s", (table.oid,)).fetchone()
    return table.name.sql if row is not None and row[0] == "p" else f"only {table.name.sql}"


def _key_types(connection: psycopg.Connection[Any], table: Table) -> tuple[str, ...]:
    # -1: without a modifier and as SQL reads it back. "character" alone would be one character, a varchar(3) would cut.
    return tuple(
        connection.execute("select format_type(%s, -1)", (column.type_oid,)).fetchone()[0]  # type: ignore[index]
        for column in table.key_columns
    )
