"""What ``lockstep init`` takes from a database for its file: tables for the examples, secrets, sinks. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from cdc.model.errors import ConfigurationError
from cdc.model.printable import toml_text
from cdc.model.table import Column, Table, TableName, quote_identifier
from cdc.secret import address_holds_secret
from sinks.kind import SinkKind
from sinks.registry import KINDS

_LOOKS_SECRET: Final = re.compile(
    r"pass(word|wd|phrase|code)|(^|_)(pwd|pin|cvv|cvc|ssn|iban|tin|salt|otp|mfa|totp)(_|$)|secret|token|credential"
    r"|api_?key|(private|access|encryption|signing)_?key|(credit|debit|payment)_?card|card_?(number|no$)",
    re.IGNORECASE,
)
_EXCLUDE: Final = re.compile(r'^# exclude = \["public\.orders\.secret"\].*\n', re.MULTILINE)
_NAMES: Final = re.compile(r'^# names = \{ "public\.items".*\n', re.MULTILINE)
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")
_NUMBERS: Final = ("smallint", "integer", "bigint", "numeric", "real", "double precision")
_TEXTS: Final = ("text", "character varying", "character")

_KINDS: Final[Mapping[str, SinkKind]] = {scheme: kind for kind in KINDS.values() for scheme in kind.schemes}
"""By the scheme of an address. A path has none."""


@dataclass(frozen=True, slots=True)
class NewSink:
    name: str
    address: str

    @classmethod
    def parse(cls, text: str) -> "NewSink":
        """Parse ``search=https://host:9200``. Raises ConfigurationError for anything else, and for a password in it."""
        name, equals, address = text.partition("=")
        try:
            is_known = urlsplit(address).scheme in _KINDS
        except ValueError:
            is_known = False
        if not equals or not name or not is_known or not address.partition("://")[0]:
            raise ConfigurationError(
                f"--sink {visible_address(text)}: a name and an address are expected",
                hint="search=https://search:9200, cache=redis://cache:6379/0,"
                " dwh=postgresql+psycopg://me@dwh:5432/dwh, file=duckdb:////srv/dwh.duckdb, lake=s3://bucket/lake",
            )
        if address_holds_secret(address):
            raise ConfigurationError(
                f"--sink {name}: the address holds a password",
                hint=f"leave it out, and put it into $LOCKSTEP_SINK_{name.upper()}_PASSWORD or login.password_file:"
                " arguments show in process lists",
            )
        return cls(name, address)

    def section(self, hidden: Sequence[str]) -> str:
        """Its section of the file. ``hidden`` are columns that it leaves out."""
        kind = _KINDS[urlsplit(self.address).scheme]
        address = kind.address_setting.format(address=toml_text(self.address))
        lines = [f"[sinks.{self.name}]", f'type = "{kind.name}"', address]
        if hidden:
            lines.append(f"exclude = [{', '.join(map(toml_text, hidden))}]")
        return "\n".join(lines) + "\n"


NO_KEY: Final = "no primary key: see source.options"


@dataclass(frozen=True, slots=True)
class FoundTables:
    captured: Mapping[TableName, Table]
    """Those that can be captured."""

    skipped: Sequence[tuple[TableName, str]] = ()
    """The others, each with the reason."""

    partitions: Mapping[TableName, Sequence[TableName]] = field(default_factory=dict)
    """Partitions by their table. Their rows come with it."""

    @property
    def all_partitions(self) -> list[TableName]:
        return [name for names in self.partitions.values() for name in names]

    @property
    def left_out(self) -> list[str]:
        """What isn't captured, a line each. The partitions of a table share one line."""
        lines = [f"# not captured: {table} ({why})" for table, why in self.skipped]
        for root, of_it in self.partitions.items():
            what = "1 partition" if len(of_it) == 1 else f"{len(of_it)} partitions"
            lines.append(f"# not captured: {what} of {root}, whose rows come with it")
        return lines

    def with_real_names(self, text: str) -> str:
        """The file's examples, with this database's tables and columns in place of a shop's."""
        keyless = [table for table, why in self.skipped if why == NO_KEY]
        return _with_real_names(text, list(self.captured.values()), keyless)


def _part(name: str) -> str:
    """A part of a column's name, as the settings of sinks read it."""
    return name if _PLAIN.fullmatch(name) else quote_identifier(name)


def visible_address(text: str) -> str:
    """An address that may be shown: the part before ``@`` is hidden."""
    return re.sub(r"//[^/]*@", "//...@", text)


