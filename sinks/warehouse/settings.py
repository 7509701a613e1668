"""The settings of a SQL warehouse."""

import re
from collections.abc import Collection, Mapping, Sequence, Set
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SecretStr, StrictBool, model_validator

from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.table import Table, TableName
from sinks.access import same_host
from sinks.table_settings import PurgingSettings
from sinks.warehouse.names import NAME_BYTES_MAX, WarehouseNames
from sinks.warehouse.own_indexes import OwnIndex
from sinks.warehouse.unfit import new_table, unfit_tables


def _are_names(names: dict[str, str]) -> dict[str, str]:
    problems = [f"{table} has an empty name" for table, name in names.items() if not name]
    problems += [
        f"{table}: the name {name!r} is longer than {NAME_BYTES_MAX} bytes, PostgreSQL would cut it"
        for table, name in names.items()
        if len(name.encode()) > NAME_BYTES_MAX
    ]
    problems += [f"{table}: a name can't hold the character NUL" for table, name in names.items() if "\0" in name]
    if problems:
        raise ValueError("; ".join(problems))
    TableName.parse_all(names)
    return names


def _is_choice(given: object) -> object:
    """Reject what pydantic would take for a truth value, and name both kinds in the message."""
    if not isinstance(given, bool | list | tuple):
        raise ValueError("must be true, false, or a list of tables in [ ]")  # noqa: TRY004  which pydantic reports
    return given


def _are_tables(tables: bool | tuple[str, ...]) -> bool | tuple[str, ...]:
    if not isinstance(tables, bool):
        TableName.parse_all(tables)
    return tables


def _are_of_tables(indexes: dict[str, tuple[OwnIndex, ...]]) -> dict[str, tuple[OwnIndex, ...]]:
    TableName.parse_all(indexes)
    return indexes


# As SQLAlchemy parses an address.
_SERVER: Final = re.compile(
    r"postgresql(?:\+\w+)?://(?:(?P<user>[^:/]*)(?::[^@]*)?@)?(?P<host>\[[^/?\]]+\]|[^/:?]+)?(?::(?P<port>\d*))?"
    r"(?:/(?P<database>[^?]*))?(?:\?(?P<query>.*))?"
)


def _same_address(server: str) -> str:
    host, _, port = server.rpartition(":")
    return f"{same_host(host)}:{port}"


_DUCKDB: Final = re.compile(r"duckdb(\+\w+)?:")
_FILE: Final = re.compile(r"duckdb(?:\+\w+)?:///(?P<path>/[^?]*[^/?])(\?.*)?")


