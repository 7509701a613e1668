"""Tables of a generation: their types, their DDL, and the statements that write to and read from them (pure).

Columns have the source's types without modifiers, so no value of the source is too long or too precise here. Types
whose rules a warehouse may not share (enums, domains, money, xml, ``char(n)``, extensions) are ``text``. Columns
outside the key are nullable, whatever the source says: a deletion has only the key.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final

import orjson

from cdc.event_format.column_types import json_encoder
from cdc.model.append_only import OPERATION_COLUMN, TRUNCATE, is_append_only
from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, TableEvents, parse_key, parse_object
from cdc.model.table import Column, Table, quote_identifier
from sinks.columns.copy_text import array_literal, copy_line, plain_text
from sinks.columns.shape import Shape, unfit_column
from sinks.contract import StoredRow
from sinks.sink_kernel import line_kernel
from sinks.warehouse.dialect import UnknownColumn
from sinks.warehouse.history import OWN_COLUMNS, check_history_columns
from sinks.warehouse.names import DELETED_COLUMN, NAME_BYTES_MAX, SYNCED_COLUMN, TAG_COLUMN, check_columns, listed
from sinks.warehouse.postgres.staging import Staging
from sinks.warehouse.reader_views import live_condition
from sinks.warehouse.stored_table import StoredTable

# Types of every PostgreSQL, which reads their text back as the same value.
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
# An index takes 2704 bytes. A character of text may have four, and one in an array's or jsonb's text may stand for
# more.
_KEY_CHARACTERS_SAFE: Final = 300
_SHORT_TYPES: Final = frozenset(
    (
        *("bool", "int2", "int4", "int8", "oid", "float4", "float8", "uuid"),
        *("date", "time", "timetz", "timestamp", "timestamptz", "interval", "inet", "cidr", "macaddr", "macaddr8"),
    )
)


_BLOCK_LINES: Final = 1000  # per write to the server: few calls, little memory

COLUMNS_MAX: Final = 1600
"""The maximum of a table in PostgreSQL."""

_SYSTEM_COLUMNS: Final = frozenset(("tableoid", "ctid", "xmin", "xmax", "cmin", "cmax"))
"""PostgreSQL's own columns of each table. Only ``rename`` or ``computed`` can give a source's column such a name."""


def check_table(held: StoredTable) -> None:
    """Raise LockstepError for a table whose columns' names or number PostgreSQL can't hold."""
    shape, name = held.shape, held.shape.table.name
    ours = (TAG_COLUMN, DELETED_COLUMN, SYNCED_COLUMN) if held.has_synced_at else (TAG_COLUMN, DELETED_COLUMN)
    check_columns(shape, ours, "the warehouse sink needs")
    check_columns(shape, _SYSTEM_COLUMNS, "PostgreSQL needs")
    if held.has_history:
        check_history_columns(shape)
    for column in shape.columns:
        if len(column.name.encode()) > NAME_BYTES_MAX:
            why = f"a name of more than {NAME_BYTES_MAX} bytes, which PostgreSQL would cut"
            raise unfit_column(name, column.name, why)
    most = COLUMNS_MAX - max(len(ours), OWN_COLUMNS if held.has_history else 0)
    if len(shape.columns) > most:
        raise LockstepError(
            f"table {name} has {len(shape.columns):,} columns, and a table in PostgreSQL has room for {most:,} beside "
            "those that the warehouse sink needs for itself",
            hint="leave some out with exclude of this sink, or leave the table out of its tables",
        )


def column_type(column: Column) -> str:
    return _stored_type(column) + ("[]" if column.is_array else "")


def _stored_type(column: Column) -> str:
    """The type of a column's values, or of its array's elements."""
    # Plain "bit" would be one bit.
    value_type = "varbit" if column.value_type == "bit" else column.value_type
    return value_type if value_type in _SAME_TYPE else "text"


def create_table_sql(target: str, held: StoredTable) -> str:
    """DDL of a generation's table, which has passed ``check_table``."""
    shape = held.shape
    lines = column_definitions(shape)
    lines.append(f'{quote_identifier(TAG_COLUMN)} char(28) collate "C" not null')
    lines.append(f"{quote_identifier(DELETED_COLUMN)} boolean not null")
    if held.has_synced_at:
        # The transaction's time would be too early if a batch waited for a lock.
        lines.append(f"{quote_identifier(SYNCED_COLUMN)} timestamptz default statement_timestamp()")
    lines.append(f"primary key ({listed(shape.table.key)})")
    table = f"create table if not exists {target} (\n  " + ",\n  ".join(lines) + "\n)"
    return f"{table};\n{emptied_index_sql(target)}" if is_append_only(shape.table) else table


def emptied_index_sql(target: str) -> str:
    """The index that finds the last truncation of an append-only table; there are few."""
    tag, operation = map(quote_identifier, (TAG_COLUMN, OPERATION_COLUMN))
    return f"create index on {target} ({tag}) where {operation} = '{TRUNCATE}'"


