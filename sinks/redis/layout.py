"""Keys of rows and sets in Redis, made of names and templates, and a row's fields (pure).

A template is text with placeholders, such as ``order:{id}``. Colons divide it into segments, each with at most one
placeholder, and values are written without colons. So a key identifies its values, and it can be decided whether two
templates may share a key.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from cdc.model.errors import ConfigurationError
from cdc.model.event import JsonValue, value_text
from cdc.model.json_numbers import FLOATS, INTEGERS
from cdc.model.table import Column, Table, TableName

_LITERAL: Final = r"[A-Za-z0-9_./@#=+-]+"
_TOKEN: Final = re.compile(rf"\{{(?P<column>[^{{}}]+)\}}|(?P<colon>:)|(?P<literal>{_LITERAL})")
_SPECIAL: Final = frozenset("*?[]^\\")

COLUMN_MARK: Final = ":"
"""The prefix of the sink's own fields beside a row's columns. A column with this prefix gets it once more."""

NULLS: Final = f"{COLUMN_MARK}n"
"""The field that lists a row's null columns, as JSON; missing if there are none."""

# Types whose values are JSON numbers or booleans in events. All others are text, except arrays.
_JSON_TYPES: Final = INTEGERS | FLOATS | {"bool"}


def escape_name(part: str) -> str:
    """Schema or table as a part of a key, without dots and colons: those in a key are ours."""
    return part.replace("%", "%25").replace(".", "%2E").replace(":", "%3A")


def table_field(name: TableName) -> bytes:
    """A table's field in the hash of the shapes for which a generation was prepared."""
    return f"{escape_name(name.schema)}.{escape_name(name.name)}".encode()


def key_text(values: Sequence[JsonValue]) -> str:
    """The key's values as the last part of a key. Different keys of one table have different texts."""
    if len(values) == 1:
        value = values[0]
        return str(value) if value.__class__ is int else value_text(value)  # the usual case, in the fastest way
    return ":".join(value_text(value).replace("%", "%25").replace(":", "%3A") for value in values)


def _escaped(value: JsonValue) -> str:
    """A value in a template, without the colons and line breaks that separate segments and names."""
    return value_text(value).replace("%", "%25").replace(":", "%3A").replace("\n", "%0A")


@dataclass(frozen=True, slots=True)
class _Segment:
    """The part between two colons: text, or a column's value with text around it."""

    before: str
    column: str | None = None
    after: str = ""

    def may_equal(self, other: "_Segment") -> bool:
        if self.column is None and other.column is None:
            return self.before == other.before
        if self.column is None:
            return other.may_equal(self)
        if other.column is None:
            text = other.before
            fits = text.startswith(self.before) and text.endswith(self.after)
            return fits and len(text) >= len(self.before) + len(self.after)
        begins = self.before.startswith(other.before) or other.before.startswith(self.before)
        ends = self.after.endswith(other.after) or other.after.endswith(self.after)
        return begins and ends