class WarehouseSettings(PurgingSettings):
    """A warehouse by SQLAlchemy address: PostgreSQL or a DuckDB file.

    PostgreSQL is ``postgresql+psycopg://user@host/database``. A file is ``duckdb:////directory/file.duckdb``,
    optionally followed by settings of DuckDB, such as ``?memory_limit=4GB``.

    ``prefix`` is the schema of the views, called ``schema`` in the configuration. ``names`` maps source tables to their
    names here; others have default names. ``history`` names the tables of which all versions are stored; true: all
    tables. ``indexes`` are additional indexes. ``keep_history_days`` is how far back a history goes, 0: all of it.

    ``lock_timeout_s`` is how long to wait for others: for a lock in PostgreSQL, or for the DuckDB file. A file has no
    login, no TLS and no idle connection.
    """

    SHAPING: ClassVar[frozenset[str]] = PurgingSettings.SHAPING | {"names", "history"}
    OWN: ClassVar[frozenset[str]] = PurgingSettings.OWN | {
        "schema",
        "names",
        "history",
        "keep_history_days",
        "indexes",
    }
    NOT_OF_VIEWS: ClassVar[frozenset[str]] = PurgingSettings.NOT_OF_VIEWS | {"history", "keep_history_days"}
    NO_WHOLE_STEPS: ClassVar[str] = ""
    WHY_NO_SHARDS: ClassVar[str] = (
        "readers of a warehouse see a view's transactions as a whole, and would see half of a transaction that two"
        " shards write"
    )
    TAKES_APPEND_ONLY: ClassVar[bool] = True
    FOLLOWS_COLUMNS: ClassVar[bool] = True

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    type: Literal["warehouse"] = "warehouse"
    url: SecretStr
    prefix: str | None = Field(None, alias="schema", min_length=1)
    names: Annotated[dict[str, str], AfterValidator(_are_names)] = Field(default_factory=dict)
    history: Annotated[StrictBool | tuple[str, ...], BeforeValidator(_is_choice), AfterValidator(_are_tables)] = False
    keep_history_days: float = Field(0.0, ge=0)
    indexes: Annotated[dict[str, tuple[OwnIndex, ...]], AfterValidator(_are_of_tables)] = Field(default_factory=dict)
    lock_timeout_s: float = Field(5.0, gt=0)

    def why_not_consistent(self) -> list[str]:
        reasons = super().why_not_consistent()
        if self.is_file:
            reasons.append("a DuckDB file is opened for each batch, and has no transactions within one")
        if self.history:
            reasons.append("not with history: it gets all versions of a row, and a step has the newest alone")
        return reasons

    @property
    def libraries(self) -> tuple[str, ...]:
        return ("duckdb_engine",) if self.is_file else ("sqlalchemy.dialects.postgresql.psycopg", "psycopg")

    @property
    def likes_large_batches(self) -> bool:
        return self.is_file  # it is opened for each batch, and others take turns

    @property
    def address(self) -> str:
        return urlsplit(self.url.get_secret_value()).netloc.rpartition("@")[2]

    @property
    def file_of_one_machine(self) -> str:
        return "url" if self.is_file else ""

    @property
    def takes_sql(self) -> bool:
        return not self.is_file

    @property
    def is_file(self) -> bool:
        return _DUCKDB.match(self.url.get_secret_value()) is not None

    @property
    def file(self) -> Path:
        """The file's real path, which identifies it. Raises ConfigurationError if the address isn't a file's."""
        match = _FILE.fullmatch(self.url.get_secret_value())
        if match is None:
            raise ConfigurationError(
                "the warehouse's address isn't that of a DuckDB file",
                hint="duckdb:///, then the file's absolute path: duckdb:////var/lib/shop/dwh.duckdb; a database in "
                "memory would be gone with its job",
            )
        return Path(unquote(match["path"])).resolve()

    @model_validator(mode="after")
    def _has_what_a_file_has(self) -> "WarehouseSettings":
        if not self.is_file:
            return self
        if _FILE.fullmatch(self.url.get_secret_value()) is None:
            raise ValueError("url: duckdb:///, then the absolute path of a file: duckdb:////var/lib/shop/dwh.duckdb")
        settings = ("login", "tls")
        fields = type(self).model_fields
        given = [
            name for name in settings if getattr(self, name) != fields[name].get_default(call_default_factory=True)
        ]
        if given:
            raise ValueError(f"a DuckDB file has no {', '.join(given)}: remove {'them' if len(given) > 1 else 'it'}")
        problems = [
            f"indexes of {table}: {problem}"
            for table, indexes in self.indexes.items()
            for index in indexes
            for problem in index.file_problems()
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @model_validator(mode="after")
    def _is_of_this_sinks_tables(self) -> "WarehouseSettings":
        """Checks what can be checked without the source; ``prepare`` knows the tables."""
        tables = set(self.contained_tables)
        problems = []
        if tables:
            settings = (("names", self.names), ("history", self._history), ("indexes", self.indexes))
            for setting, texts in settings:
                strangers = [text for text, name in TableName.parse_all(texts).items() if name not in tables]
                if strangers:
                    problems.append(f"{setting} has tables that aren't among tables: {', '.join(strangers)}")
        named = (
            tables | set(TableName.parse_all(self.names).values()) | set(TableName.parse_all(self._history).values())
        )
        problems += self.warehouse_names.problems(named)
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def problems_with(self, tables: Sequence[Table]) -> list[str]:
        strangers = self.strangers({table.name for table in tables})
        return strangers + self._indexed_problems(tables) + super().problems_with(tables)

    def unfit(self, sink: str, tables: Sequence[Table]) -> Mapping[TableName, LockstepError]:
        names = self.warehouse_names
        held = (new_table(table, names, has_synced_at=self.synced_at) for table in tables)
        return unfit_tables(held, names, is_file=self.is_file)

    def problems_at_work(self, tables: Sequence[Table]) -> list[str]:
        names = {table.name for table in tables}
        strangers = [f"indexes: this sink has no table {name}" for name in self.indexes_by_table if name not in names]
        return strangers + self._indexed_problems(tables) + super().problems_at_work(tables)

    def _indexed_problems(self, tables: Sequence[Table]) -> list[str]:
        if not self.is_file:
            return self.unknown_indexed(tables)
        return self.unknown_indexed(tables) + [
            f"indexes: {table.name} has an array in column {name!r}, and DuckDB has no indexes on arrays"
            for table in tables
            for index in self.indexes_by_table.get(table.name, ())
            for name in index.arrays(table)
        ]

    def unknown_indexed(self, tables: Sequence[Table]) -> list[str]:
        return [
            f"indexes: {table.name} has no column {name!r}"
            for table in tables
            for index in self.indexes_by_table.get(table.name, ())
            for name in index.unknown_columns([column.name for column in table.columns])
        ]

    @property
    def indexes_by_table(self) -> dict[TableName, tuple[OwnIndex, ...]]:
        return {TableName.parse(table): indexes for table, indexes in self.indexes.items()}

    def strangers(self, tables: Collection[TableName]) -> list[str]:
        """Settings that name other tables than these, perhaps by a typing error."""
        return [
            f"{setting}: this sink has no table {name}"
            for setting, names in (
                ("names", self.warehouse_names.chosen),
                ("history", self.history_tables),
                ("indexes", self.indexes_by_table),
            )
            for name in sorted(names)
            if name not in tables
        ]

    def places(self, name: str) -> Set[tuple[str, ...]]:
        where = str(self.file) if self.is_file else self._server_and_database()
        return {(where, self.prefix or name)}

    def _server_and_database(self) -> str:
        """Server and database in one spelling; the address itself if they can't be parsed."""
        text = self.url.get_secret_value()
        match = _SERVER.fullmatch(text)
        if match is None:
            return text
        given = parse_qs(match["query"] or "")
        port = given.get("port", [match["port"] or "5432"])[0]
        hosts = [host for hosts in given.get("host", [match["host"] or ""]) for host in hosts.split(",")]
        servers = [host if re.search(r"[^:\]]:\d+$|\]:\d+$", host) else f"{host}:{port}" for host in hosts]
        user = self.login.user or unquote(match["user"] or "")
        database = given.get("dbname", [match["database"] or user])[0]
        return " ".join((*sorted(map(_same_address, servers)), database))

    @property
    def _history(self) -> tuple[str, ...]:
        return () if isinstance(self.history, bool) else self.history

    @property
    def warehouse_names(self) -> WarehouseNames:
        chosen = {TableName.parse(table): name for table, name in self.names.items()}
        history = self.history if isinstance(self.history, bool) else self.history_tables
        return WarehouseNames(chosen, history, folds_case=self.is_file)

    @property
    def history_tables(self) -> frozenset[TableName]:
        return frozenset(map(TableName.parse, self._history))

    @property
    def keeps_history(self) -> bool:
        return bool(self.history)
