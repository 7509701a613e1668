"""A view's query on the source: the rows that the view should have, as of each statement's own snapshot.

The whole query runs each time, since nobody outside knows which rows of its tables make a row of the result. So a
snapshot is held for as long as the query takes.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import orjson
import psycopg

from cdc.event_format.encode import TableEncoder
from cdc.model.errors import LockstepError
from cdc.model.table import Table, quote_identifier
from cdc.postgres.connection import connection_error
from cdc.postgres.key_types import KeyType, key_types
from cdc.protocol.pgoutput import Fields
from lockstep.verify.canonical import Fingerprint, Key, Row, fingerprint, key_of, key_values, portions
from lockstep.verify.sides.expected import Expected, Version
from lockstep.verify.sides.source_connection import SourceConnection
from lockstep.verify.waiting import SyncPoint
from sinks.columns.copy_text import plain_text

_KEYS_AT_ONCE: Final = 500


class ViewSide(Expected):
    """The result of the SQL that ``query`` returns at each call, which names its tables with their schemas.

    Every method raises Unavailable if the source doesn't answer, and LockstepError if it refuses the query, if the
    query fails for a row, and if a stop is asked for.
    """

    name = "source"
    can_be_asked_often = True

    def __init__(self, connection: SourceConnection, *, query: Callable[[], str], view: str) -> None:
        self._opened = connection
        self._query = query
        self._view = view
        self._key_types: Sequence[KeyType] | None = None

    def sync_point(self) -> SyncPoint:
        return self._opened.sync_point()

    def scan(self, table: Table) -> Iterator[tuple[Key, Fingerprint]]:
        for key, row in self._rows(table, ""):
            yield key, fingerprint(table, key, row)

    def rows(self, table: Table, keys: Collection[Key]) -> dict[Key, tuple[Version, Row]]:
        rows: dict[Key, tuple[Version, Row]] = {}
        for portion in portions(keys, _KEYS_AT_ONCE):
            for key, row in self._by_key(table, portion):
                # The values alone: the tag in the sink shows whether a row was written again with the same values.
                rows[key] = Version(fingerprint(table, key, row), ""), row
        return rows

    def close(self) -> None:
        self._opened.close()

    def _by_key(self, table: Table, keys: Sequence[Key]) -> Iterator[tuple[Key, Row]]:
        values = [list(key_values(key).values()) for key in keys]
        # A sink that was tampered with may hold anything; no row has a null in its key.
        texts = [[plain_text(value) for value in of] for of in values if not any(v is None for v in of)]
        with self._asked():
            types = self._types(table)
        texts = self._fit(texts, types)
        if not texts:
            return
        wanted = set(keys)
        conditions = [
            f"q.{quote_identifier(name)} = any ({self._array(texts, place)}::{kind.sql}[])"
            for place, (name, kind) in enumerate(zip(table.key, types, strict=True))
        ]
        # Each column by itself, so that PostgreSQL can look for them inside the query.
        for key, row in self._rows(table, f" where {' and '.join(conditions)}"):
            if key in wanted:
                yield key, row

    def _fit(self, keys: list[list[str]], types: Sequence[KeyType]) -> list[list[str]]:
        """The keys that the columns' types can have; no row has any other."""
        if not keys:
            return []
        casts = ", ".join(f"{self._array(keys, place)}::{kind.sql}[]" for place, kind in enumerate(types))
        try:
            with self._asked() as connection:
                connection.execute(f"select {casts}".encode())
        except psycopg.DataError:
            half = len(keys) // 2
            return [] if not half else self._fit(keys[:half], types) + self._fit(keys[half:], types)
        return keys

    def _array(self, keys: Sequence[Sequence[str]], place: int) -> str:
        return f"{self._opened.literal([key[place] for key in keys])}::text[]"

    def _types(self, table: Table) -> Sequence[KeyType]:
        if self._key_types is None:
            with self._opened.opened() as connection:
                self._key_types = key_types(connection, [column.type_oid for column in table.key_columns])
        return self._key_types

    def _rows(self, table: Table, condition: str) -> Iterator[tuple[Key, Row]]:
        columns = ", ".join(f"q.{quote_identifier(column.name)}" for column in table.columns)
        encoder = TableEncoder(table, server="", database="", version="")
        for fields in self._copy(f"select {columns} from ({self._query()}\n) as q{condition}"):
            row: Row = orjson.loads(encoder.row(fields))
            yield key_of(table, row), row

    def _copy(self, query: str) -> Iterator[Fields]:
        try:
            with self._asked():
                yield from self._opened.copy(query)
        except psycopg.DataError as error:  # of a row: PostgreSQL's words may hold its values
            raise LockstepError(
                f"the query of view {self._view!r} fails on the source: {connection_error(error).message}",
                hint="make the query take such rows: `case when`, `nullif`, a wider type",
            ) from error

    @contextmanager
    def _asked(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            with self._opened.opened() as connection:
                yield connection
        except psycopg.ProgrammingError as error:  # of what can be named and used
            raise LockstepError(
                f"the source refuses the query of view {self._view!r}: {error.diag.message_primary}",
                hint=f"`lockstep views explain {self._view}` shows what can't be kept of it; if a table has lost a"
                " column, change the query; for rights, grant the role of source.dsn SELECT on the tables",
            ) from error