def column_definitions(shape: Shape) -> list[str]:
    return [f"{quote_identifier(column.name)} {column_type(column)}" for column in shape.columns]


def add_column_sql(target: str, column: Column, value: JsonValue) -> list[str]:
    alter, name = f"alter table {target}", quote_identifier(column.name)
    add = f"{alter} add column if not exists {name} {column_type(column)}"
    if value is None:
        return [add]
    # This changes only the catalogue, however many rows there are. Later rows bring their own values.
    default = f"{add} default {_literal(value)}::{column_type(column)}"
    return [default, f"{alter} alter column {name} drop default"]


class Rows:
    """How a table's events become lines of COPY. The columns are those of ``shape``, in its order."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.columns = tuple(column.name for column in shape.columns)
        self._known = frozenset(self.columns)
        # Usually a row has all columns. (itemgetter of one name returns the value itself.)
        self._take: Callable[[Mapping[str, JsonValue]], tuple[JsonValue, ...]] = (
            itemgetter(*self.columns) if len(self.columns) > 1 else lambda row: (row[self.columns[0]],)
        )
        # The kernel leaves arrays to Python.
        has_arrays = any(column.is_array for column in shape.columns)
        self._kernel = None if has_arrays else line_kernel(self.columns)

    def blocks(self, events: TableEvents) -> Iterator[bytes]:
        """Events as blocks of COPY lines; tag and deletion mark come after the columns. Raises UnknownColumn."""
        return self.blocks_ending(events, ["t" if row is None else "f" for row in events.rows])

    def blocks_ending(self, events: TableEvents, ends: list[str]) -> Iterator[bytes]:
        """The same with other texts behind the tag, each one or more columns in COPY's form.

        A deletion has its key and nulls; a row that lacks a column has null there. Raises UnknownColumn.
        """
        keys, tags, rows = events.keys, events.tags, events.rows
        start = 0
        while start < len(keys):
            stop = min(start + _BLOCK_LINES, len(keys))
            block = []
            while start < stop:
                by_python = stop
                if self._kernel is not None:
                    lines, start = self._kernel.lines(keys, tags, rows, ends, start, stop)
                    block.append(lines)
                    by_python = min(start + 1, stop)
                texts = map(self._line, *(of[start:by_python] for of in (keys, tags, rows, ends)))
                block.append("".join(texts).encode())
                start = by_python
            yield b"".join(block)

    def _line(self, key: bytes, tag: str, row: bytes | None, end: str) -> str:
        held = parse_key(key) if row is None else parse_object(row)
        if len(held) == len(self.columns):
            try:
                values = self._take(held)
            except KeyError:
                values = self._known_values(held)
        else:
            values = self._known_values(held)
        return f"{copy_line((*values, tag))[:-1]}\t{end}\n"

    def _known_values(self, held: Mapping[str, JsonValue]) -> tuple[JsonValue, ...]:
        """The values of all columns, null for missing ones. Raises UnknownColumn."""
        for name in held:
            if name not in self._known:
                raise UnknownColumn(self.shape.table.name, name)
        return tuple(map(held.get, self.columns))


class Statements(Rows):
    """The SQL of one table, created once per connection and shape."""

    def __init__(self, target: str, held: StoredTable, staging: Staging) -> None:
        shape = held.shape
        super().__init__(shape)
        self.key_may_be_long = any(
            column.is_array or column_type(column) not in _SHORT_TYPES for column in shape.table.key_columns
        )
        self.target = target
        self.staging = staging
        stage = staging.relation
        probe = f"{staging.name}_probe"
        stored = (*self.columns, TAG_COLUMN, DELETED_COLUMN)
        self.append = f"copy {target} ({listed(stored)}) from stdin"
        self.create_probe = (
            f"create temporary table {quote_identifier(probe)} "
            f"(like {target}, primary key ({listed(shape.table.key)})) on commit drop"
        )
        self.copy_probe = f"copy pg_temp.{quote_identifier(probe)} ({listed(stored)}) from stdin"
        self.drop_probe = f"drop table pg_temp.{quote_identifier(probe)}"
        self.copy = f"copy {stage} ({listed(stored)}) from stdin"
        # In key order, so that two writers lock rows in the same order and can't deadlock. Different texts of one value
        # are different keys of the log, such as 1.0 and 1.00, or those of a former type.
        key, tag, deleted = listed(shape.table.key), quote_identifier(TAG_COLUMN), quote_identifier(DELETED_COLUMN)
        synced = (SYNCED_COLUMN,) if held.has_synced_at else ()  # by its default: rows don't contain it
        selection = f"select distinct on ({key}) {listed(stored)} from {stage}"
        self._into = f"insert into {target} as known ({listed(stored)})\n{selection}"
        # All rows of a copy have one tag: the deletion of a key's former text may come beside the row with the new
        # text.
        self._merge = (
            f"order by {key}, {tag} desc, {deleted}\n"
            f"on conflict ({key}) do update\n"
            f"set {assignments((*stored, *synced))}\n"
            f"where excluded.{tag} > known.{tag}"
            f" or excluded.{tag} = known.{tag} and known.{deleted} and not excluded.{deleted}"
        )
        self._or_equal = f" or excluded.{tag} = known.{tag}"
        same_row = " and ".join(f"held.{name} = given.{name}" for name in map(quote_identifier, shape.table.key))
        self._is_there = f"exists (select from {target} as held where {same_row})"
        self._has_newest = f"exists (select from {target} as held where {same_row} and held.{tag} >= given.{tag})"
        as_given, self._as_known = (
            f"row({', '.join(f'{of}.{quote_identifier(name)}' for name in stored)})::text" for of in ("given", "known")
        )
        texts = f"select {as_given} from {stage} as given"
        self._compared = f"select count(*), count(*) filter (where known not in ({texts}))"

    def merge(self, purged: str, *, overwrite_equal_tags: bool) -> str:
        """Writes the staged rows, except those up to the tag ``purged`` ("": none) without an existing row."""
        tag = quote_identifier(TAG_COLUMN)
        repeated = f"as given where given.{tag} > '{purged}' or {self._is_there}\n" if purged else ""
        return f"{self._into} {repeated}{self._merge}" + (self._or_equal if overwrite_equal_tags else "")

    def compared_merge(self, purged: str, *, overwrite_equal_tags: bool) -> str:
        """``merge``, which returns how many rows it wrote, and how many of these differ from the staged ones."""
        merge = self.merge(purged, overwrite_equal_tags=overwrite_equal_tags)
        return f"with written as ({merge} returning {self._as_known} as known) {self._compared} from written"

    def kept_out(self, purged: str) -> str:
        """Whether a merge failed to write a staged row that is newer than the stored one."""
        meant = f"(given.{quote_identifier(TAG_COLUMN)} > '{purged}' or {self._is_there}) and " if purged else ""
        return f"select exists (select from {self.staging.relation} as given where {meant}not {self._has_newest})"

    def with_long_keys(self, events: TableEvents) -> list[int]:
        """The indexes of events whose key may be too long for an index."""
        if not self.key_may_be_long:
            return []
        # A key's JSON is no shorter than its values.
        long = [index for index, key in enumerate(events.keys) if len(key) > _KEY_CHARACTERS_SAFE]
        return [index for index in long if sum(map(_length, events[index].key.values())) > _KEY_CHARACTERS_SAFE]


def assignments(columns: Sequence[str]) -> str:
    """All of these columns, as ``on conflict do update`` sets them. Those of the key too: it may have another text."""
    return ", ".join(f"{quote_identifier(name)} = excluded.{quote_identifier(name)}" for name in columns)


def newest_rows_sql(target: str, held: StoredTable) -> tuple[str, str]:
    """The columns, and the query for each key's newest version among all rows of a table."""
    key = listed(held.shape.table.key)
    ours = (TAG_COLUMN, DELETED_COLUMN, SYNCED_COLUMN) if held.has_synced_at else (TAG_COLUMN, DELETED_COLUMN)
    stored = listed([*(column.name for column in held.shape.columns), *ours])
    newest = f"{quote_identifier(TAG_COLUMN)} desc, {quote_identifier(DELETED_COLUMN)}"
    return stored, f"select distinct on ({key}) {stored} from {target} order by {key}, {newest}"


