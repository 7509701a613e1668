"""The settings of the OpenSearch sink."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from cdc.model.errors import LockstepError
from cdc.model.table import Table, TableName
from sinks.access import Login, same_server, split_address
from sinks.opensearch.ids import IdTemplate
from sinks.opensearch.mapping import copy_targets, field_name
from sinks.opensearch.names import alias_name, name_problems
from sinks.table_settings import PROJECTING, TableSettings
from sinks.wrappers.projection import parse_column, parse_columns

_ADDRESS: Final = "https://host:9200"
_PORTS: Final = {"http": 9200, "https": 443}
"""The client's default ports."""

# Settings that an index must not be created with, and why.
_SETTINGS_OF_OURS: Final[Mapping[str, str]] = {
    "number_of_shards": "set shards of this sink",
    "number_of_replicas": "set replicas of this sink",
    "auto_expand_replicas": "set replicas of this sink",
    "refresh_interval": "set refresh_interval_ms of this sink",
    "gc_deletes": "how long markers stay goes by it",
    "mapping.total_fields.limit": "follows from the table's columns",
    "translog.durability": "applied rows must be durable",
    "default_pipeline": "documents must be the rows as they are",
    "final_pipeline": "documents must be the rows as they are",
    "derived_source": "documents must be the rows as they are",
    "hidden": "commands for all indexes of a sink would pass it by",
}


