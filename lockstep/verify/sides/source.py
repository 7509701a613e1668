"""The source's rows: in key order by short statements with pauses between, or by key. No snapshot is held open.

A snapshot over a whole large table would keep VACUUM from removing rows that die meanwhile. Statements of about a
second don't. After each of them comes a pause as long as the server took for it, so that half of one connection's load
remains. While we process the rows, the server waits for us; that is pause enough.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import orjson
import psycopg

from cdc.event_format.encode import TableEncoder
from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue
from cdc.model.lsn import Lsn
from cdc.model.table import Table, TableName, quote_identifier
from cdc.postgres.catalogue import load_tables, row_filters
from cdc.postgres.key_types import KeyType, after_key, key_types
from cdc.postgres.repair_messages import request_repair
from cdc.postgres.settings import SourceSettings
from cdc.protocol.pgoutput import Field, Fields
from lockstep.verify.canonical import Fingerprint, Key, Row, fingerprint, key_of, key_values, portions
from lockstep.verify.sides.expected import Expected, Version
from lockstep.verify.sides.sink_view import SinkView
from lockstep.verify.sides.source_connection import SourceConnection
from lockstep.verify.source_load import Load, next_chunk_rows
from lockstep.verify.waiting import SyncPoint, Waiting
from sinks.columns.copy_text import array_literal, plain_text

KEYS_AT_ONCE: Final = 500

_Kept = TypeVar("_Kept")


@dataclass(frozen=True, slots=True)
class _Origin:
    """How a table is selected from: relation, condition, and the types in which its key is compared."""

    relation: str
    condition: str
    key_types: Sequence[KeyType]


@dataclass(slots=True)
class _ScanPosition:
    """How far a scan is: rows of this statement, and the key of the last one."""

    seen: int = 0
    last: Sequence[Field] | None = None


class SourceSide(Expected):
    """The captured tables, as the publication sends them. ``tables`` is called before any of their rows are read.

    It connects when first used, and again after a lost connection. Every method raises Unavailable if the source
    doesn't answer, and LockstepError if it refuses or a stop is asked for.
    """

    name = "source"
    can_be_asked_often = True

    def __init__(
        self,
        source: SourceSettings,
        *,
        names: Sequence[TableName],
        publication: str,
        epoch: int,
        load: Load,
        waiting: Waiting,
        view: SinkView,
        with_filters: bool = True,
    ) -> None:
        """Without ``with_filters``, rows that the publication leaves out are included."""
        self._source = source
        self._with_filters = with_filters
        self._names = tuple(names)
        self._publication = publication
        self._epoch = epoch
        self._opened = SourceConnection(source, epoch=epoch, waiting=waiting)
        self._load = load
        self._waiting = waiting
        self._view = view
        self._origins: dict[TableName, _Origin] = {}
        self._shapes: dict[TableName, Table] = {}

    def tables(self) -> dict[TableName, Table]:
        """The tables that exist, in the shape that is published, with their configured keys."""
        with self._connected() as connection:
            shapes = load_tables(connection, self._names, self._publication, self._source.keys)
            filters = row_filters(connection, self._publication) if self._with_filters else {}
            self._origins = {
                name: _Origin(_relation(connection, table), filters.get(name, ""), _key_types(connection, table))
                for name, table in shapes.items()
            }
        self._shapes = shapes
        return shapes

    def _read(self, table: Table) -> Table:
        """What to read of a table so that these columns can be compared."""
        return self._shapes[table.name] if self._view.changes(table.name) else table

    def sync_point(self) -> SyncPoint:
        with self._connected():
            return self._opened.sync_point()

    def scan(self, table: Table) -> Iterator[tuple[Key, Fingerprint]]:
        origin = self._origins[table.name]
        read = self._read(table)
        encoder = _encoder(read)
        columns = _selected(read)
        names = [quote_identifier(name) for name in table.key]
        rows_asked = self._load.first_rows
        position = _ScanPosition()
        while True:
            began, own_began = self._waiting.now_s(), self._waiting.own_s()
            position.seen = 0
            conditions = [f"({origin.condition})"] if origin.condition else []
            if position.last is not None:
                conditions.append(after_key(names, origin.key_types, self._literals(position.last, origin.key_types)))
            where = f" where {' and '.join(conditions)}" if conditions else ""
            query = f"select {columns} from {origin.relation} t{where} order by {', '.join(names)} limit {rows_asked}"
            for key, row in self._view.rows(table.name, self._walk(table, query, encoder, position)):
                yield key, fingerprint(table, key, row)
            if position.seen < rows_asked:
                return
            took_s = self._waiting.now_s() - began
            rows_asked = next_chunk_rows(rows_asked, took_s=took_s, chunk_s=self._load.chunk_s)
            server_s = max(0.0, took_s - (self._waiting.own_s() - own_began))
            self._waiting.sleep(server_s * self._load.pause_ratio)

    def _walk(
        self, table: Table, query: str, encoder: TableEncoder, position: _ScanPosition
    ) -> Iterator[tuple[Key, Row]]:
        """The rows of a query. Advances the position."""
        for fields in self._copy(query):
            position.seen += 1
            position.last = [fields[index] for index in encoder.key_positions]
            row: Row = orjson.loads(encoder.row(fields))
            yield key_of(table, row), row

    def versions(self, table: Table, keys: Collection[Key]) -> dict[Key, Version]:
        versions: dict[Key, Version] = {}
        for portion in portions(keys, KEYS_AT_ONCE):
            versions |= self._portion(table, portion, lambda version, _: version)
        return versions

    def rows(self, table: Table, keys: Collection[Key]) -> dict[Key, tuple[Version, Row]]:
        rows: dict[Key, tuple[Version, Row]] = {}
        for portion in portions(keys, KEYS_AT_ONCE):
            rows |= self._portion(table, portion, lambda version, row: (version, row))
        return rows

    def request_repair(self, table: TableName, keys: Collection[Key], *, slot: str) -> SyncPoint:
        """Ask this slot's capture to publish these keys' current rows again. Returns a point after the request."""
        with self._connected() as connection:
            lsn = request_repair(connection, table, [key_values(key) for key in keys], slot=slot)
            return SyncPoint(lsn=Lsn(lsn), epoch=self._epoch)

    def close(self) -> None:
        self._opened.close()

    def _portion(self, table: Table, keys: Sequence[Key], kept_of: Callable[[Version, Row], _Kept]) -> dict[Key, _Kept]:
        """Returns what ``kept_of`` keeps of each row, since all rows together may be large."""
        began, own_began = self._waiting.now_s(), self._waiting.own_s()
        try:
            rows = {key: kept_of(version, row) for key, version, row in self._by_key(table, keys)}
        except psycopg.errors.CharacterNotInRepertoire:
            raise  # of a row, not of a key: its text isn't valid UTF-8
        except psycopg.DataError:
            # A sink may hold a key that the source's type can't have, so no row of the source has it. Find that key.
            if len(keys) == 1:
                return {}
            half = len(keys) // 2
            return self._portion(table, keys[:half], kept_of) | self._portion(table, keys[half:], kept_of)
        server_s = max(0.0, self._waiting.now_s() - began - (self._waiting.own_s() - own_began))
        self._waiting.sleep(server_s * self._load.pause_ratio)
        return rows

    def _by_key(self, table: Table, keys: Sequence[Key]) -> Iterator[tuple[Key, Version, Row]]:
        origin = self._origins[table.name]
        read = self._read(table)
        encoder = _encoder(read)
        wanted_keys = set(keys)
        values = [list(key_values(key).values()) for key in keys]
        # A sink that was tampered with may hold anything; no row has a null in its key.
        texts = [
            list(map(_text, values_of_key))
            for values_of_key in values
            if not any(v is None or isinstance(v, dict) for v in values_of_key)
        ]
        # Names that no table has, since the filter's columns aren't qualified.
        aliases = [f"lockstep_key_{index}" for index in range(len(table.key))]
        arrays = ", ".join(
            self._opened.literal([text[index] for text in texts]) + "::text[]" for index in range(len(table.key))
        )
        matches = [
            f"t.{quote_identifier(name)} {kind.equals} {alias}::{kind.sql}"
            for name, alias, kind in zip(table.key, aliases, origin.key_types, strict=True)
        ]
        conditions = [*matches, *([f"({origin.condition})"] if origin.condition else [])]
        # xmin: an update that changed nothing, or changed it back, is a new version nevertheless.
        query = (
            f"select {_selected(read)}, t.xmin::text from {origin.relation} t,"
            f" unnest({arrays}) as k ({', '.join(aliases)}) where {' and '.join(conditions)}"
        )
        stamps: dict[Key, str] = {}

        def rows() -> Iterator[tuple[Key, Row]]:
            for *fields, stamp in self._copy(query):
                row: Row = orjson.loads(encoder.row(fields))
                key = key_of(table, row)
                # Another text of the same value is another key to everybody downstream.
                if key in wanted_keys and key not in stamps:
                    assert isinstance(stamp, bytes)
                    stamps[key] = stamp.decode()
                    yield key, row

        for key, row in self._view.rows(table.name, rows()):
            yield key, Version(fingerprint(table, key, row), stamps[key]), row

    def _copy(self, query: str) -> Iterator[Fields]:
        with self._connected():
            yield from self._opened.copy(query)

    def _literals(self, values: Sequence[Field], types: Sequence[KeyType]) -> list[str]:
        texts = [value.decode() for value in values if isinstance(value, bytes)]
        return [f"{self._opened.literal(text)}::{kind.sql}" for text, kind in zip(texts, types, strict=True)]

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        """The connection. Its errors become ours."""
        try:
            with self._opened.opened() as connection:
                yield connection
        except (psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedTable) as error:
            raise LockstepError(
                "a table has got another shape while it was compared", hint="run `lockstep verify` again"
            ) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise LockstepError(
                f"the source refuses: {error.diag.message_primary}",
                hint="grant the role of source.dsn SELECT on the table",
            ) from error


def _encoder(table: Table) -> TableEncoder:
    return TableEncoder(table, server="", database="", version="")


def _selected(table: Table) -> str:
    return ", ".join(f"t.{quote_identifier(column.name)}" for column in table.columns)


def _text(value: JsonValue) -> str:
    return array_literal(value) if isinstance(value, list) else plain_text(value)


def _relation(connection: psycopg.Connection[Any], table: Table) -> str:
    """Partitions belong to their table; tables that inherit from an ordinary one are tables of their own."""
    row = connection.execute("select relkind::text from pg_class where oid = %s", (table.oid,)).fetchone()
    return table.name.sql if row is not None and row[0] == "p" else f"only {table.name.sql}"


def _key_types(connection: psycopg.Connection[Any], table: Table) -> Sequence[KeyType]:
    return key_types(connection, [column.type_oid for column in table.key_columns])