def rows_by_key_sql(target: str, table: Table) -> str:
    """Live rows of keys. Each key column is a parameter: the list of its values' texts."""

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
        f"where {live_condition(target, table, of='held.').replace('%', '%%')}"
    )


def stored_row(table: Table) -> Callable[[Sequence[bytes | None]], StoredRow]:
    """A reader of rows of texts: the tag, then the table's columns."""
    names = [column.name for column in table.columns]
    encoders = [json_encoder(_stored_type(column), column.is_array) for column in table.columns]
    heads = [orjson.dumps(name) + b":" for name in names]

    def read(texts: Sequence[bytes | None]) -> StoredRow:
        tag, *values = texts
        assert tag is not None
        members = [
            head + (b"null" if value is None else encode(value))
            for head, encode, value in zip(heads, encoders, values, strict=True)
        ]
        row: dict[str, JsonValue] = orjson.loads(b"{" + b",".join(members) + b"}")
        return StoredRow({name: row[name] for name in table.key}, row, tag.decode())

    return read


def value_text(value: JsonValue) -> str:
    return array_literal(value) if isinstance(value, list) else plain_text(value)


def _literal(value: JsonValue) -> str:
    """A value as an SQL constant, whatever ``standard_conforming_strings`` is."""
    return "E'" + value_text(value).replace("\\", "\\\\").replace("'", "''") + "'"


def _length(value: JsonValue) -> int:
    return len(value) if isinstance(value, str) else 0 if not isinstance(value, list) else len(array_literal(value))
