"""Settings of the captured database."""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr, SecretStr, StrictBool, field_validator, model_validator

from cdc.model.table import TableName
from cdc.model.table_pattern import TablePattern, is_pattern
from cdc.postgres.dsn import holds_secret, parse_dsn
from cdc.secret import read_secret
from cdc.settings import Settings

SOURCE_PASSWORD_VARIABLE = "LOCKSTEP_SOURCE_PASSWORD"  # noqa: S105  the name of a variable, not a password


class TableOptions(Settings):
    """What differs for one table."""

    key: tuple[str, ...] = Field(
        default=(),
        description="columns of a unique index, all not null, that key the events instead of the primary key",
    )
    append_only: StrictBool = Field(
        default=False, description="a table without any key: its topic keeps every event instead of the newest per key"
    )

    @field_validator("key")
    @classmethod
    def _distinct(cls, key: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(key)) != len(key):
            raise ValueError("names a column twice")
        return key

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.key and self.append_only:
            raise ValueError("has a key and is append_only: a key identifies its rows, so leave append_only out")
        return self


# Cached by the texts alone: handling thousands of tables asks for all of them again for each one.
@lru_cache(maxsize=16)
def _names(texts: tuple[str, ...]) -> tuple[TableName, ...]:
    return tuple(TableName.parse(text) for text in texts if not is_pattern(text))


@lru_cache(maxsize=16)
def _matching(texts: tuple[str, ...]) -> tuple[TablePattern, ...]:
    """What each of the texts matches, names and patterns alike."""
    return tuple(map(TablePattern.parse, texts))


@lru_cache(maxsize=16)
def _patterns(texts: tuple[str, ...]) -> tuple[TablePattern, ...]:
    return _matching(tuple(filter(is_pattern, texts)))


