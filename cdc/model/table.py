"""Tables, columns and their value types, as snapshot, stream and sinks all see them."""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

from cdc.model.printable import is_visible, visible

_PLAIN_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_$]*")
_PART = r'(?:U&"(?:[^"]|"")+"|"(?:[^"]|"")+"|[^".]+)'
_OID_BITS = 32
_ESCAPE = re.compile(r"\\(\\|[0-9a-fA-F]{4})")


def quote_identifier(name: str) -> str:
    """A quoted SQL identifier: ``order`` -> ``"order"``."""
    return '"' + name.replace('"', '""') + '"'


def sql_identifier(name: str) -> str:
    r"""A quoted identifier for PostgreSQL SQL that is shown: ``U&"a\000ab"`` if a character would be hidden."""
    if is_visible(name):
        return quote_identifier(name)
    escaped = "".join(_sql_escaped(character) for character in name.replace("\\", "\\\\"))
    return f"U&{quote_identifier(escaped)}"


def sql_literal(text: str) -> str:
    r"""A string for PostgreSQL SQL that is shown: ``'it''s'``, ``E'a\u000ab'``."""
    if is_visible(text):
        return "'" + text.replace("'", "''") + "'"
    return "E'" + visible(text.replace("\\", "\\\\").replace("'", "''")) + "'"


def _sql_escaped(character: str) -> str:
    if is_visible(character):
        return character
    return f"\\{ord(character):04x}"  # no hidden character needs more digits


def _unquoted(part: str) -> str:
    """Identifier, quoted or not -> name."""
    if part.startswith('U&"'):
        return _ESCAPE.sub(lambda match: "\\" if match[1] == "\\" else chr(int(match[1], 16)), _unquoted(part[2:]))
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table's schema and name, exactly as in the catalogue (no quotes, case kept)."""

    schema: str
    name: str

    def __str__(self) -> str:
        """As people write it, quoted where needed: ``public.orders``, ``"My Schema".t``. Always one line:
        ``public.U&"a\\000ab"``."""
        return ".".join(
            part if _PLAIN_IDENTIFIER.fullmatch(part) else sql_identifier(part) for part in (self.schema, self.name)
        )

    @property
    def sql(self) -> str:
        """Quoted for PostgreSQL SQL, to run or to show: ``"public"."orders"``."""
        return f"{sql_identifier(self.schema)}.{sql_identifier(self.name)}"

    @property
    def regclass(self) -> str:
        """For ``to_regclass()``, which doesn't accept ``U&``."""
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.name)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """``schema.table`` with optional double quotes around each part. Raises ValueError for anything else."""
        match = re.fullmatch(f"({_PART})\\.({_PART})", text)
        if match is None:
            raise ValueError(
                f'not a table name: {text!r} (schema.table expected, odd names in double quotes: "A b"."t")'
            )
        schema, name = map(_unquoted, match.groups())
        return cls(schema, name)

    @classmethod
    def parse_all(cls, texts: Iterable[str]) -> dict[str, Self]:
        """The names of all these texts, by text. Raises one ValueError that lists all problems."""
        names, problems = dict[str, Self](), list[str]()
        for text in texts:
            try:
                names[text] = cls.parse(text)
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("; ".join(problems))
        return names


class ReplicaIdentity(StrEnum):
    """What the WAL holds of the old row. The letters are those of ``pg_class.relreplident``."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True)
class Column:
    """One published column.

    ``type_name`` is the declared type as ``format_type`` prints it (``numeric(10,2)``, ``order_status``).
    ``value_type`` is the built-in type of its values, with domains and enums resolved (``numeric``, ``text``); unknown
    types count as ``text``. For an array, ``is_array`` is set and both describe the elements. ``type_oid`` and
    ``type_modifier`` are the source's numbers, to notice a change. ``number`` is the column's ``attnum``, which
    survives a rename; 0 if unknown.
    """

    name: str
    type_name: str
    value_type: str
    is_array: bool
    type_oid: int
    type_modifier: int
    number: int = 0

    @property
    def identity(self) -> str:
        """Stays the same when the column is renamed, and differs when it is dropped and added again, if its number is
        known."""
        return str(self.number) if self.number else self.name

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.type_name,
            "value_type": self.value_type,
            "array": self.is_array,
            "oid": self.type_oid,
            "typmod": self.type_modifier,
            "number": self.number,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        return cls(
            value["name"],
            value["type"],
            value["value_type"],
            value["array"],
            value["oid"],
            value["typmod"],
            value.get("number", 0),
        )


@dataclass(frozen=True)
class Table:
    """The shape of a published table: its columns in order, and the key's columns in key order.

    A table without a key is append-only: its topic isn't compacted. ``oid`` is the relation's oid in the source: it
    survives a rename and differs after drop and create; 0 if unknown. ``epoch`` is the tag's epoch in which the shape
    was read from the catalogue without a recorded one: column numbers of an earlier epoch may mean other columns.
    """

    name: TableName
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    replica_identity: ReplicaIdentity
    oid: int = 0
    epoch: int = 0

    @property
    def relation(self) -> int:
        """Identifies the relation within which a number stays one column's; 0 if unknown. It includes the epoch, since
        a source that was restored may give out an ``oid`` again."""
        return self.epoch << _OID_BITS | self.oid

    def is_same_relation(self, other: "Table") -> bool:
        """Whether column numbers mean the same in both, as far as known."""
        if self.epoch != other.epoch:
            return False
        return not self.oid or not other.oid or self.oid == other.oid

    @cached_property
    def schema_id(self) -> str:
        """8 hex digits that depend on columns and key alone, so every decoding of the same WAL gives the same id. It
        includes column numbers: a column that was dropped and added again holds other values under its old name. It
        leaves out the replica identity: DEFAULT and FULL may alternate without changing the rows' shape."""
        others = ("replica_identity", "relation_oid", "relation_epoch")
        shape = {name: value for name, value in self.to_json().items() if name not in others}
        canonical = json.dumps(shape, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:8]

    def column(self, name: str) -> Column:
        """The column of this name. Raises KeyError."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    @cached_property
    def key_columns(self) -> tuple[Column, ...]:
        return tuple(self.column(name) for name in self.key)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": self.name.schema,
            "table": self.name.name,
            "columns": [column.to_json() for column in self.columns],
            "key": list(self.key),
            "replica_identity": self.replica_identity.value,
            "relation_oid": self.oid,
            "relation_epoch": self.epoch,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        return cls(
            TableName(value["schema"], value["table"]),
            tuple(Column.from_json(column) for column in value["columns"]),
            tuple(value["key"]),
            ReplicaIdentity(value["replica_identity"]),
            value.get("relation_oid", 0),
            value.get("relation_epoch", 0),
        )