def secret_columns(tables: Iterable[Table]) -> list[str]:
    """Columns whose names look as if they hold secrets, except key columns, which every sink needs."""
    return [
        ".".join(map(_part, (table.name.schema, table.name.name, column.name)))
        for table in tables
        for column in table.columns
        if _looks_secret(column.name) and column.name not in table.key
    ]


def _looks_secret(column: str) -> bool:
    """Whether the name does. ``token_id`` refers to a row, and holds no secret itself."""
    return _LOOKS_SECRET.search(column) is not None and not column.lower().endswith("_id")


def _with_real_names(text: str, tables: Sequence[Table], keyless: Sequence[TableName]) -> str:
    """Uses the table that fits the examples best. The shop's names stay only if no table has plain names."""
    chosen = max(filter(_fits, tables), key=_variety, default=None)
    if chosen is not None:
        others = [table.name for table in tables if table.name != chosen.name and _is_plain(table.name)]
        if not others:  # a table can't have both of two settings of a cache
            text = _NAMES.sub("", text)
        text = text.replace("public.items", str(others[0] if others else chosen.name))
        text = _replace_columns(text, chosen).replace("public.orders", str(chosen.name))
    if keyless and _is_plain(keyless[0]):
        text = text.replace("public.log", str(keyless[0]))
    return text


def _is_plain(name: TableName) -> bool:
    return all(_PLAIN.fullmatch(part) for part in (name.schema, name.name))


def _fits(table: Table) -> bool:
    """Whether the table, its key and another column have names that the examples can use."""
    return (
        _is_plain(table.name)
        and bool(table.key)
        and all(map(_PLAIN.fullmatch, table.key))
        and bool(_columns(table, None))
    )


def _variety(table: Table) -> tuple[bool, bool, bool]:
    """How well the table's columns suit the examples; the greatest is best."""
    return len(table.key) == 1, len(_columns(table, _TEXTS)) > 1, bool(_columns(table, _NUMBERS))


def _columns(table: Table, types: Sequence[str] | None) -> list[str]:
    """Its columns of these types, or of all types, without those of the key."""
    own = [column for column in table.columns if column.name not in table.key and _PLAIN.fullmatch(column.name)]
    return [column.name for column in own if types is None or _base(column) in types]


def _base(column: Column) -> str:
    return column.type_name.partition("(")[0]


def _replace_columns(text: str, table: Table) -> str:
    """The shop's columns are those of ``public.orders``; each name is a whole word in the examples."""
    others = _columns(table, None)
    numbers = [name for name in others if name in _columns(table, _NUMBERS)]
    left_out = next((name for name in others if _looks_secret(name)), [*numbers, *others][-1])
    if len(others) > 1:  # a column that is left out can be in no other example
        others, numbers = ([name for name in names if name != left_out] for names in (others, numbers))
    else:
        text = _EXCLUDE.sub("", text)
    texts = [name for name in _columns(table, _TEXTS) if name in others] or others
    times = [column.name for column in table.columns if _base(column).startswith("timestamp")]
    listed = ", ".join(f'"{name}"' for name in table.key)
    condition, sum_of = f"{others[0]} is not null", f"length({others[0]})"
    if numbers:
        condition, sum_of = f"{numbers[0]} > 0", f"{numbers[0]} * 0.2"
    named = {
        '"public.orders.secret"': f'"public.orders.{left_out}"',
        '"public.orders.note"': f'"public.orders.{texts[0]}"',
        '"public.orders.phone"': f'"public.orders.{texts[-1]}"',
        '"public.orders.name"': f'"public.orders.{texts[0]}"',
        '"amount > 0"': f'"{condition}"',
        '"amount * 0.2"': f'"{sum_of}"',
        "{customer_id}": f"{{{(numbers or others)[0]}}}",
        "by_customer": f"by_{(numbers or others)[0]}",
        "{id}": ":".join(f"{{{name}}}" for name in table.key),
        '"public.orders" = ["id"]': f'"public.orders" = [{listed}]',
        'key = ["id"]': f"key = [{listed}]",
        '"id desc"': f'"{table.key[0]} desc"',
        "select id, region": f"select {', '.join(table.key)}, {texts[0]}",
        "region is not null": f"{texts[0]} is not null",
        '["region"]': f'["{texts[0]}"]',
        'table = "orders"': f'table = "{table.name.name}"',
        '"created_at"': f'"{(times or others)[0]}"',
    }
    if len(texts) == 1:  # two settings can't have one name
        text = text.replace(', "public.orders.name" = { truncate = 1 }', "")
    for example, real in named.items():
        text = text.replace(example, real)
    return text