class SourceSettings(Settings):
    """The captured database."""

    dsn: str = Field(description="libpq connection string without a password: host=... port=... user=... dbname=...")
    password_file: Path | None = Field(
        default=None, description=f"file that holds the password; else ${SOURCE_PASSWORD_VARIABLE} or libpq's own ways"
    )
    tables: tuple[str, ...] = Field(
        min_length=1, description="schema.table of every captured table; patterns take in all that match: 'public.*'"
    )
    exclude_tables: tuple[str, ...] = Field(
        default=(), description="tables that the patterns of tables leave out, by name or by pattern: 'public.*_old'"
    )
    options: dict[str, TableOptions] = Field(
        default={}, description="per table: [source.options.'schema.table'] key = [...] or append_only = true"
    )
    messages: tuple[str, ...] = Field(
        default=(), description="prefixes of logical messages (pg_logical_emit_message) that go to their own topic"
    )
    outbox: str | None = Field(
        default=None,
        description="schema.table of an outbox (id, aggregatetype, aggregateid, type, payload), whose new rows go to a"
        " topic per aggregate type",
    )
    publication: str | None = Field(
        default=None, min_length=1, description="publication; default lockstep_<pipeline name>"
    )
    origin: Literal["any", "none"] = Field(
        default="any",
        description='"none" leaves out what was itself replicated into the source (PostgreSQL 16 and later)',
    )
    heartbeat_interval_s: Annotated[float, Field(gt=0)] = Field(
        default=10.0, description="how often an idle database gets a heartbeat message, so that its slot moves on"
    )

    @field_validator("dsn")
    @classmethod
    def _no_password(cls, dsn: str) -> str:
        if holds_secret(parse_dsn(dsn)):
            raise ValueError(f"must not hold a password: use password_file or ${SOURCE_PASSWORD_VARIABLE}")
        return dsn

    _taken_in: tuple[TableName, ...] | None = PrivateAttr(default=None)
    """The tables that the patterns match, once that was resolved."""

    _left: frozenset[TableName] = PrivateAttr(default=frozenset())
    """Named tables that capture was started without."""

    @field_validator("tables", "exclude_tables")
    @classmethod
    def _names_or_patterns(cls, tables: tuple[str, ...]) -> tuple[str, ...]:
        names, problems = [], []
        for table in tables:
            try:
                names.append(table if is_pattern(table) else TableName.parse(table))
                TablePattern.parse(table)
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("; ".join(problems))
        if len(set(names)) != len(names):
            raise ValueError("names a table twice")
        return tables

    @model_validator(mode="after")
    def _exclusions_are_of_patterns(self) -> Self:
        if self.exclude_tables and not self.has_patterns:
            raise ValueError("exclude_tables leaves tables out that patterns take in, and tables has no pattern")
        excluded = set(_names(self.exclude_tables))
        both = [str(name) for name in self.named if name in excluded]
        if both:
            raise ValueError(f"exclude_tables leaves out what tables names: {', '.join(both)}")
        return self

    @model_validator(mode="after")
    def _options_are_of_captured_tables(self) -> Self:
        unknown = [text for text in self.options if not self.may_have(TableName.parse(text))]
        if unknown:
            raise ValueError(f"options names tables that tables doesn't: {', '.join(unknown)}")
        if len({TableName.parse(text) for text in self.options}) != len(self.options):
            raise ValueError("options names a table twice")
        return self

    @model_validator(mode="after")
    def _outbox_is_no_captured_table(self) -> Self:
        if self.outbox is not None and TableName.parse(self.outbox) in self.named:
            raise ValueError(f"outbox: {self.outbox} is in tables as well; a table is captured or an outbox, not both")
        return self

    @property
    def outbox_name(self) -> TableName | None:
        return TableName.parse(self.outbox) if self.outbox else None

    @property
    def published_names(self) -> tuple[TableName, ...]:
        """All tables that the publication must send: the captured ones and the outbox."""
        return (*self.table_names, *([self.outbox_name] if self.outbox_name else []))

    @property
    def keys(self) -> dict[TableName, tuple[str, ...]]:
        """Table -> its configured key, if it has one."""
        return {TableName.parse(text): options.key for text, options in self.options.items() if options.key}

    @property
    def append_only(self) -> frozenset[TableName]:
        """The tables whose events have no key of their own."""
        return frozenset(TableName.parse(text) for text, options in self.options.items() if options.append_only)

    @property
    def append_only_names(self) -> tuple[TableName, ...]:
        """The captured tables without a key."""
        append_only = self.append_only
        return tuple(name for name in self.table_names if name in append_only)

    @property
    def keyed_names(self) -> tuple[TableName, ...]:
        """The captured tables with a key, which every sink accepts."""
        append_only = self.append_only
        return tuple(name for name in self.table_names if name not in append_only)

    @property
    def named(self) -> tuple[TableName, ...]:
        """The tables that are named, and not only matched."""
        return _names(self.tables)

    @property
    def has_patterns(self) -> bool:
        return bool(self.patterns)

    @property
    def patterns(self) -> tuple[TablePattern, ...]:
        return _patterns(self.tables)

    def may_have(self, name: TableName) -> bool:
        """Whether a table of this name is captured if it exists: it is named, or a pattern matches."""
        return name in self.named or self.matches(name)

    def matches(self, name: TableName) -> bool:
        """Whether a pattern selects this name. The outbox is never selected."""
        if not any(pattern.matches(name) for pattern in self.patterns) or name == self.outbox_name:
            return False
        return not any(pattern.matches(name) for pattern in _matching(self.exclude_tables))

    @property
    def is_resolved(self) -> bool:
        """Whether the captured tables are known: there are no patterns, or they were resolved."""
        return self._taken_in is not None or not self.has_patterns

    def resolved(self, found: Iterable[TableName]) -> Self:
        """The settings with the patterns resolved to those of these tables that they match."""
        named = set(self.named)
        copied = self.model_copy()
        copied._taken_in = tuple(name for name in found if name not in named and self.matches(name))
        return copied

    def only(self, captured: Iterable[TableName]) -> Self:
        """``resolved``, without named tables that aren't among these: capture was started without them."""
        names = dict.fromkeys(captured)
        copied = self.resolved(names)
        copied._left = frozenset(name for name in self.named if name not in names)
        return copied

    @property
    def table_names(self) -> tuple[TableName, ...]:
        """The captured tables, named ones first. Patterns must have been resolved."""
        if self._taken_in is None and self.has_patterns:
            raise RuntimeError("source.tables has patterns that aren't resolved yet")
        left = self._left
        named = tuple(name for name in self.named if name not in left) if left else self.named
        return (*named, *(self._taken_in or ()))

    def password(self) -> SecretStr | None:
        """The present password, if there is one. Raises ConfigurationError if its file can't be read."""
        return read_secret(variable=SOURCE_PASSWORD_VARIABLE, file=self.password_file)