class OpenSearchSettings(TableSettings):
    """An OpenSearch cluster: the addresses of one or more nodes.

    ``prefix`` is the first part of every index. ``refresh_interval_ms`` is how soon a write can be found: a shorter
    interval costs the cluster more refreshes of each index that is always written.

    ``names`` replaces ``<schema>.<table>`` in index names. ``ids`` are templates of documents' ids
    (``sinks.opensearch.ids``). ``routing`` names the key columns that lead documents to a shard.

    ``fields`` says how columns are indexed (``sinks.opensearch.mapping``); columns have their names here (``rename``).
    ``index_settings`` are further settings of new indexes. Both are in OpenSearch's own words.

    ``aws_region`` signs requests for Amazon OpenSearch Service there, instead of a ``login``.
    """

    SHAPING: ClassVar[frozenset[str]] = PROJECTING | {
        "names",
        "ids",
        "routing",
        "fields",
        "index_settings",
        "shards",
        "deletes",
    }
    OWN: ClassVar[frozenset[str]] = TableSettings.OWN | {"names", "ids", "routing", "fields"}
    TLS_ADDRESS: ClassVar[str] = "let each address begin with https"
    NO_WHOLE_STEPS: ClassVar[str] = "OpenSearch has no transaction over several documents"

    type: Literal["opensearch"] = "opensearch"
    urls: tuple[str, ...] = Field(("http://127.0.0.1:9200",), min_length=1)
    names: dict[str, str] = Field(default_factory=dict)
    ids: dict[str, str] = Field(default_factory=dict)
    routing: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    fields: dict[str, dict[str, Any]] = Field(default_factory=dict)
    index_settings: dict[str, Any] = Field(default_factory=dict)
    aws_region: str | None = Field(None, pattern=r"^[a-z0-9-]+$")
    shards: int = Field(1, gt=0)
    replicas: int = Field(1, ge=0)
    refresh_interval_ms: int = Field(500, gt=0)
    deletes: Literal["versioned", "marker"] = "versioned"
    timeout_s: float = Field(60.0, gt=0)

    @property
    def libraries(self) -> tuple[str, ...]:
        return ("opensearchpy",)

    @property
    def address(self) -> str:
        return ", ".join(self.urls)

    @property
    def visible_after_s(self) -> float:
        return self.refresh_interval_ms / 1000

    def tls_servers(self) -> Iterable[tuple[str, int]]:
        parts = [urlsplit(url) for url in self.urls]
        return [(part.hostname or "", part.port or _PORTS["https"]) for part in parts if part.scheme == "https"]

    def plain_addresses(self) -> Iterable[str]:
        return [url for url in self.urls if url.lower().startswith("http:")]

    @field_validator("urls")
    @classmethod
    def _no_secrets(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            parts = split_address(url, looks_like=_ADDRESS)
            if parts.scheme not in ("http", "https"):
                raise ValueError(f"an address looks like {_ADDRESS}")
            if parts.username or parts.password:
                raise ValueError("user and password belong into login, not into the address")
        return urls

    @field_validator("names", "ids", "routing")
    @classmethod
    def _are_of_tables(cls, by_table: dict[str, Any]) -> dict[str, Any]:
        _raise_all(_table_problems(by_table))
        return by_table

    @field_validator("names")
    @classmethod
    def _are_names(cls, names: dict[str, str]) -> dict[str, str]:
        _raise_all(name_problems(names))
        return names

    @field_validator("ids")
    @classmethod
    def _are_templates(cls, ids: dict[str, str]) -> dict[str, str]:
        problems = []
        for table, text in ids.items():
            try:
                IdTemplate.parse(text)
            except ValueError as error:
                problems.append(f"{table}: {error}")
        _raise_all(problems)
        return ids

    @field_validator("routing")
    @classmethod
    def _name_columns(cls, routing: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        _raise_all(
            f"{table}: name columns of its key, each once"
            for table, of in routing.items()
            if not of or len(of) != len(set(of))
        )
        return routing

    @field_validator("fields")
    @classmethod
    def _are_mappings(cls, fields: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        parse_columns(fields)
        problems = [
            f'{text}: nothing is said of it: {{ type = "keyword" }}, say' for text, how in fields.items() if not how
        ]
        problems += [
            f"{text}: its type is a text" for text, how in fields.items() if not isinstance(how.get("type", ""), str)
        ]
        problems += [
            f"{text}: copy_to names a field, or a list of them, without dots and none of OpenSearch's own"
            for text, how in fields.items()
            if not _are_plain_fields(how.get("copy_to", ()))
        ]
        _raise_all(problems)
        return fields

    @field_validator("index_settings")
    @classmethod
    def _are_not_ours(cls, index_settings: dict[str, Any]) -> dict[str, Any]:
        problems = [
            f"{name}: {why}"
            for name in flat_settings(index_settings)
            for ours, why in _SETTINGS_OF_OURS.items()
            if name == ours or name.startswith(f"{ours}.")
        ]
        _raise_all(problems)
        return index_settings

    @model_validator(mode="after")
    def _are_here(self) -> Self:
        excluded = parse_columns(self.exclude)
        known = frozenset(self.contained_tables)
        problems = []
        if self.tls is not None and not all(url.startswith("https:") for url in self.urls):
            problems.append("tls is set, and an address begins with http: let each begin with https, or remove tls")
        if self.aws_region is not None and self.login != Login():
            problems.append("aws_region and login exclude each other: a request has one of them")
        for text in self.fields:
            table, column = parse_column(text)
            if column in excluded.get(table, ()):
                problems.append(f"fields names {text}, which exclude leaves out")
            if known and table not in known:
                problems.append(f"fields names {text}, and tables doesn't name {table}")
        for setting, by_table in (("names", self.names), ("ids", self.ids), ("routing", self.routing)):
            problems += [
                f"{setting} names {text}, and tables doesn't"
                for text in by_table
                if known and TableName.parse(text) not in known
            ]
        _raise_all(problems)
        return self

    def places(self, name: str) -> Set[tuple[str, ...]]:
        """Each node leads to the whole cluster."""
        nodes = [split_address(url, looks_like=_ADDRESS) for url in self.urls]
        return {
            (
                same_server(node, default_port=_PORTS[node.scheme]),
                node.path.rstrip("/"),
                self.prefix or name,
            )
            for node in nodes
        }

    def table_names(self) -> Mapping[TableName, str]:
        return {TableName.parse(text): name for text, name in self.names.items()}

    def fields_of(self, name: TableName) -> dict[str, dict[str, Any]]:
        parsed = ((parse_column(text), how) for text, how in self.fields.items())
        return {column: how for (table, column), how in parsed if table == name}

    def id_of(self, name: TableName) -> IdTemplate | None:
        """The template of a table's ids; None if they are the key's values."""
        return next(
            (IdTemplate.parse(text) for table, text in self.ids.items() if TableName.parse(table) == name), None
        )

    def routing_of(self, name: TableName) -> tuple[str, ...]:
        """The key columns that route a table's documents; none if their ids do."""
        return next((columns for table, columns in self.routing.items() if TableName.parse(table) == name), ())

    def problems_with(self, tables: Sequence[Table]) -> list[str]:
        return [problem for table in tables for problem in self.problems_of(table)]

    def unfit(self, sink: str, tables: Sequence[Table]) -> Mapping[TableName, LockstepError]:
        unfit: dict[TableName, LockstepError] = {}
        for table in tables:
            try:
                alias_name(self.prefix or sink, table.name, self.table_names(), is_fenced=self.view is not None)
            except LockstepError as error:
                unfit[table.name] = error
        return unfit

    def problems_of(self, table: Table) -> list[str]:
        """Settings for a table that don't fit it: a typing error would have no effect, or a wrong one."""
        fields = self.fields_of(table.name)
        columns = {column.name for column in table.columns}
        further = copy_targets(fields)
        problems = [
            f"fields: table {table.name} has no column {name!r}"
            for name in fields
            if name not in columns and name not in further
        ]
        return problems + self.key_problems(table)

    def key_problems(self, table: Table) -> list[str]:
        """Entries of ``ids`` and ``routing`` for a table that don't fit its key."""
        columns = {column.name for column in table.columns}
        template = self.id_of(table.name)
        of_id = [] if template is None else template.problems(table.key)
        return [f"ids: table {table.name}: {problem}" for problem in of_id] + [
            f"routing: table {table.name} has no column {name!r}"
            if name not in columns
            else f"routing: {name!r} isn't a column of the key of table {table.name} ({', '.join(table.key)}): "
            "when it changes, the row's old document would stay on another shard"
            for name in self.routing_of(table.name)
            if name not in table.key
        ]


def _raise_all(problems: Iterable[str]) -> None:
    if text := "; ".join(problems):
        raise ValueError(text)


def _table_problems(texts: Iterable[str]) -> Iterator[str]:
    seen = dict[TableName, str]()
    for text in texts:
        try:
            table = TableName.parse(text)
        except ValueError as error:
            yield str(error)
        else:
            if table in seen:
                yield f"{seen[table]} and {text} are the same table"
            seen[table] = text


def _are_plain_fields(names: Any) -> bool:
    listed = [names] if isinstance(names, str) else names
    return isinstance(listed, list | tuple) and all(
        isinstance(name, str) and name == field_name(name) for name in listed
    )


def flat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Index settings by their full names, without a leading ``index.``."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            inner = flat_settings(value)
            flat |= (
                inner
                if name == "index"
                else {f"{name}.{rest}".removeprefix("index."): of for rest, of in inner.items()}
            )
        else:
            flat[name.removeprefix("index.")] = value
    return flat