@dataclass(frozen=True, slots=True)
class Template:
    """A template. With ``is_open``, a colon and anything may follow its last segment."""

    segments: tuple[_Segment, ...]
    is_open: bool = False

    @classmethod
    def parse(cls, text: str) -> "Template":
        """Raises ValueError."""
        segments: list[_Segment] = []
        before, column, after = "", None, ""
        position = 0
        while position < len(text):
            token = _TOKEN.match(text, position)
            if token is None:
                raise ValueError(
                    f"{text!r} can't be a template: {text[position]!r} at its place {position + 1}; "
                    "letters, digits, _ . / @ # = + - and : are possible, and columns in braces"
                )
            position = token.end()
            if token["colon"]:
                segments.append(_Segment(before, column, after))
                before, column, after = "", None, ""
            elif token["literal"]:
                before, after = (before + token["literal"], after) if column is None else (before, token["literal"])
            elif column is not None:
                raise ValueError(f"{text!r} can't be a template: put a colon between {{{column}}} and {token[0]}")
            else:
                column = token["column"]
        segments.append(_Segment(before, column, after))
        made = cls(tuple(segments))
        if not made.columns:
            raise ValueError(f"{text!r} can't be a template: it names no column, such as {{id}}")
        if len(set(made.columns)) < len(made.columns):
            raise ValueError(f"{text!r} can't be a template: it names a column twice")
        return made

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(segment.column for segment in self.segments if segment.column is not None)

    @property
    def may_be_empty(self) -> bool:
        return len(self.segments) == 1 and not self.segments[0].before and not self.segments[0].after

    def may_equal(self, other: "Template") -> bool:
        """Whether some values may give both the same text. True if that isn't certain."""
        ours, theirs = len(self.segments), len(other.segments)
        # An open one has at least one more segment.
        fits = (
            (ours < theirs or other.is_open) if self.is_open else (theirs < ours if other.is_open else ours == theirs)
        )
        pairs = zip(self.segments, other.segments, strict=False)
        return fits and all(segment.may_equal(counterpart) for segment, counterpart in pairs)

    def maker(self, names: Sequence[str]) -> Callable[[Sequence[JsonValue]], str]:
        """A function that makes the text of values given in the order of ``names``."""
        literals = [""]
        indexes = []
        for number, segment in enumerate(self.segments):
            literals[-1] += (":" if number else "") + segment.before
            if segment.column is not None:
                indexes.append(names.index(segment.column))
                literals.append(segment.after)
        pieces = list(zip(literals[1:], indexes, strict=True))
        first = literals[0]

        def text(values: Sequence[JsonValue]) -> str:
            return first + "".join([_escaped(values[index]) + literal for literal, index in pieces])

        return text

    def text(self, row: Mapping[str, JsonValue]) -> str | None:
        """The text of a row's values; None if one of them is null."""
        made = ""
        for number, segment in enumerate(self.segments):
            made += (":" if number else "") + segment.before
            if segment.column is not None:
                value = row.get(segment.column)
                if value is None:
                    return None
                made += _escaped(value) + segment.after
        return made

    def glob(self) -> str:
        """The pattern for SCAN that finds all its texts, and maybe some others."""
        parts = [
            glob_text(segment.before) + ("" if segment.column is None else "*" + glob_text(segment.after))
            for segment in self.segments
        ]
        return ":".join(parts) + (":*" if self.is_open else "")

    def expression(self) -> str:
        """The regular expression that matches exactly its texts."""
        parts = [
            re.escape(segment.before) + ("" if segment.column is None else "[^:]*" + re.escape(segment.after))
            for segment in self.segments
        ]
        return ":".join(parts) + (":.*" if self.is_open else "")


def glob_text(literal: str) -> str:
    """Text that stands for itself in a pattern for SCAN."""
    return "".join(f"\\{character}" if character in _SPECIAL else character for character in literal)


@dataclass(frozen=True, slots=True)
class TableLayout:
    """One table's layout. ``keys`` is the template of whole keys, if there is one."""

    table: TableName
    keys: Template | None = None
    sets: tuple[Template, ...] = ()
    has_fields: bool = False
    ttl_s: int = 0

    @property
    def is_plain(self) -> bool:
        """The table has no sets, fields or TTL, so the faster script can write it."""
        return not (self.sets or self.has_fields or self.ttl_s)

    @property
    def mark(self) -> str:
        return COLUMN_MARK if self.has_fields else ""

    @property
    def template(self) -> Template:
        return self.keys or Template((_Segment(table_field(self.table).decode()),), is_open=True)

    def key_maker(self, key: Sequence[str]) -> tuple[str, Callable[[Sequence[JsonValue]], str]]:
        """The prefix of all rows' keys, after the generation's, and a function that makes the rest of the key.

        The function takes values in the order of ``key``. Raises ConfigurationError if the template has other columns.
        """
        if self.keys is not None:
            if problems := self._key_problems(key):
                raise ConfigurationError(problems[0], hint="mend keys of this sink, and rebuild it: lockstep rebuild")
            return "", self.keys.maker(key)
        return f"{table_field(self.table).decode()}:", key_text

    def problems(self, table: Table) -> list[str]:
        problems = self._key_problems(table.key)
        names = {column.name for column in table.columns}
        for template in self.sets:
            problems += [
                f"sets: table {table.name} has no column {name!r}" for name in template.columns if name not in names
            ]
            if template.may_be_empty:
                problems.append(
                    f"sets: a set of table {table.name} would have no name where {template.columns[0]!r} is empty: put "
                    "some text"
                    " beside the column"
                )
        return problems

    def _key_problems(self, key: Sequence[str]) -> list[str]:
        if self.keys is None or set(self.keys.columns) == set(key):
            return []
        columns = ", ".join(f"{{{name}}}" for name in key)
        return [f"keys: the template of table {self.table} must have its key columns, all and no others: {columns}"]


@dataclass(frozen=True)
class Layout:
    """The layouts of all tables: some from the settings, all others alike."""

    keys: Mapping[TableName, Template] = field(default_factory=dict)
    sets: Mapping[TableName, tuple[Template, ...]] = field(default_factory=dict)
    ttl_s: Mapping[TableName, int] = field(default_factory=dict)
    has_fields: bool = False

    def of(self, name: TableName) -> TableLayout:
        return TableLayout(name, self.keys.get(name), self.sets.get(name, ()), self.has_fields, self.ttl_s.get(name, 0))

    def named(self) -> set[TableName]:
        return {*self.keys, *self.sets, *self.ttl_s}

    def problems(self) -> list[str]:
        """Problems that can be found without the tables' columns."""
        problems = [
            f"ttl_s: {ttl_s} s of table {name} isn't more than none" for name, ttl_s in self.ttl_s.items() if ttl_s <= 0
        ]
        return problems + _collisions([*self._set_templates(self.sets), *self._key_templates(self.keys)])

    def problems_with(self, tables: Sequence[Table]) -> list[str]:
        problems = [problem for table in tables for problem in self.of(table.name).problems(table)]
        keys = [(f"the keys of table {table.name}", self.of(table.name).template) for table in tables]
        return problems + _collisions([*self._set_templates(table.name for table in tables), *keys])

    def _key_templates(self, names: Iterable[TableName]) -> list[tuple[str, Template]]:
        return [(f"the keys of table {name}", self.keys[name]) for name in names]

    def _set_templates(self, names: Iterable[TableName]) -> list[tuple[str, Template]]:
        return [(f"a set of table {name}", template) for name in names for template in self.sets.get(name, ())]


def _collisions(templates: Sequence[tuple[str, Template]]) -> list[str]:
    return [
        f"{what} and {other} could be the same: change a template"
        for index, (what, template) in enumerate(templates)
        for other, another in templates[:index]
        if template.may_equal(another)
    ]


def fields_of(row: Mapping[str, JsonValue]) -> list[str | bytes]:
    """A row as alternating names and values of fields: text as it is, null left out, everything else as JSON."""
    fields: list[str | bytes] = []
    nulls = []
    for name, value in row.items():
        if value is None:
            nulls.append(name)
            continue
        fields.append(name if name[0] != COLUMN_MARK else COLUMN_MARK + name)
        fields.append(value if value.__class__ is str else orjson.dumps(value))
    if nulls:
        fields += (NULLS, orjson.dumps(nulls))
    return fields


def row_of(fields: Mapping[bytes, bytes], columns: Sequence[Column]) -> tuple[dict[str, JsonValue], list[str]]:
    """A row from its fields, in the event's form, and the columns that it was stored without."""
    row: dict[str, JsonValue] = {}
    lacks = []
    nulls = frozenset(orjson.loads(fields.get(NULLS.encode(), b"[]")))
    for column in columns:
        name = column.name
        value = fields.get((name if name[0] != COLUMN_MARK else COLUMN_MARK + name).encode())
        row[name] = None if value is None else _value(column, value)
        if value is None and name not in nulls:
            lacks.append(name)
    return row, lacks


def _value(column: Column, value: bytes) -> JsonValue:
    if column.is_array or column.value_type in _JSON_TYPES:
        try:
            parsed: JsonValue = orjson.loads(value)
        except orjson.JSONDecodeError:
            pass  # NaN, infinity or an array with explicit bounds: text that is never JSON
        else:
            return parsed
    return value.decode()
