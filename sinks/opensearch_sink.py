"""Rows as documents in OpenSearch, one index per table and generation, read through an alias per table.

==================================  ========================================================================
``shop.public.orders``              alias of the live generation: what readers search
``shop.public.orders_g1``           index of generation 1
``shop.public.orders_g1_W``         alias that the job writes through. No index may have a capital letter, so a late write
                                    can't make a dropped index anew, whatever ``action.auto_create_index`` says
                                    (``require_alias`` protects against late writes, but not against late deletes)
``shop.lockstep_progress``          how far each generation is (``g1``), and notes (``note.<name>``), read by id only
==================================  ========================================================================

The tag is the document's external version (``cdc.model.tag``): the server refuses older writes.

**Deletes.** ``deletes = "versioned"`` removes the document; the server refuses an older write to it for as long as it remembers the
delete (``gc_deletes_s``, an hour), which ends when its node restarts or the shard moves. A write that is older than that
comes only from a job that hung as long, or from a second one. Where that can happen, ``deletes = "marker"`` writes a document
with the tag alone instead, which never forgets. Readers don't find it: their aliases have a filter (a GET by id has none). Markers stay
until the next generation is built.

**Mapping.** Strict, made from the table's shape, never guessed from data. ``_source`` holds every value exactly as the event has
it, and a value that its field can't index never costs the row:

===================================  =======================================================================
int2, int4, int8, oid                short, integer, long, long
numeric                              double for ranges and sorting, ``.exact`` keyword for every digit
float4, float8                       float, double
text, varchar, char                  text, ``.keyword`` for terms and sorting
bool                                 boolean
timestamp, timestamptz, date         date, to the millisecond
json, jsonb                          flat_object where the root is an object
bytea                                kept, not indexed
uuid, enums, domains, all others     keyword
arrays                               as their elements; bool[] keyword
===================================  =======================================================================

``ignore_malformed`` is set on numbers, dates and arrays of numbers, and nowhere else: ``NaN``, ``infinity``, years beyond 9999 or BC
and arrays with explicit bounds are legal at the source but nothing to OpenSearch's types. Such a field is missing in the
index of that one document, ``_ignored`` names it, and ``_source`` has the exact text: nothing is lost and nothing hidden. Integers
have no such values, so what doesn't fit them is a rejection. Keywords index up to 1024 characters.

**JSON.** PostgreSQL's text of a json or jsonb value stands in ``_json``, unindexed; the column's own field has it parsed for
searching. JSON that flat_object can't take (not an object, too deep, terms too long) is in ``_json`` only. So the
exact text always comes back, and the search copy is best effort.

**Bulk.** Until ``end_bulk`` the indexes of a generation that isn't live refresh when ``scan`` asks for it only, and have no replicas. That
is a setting of the index itself, so that it lasts beyond this process and shows that ``end_bulk`` is due.

Column names with ``.``, ``%`` or a reserved name have these characters percent-encoded as fields.
"""

import hashlib
import logging
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self
from urllib.parse import urlsplit

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.model.event import Events, JsonValue, RowEvent, TableEvents, parse_key, parse_object
from cdc.model.table import Column, Table, TableName
from cdc.model.tag import TEXT_LENGTH, TRANSACTION_LENGTH, VERSION_SEQ_MAX, Tag, external_version
from sinks.access import Login, Tls
from sinks.progress_json import dump_progress, load_progress
from sinks.projection import Excluded, parse_column, parse_columns
from sinks.shape import Shape, unknown_column, unprepared
from sinks.sink import NOTHING_ADDED, AddedValues, Batch, Outcome, Progress, Rejection, StoredRow

_TAG_FIELD: Final = "_tag"
_DELETED_FIELD: Final = "_deleted"
_JSON_FIELD: Final = "_json"
_TAG: Final = _TAG_FIELD.encode()
_DELETED: Final = _DELETED_FIELD.encode()

# Enough that the server's work hides the round trip, little enough for its memory (http.max_content_length is 100 MB).
_BULK_BYTES: Final = 5 * 1024 * 1024
_BULK_DOCUMENTS: Final = 10_000
# The next requests are made while the server is at work on one.
_IN_FLIGHT: Final = 2
# Items that the server had no room for are sent again at once, in smaller requests; after that the caller waits.
_ROUNDS: Final = 3
_RETRY_AFTER_S: Final = 1.0

_ID_BYTES_MAX: Final = 512
_HASHED: Final = "sha256:"
_KEYWORD_CHARACTERS_MAX: Final = 1024
_INDEX_NAME_BYTES_MAX: Final = 255
# A term of Lucene has at most 32766 bytes; a flat_object's terms hold the path as well as the value.
_FLAT_BYTES_MAX: Final = 32_000
_FLAT_DEPTH_MAX: Final = 20

_LIVE: Final[Mapping[str, Any]] = {"bool": {"must_not": {"term": {_DELETED_FIELD: True}}}}

_SCAN_DOCUMENTS: Final = 2000
_NEVER: Final = "-1"  # as refresh_interval: when asked to only
_NOTES_MAX: Final = 10_000  # max_result_window; a pipeline has a handful
_SCAN_KEEP_ALIVE: Final = "5m"

_PREFIX: Final = re.compile(r"[a-z0-9][a-z0-9_-]*")
_GENERATION_INDEX: Final = re.compile(r"(?P<alias>.+)_g(?P<generation>\d+)")
# A table called orders_g1 must not be taken for generation 1 of orders.
_LIKE_A_GENERATION: Final = re.compile(r"_(?=g\d+$)")
_PLAIN_NAME_BYTES: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_RESERVED_FIELDS: Final = frozenset(
    (
        *(
            _TAG_FIELD,
            _DELETED_FIELD,
            _JSON_FIELD,
            "_id",
            "_index",
            "_source",
            "_routing",
            "_type",
            "_version",
            "_field_names",
            "_ignored",
        ),
        *(
            "_seq_no",
            "_primary_term",
            "_nested_path",
            "_doc_count",
            "_data_stream_timestamp",
            "_size",
            "_meta",
            "_parent",
        ),
        *("_feature", "_tier", "_all", "_score", "_name"),
    )
)

_KEYWORD: Final[Mapping[str, Any]] = {"type": "keyword", "ignore_above": _KEYWORD_CHARACTERS_MAX}
_STORED_ONLY: Final[Mapping[str, Any]] = {"type": "keyword", "index": False, "doc_values": False}
_DATE: Final[Mapping[str, Any]] = {"type": "date", "format": "strict_date_optional_time", "ignore_malformed": True}
_TEXT: Final[Mapping[str, Any]] = {"type": "text", "fields": {"keyword": _KEYWORD}}
_FIELD_TYPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "int2": {"type": "short"},
    "int4": {"type": "integer"},
    "int8": {"type": "long"},
    "oid": {"type": "long"},
    "float4": {"type": "float", "ignore_malformed": True},
    "float8": {"type": "double", "ignore_malformed": True},
    "numeric": {"type": "double", "ignore_malformed": True, "fields": {"exact": _KEYWORD}},
    "bool": {"type": "boolean"},
    "timestamp": _DATE,
    "timestamptz": _DATE,
    "date": _DATE,
    "json": {"type": "flat_object"},
    "jsonb": {"type": "flat_object"},
    "bytea": _STORED_ONLY,
    "varchar": _TEXT,
    "bpchar": _TEXT,
}
# Declared types whose values are prose; what else counts as text (enums, domains, extensions) is a keyword.
_TEXT_TYPE: Final = re.compile(r"(text|name|citext|character varying(\(\d+\))?)(\[\])?")
_AS_THE_TYPE: Final[Mapping[str, Mapping[str, Any]]] = {}
_OBJECT_TYPES: Final = frozenset({"flat_object", "object", "nested"})
_JSON_TYPES: Final = frozenset({"json", "jsonb"})

_FIELD_IN_REASON: Final = re.compile(r"failed to parse field \[(?P<field>[^\]]*)\] of type \[(?P<type>[^\]]*)\]")


# What an index must not be created with, and why.
_SETTINGS_OF_OURS: Final[Mapping[str, str]] = {
    "number_of_shards": "set shards of this sink",
    "number_of_replicas": "set replicas of this sink",
    "auto_expand_replicas": "set replicas of this sink",
    "refresh_interval": "set refresh_interval_ms of this sink",
    "gc_deletes": "set gc_deletes_s of this sink",
    "mapping.total_fields.limit": "follows from the table's columns",
    "translog.durability": "what was applied must be durable",
    "default_pipeline": "documents must be the rows as they are",
    "final_pipeline": "documents must be the rows as they are",
    "derived_source": "documents must be the rows as they are",
}


class OpenSearchSettings(BaseModel):
    """An OpenSearch cluster: the addresses of one or more nodes.

    ``prefix`` is the first part of every index; without it the sink's name. ``refresh_interval_ms`` is how soon a write can be
    found, ``gc_deletes_s`` how long a deletion's version is remembered.

    ``exclude`` names columns that never get here. ``fields`` says how a column is indexed instead of what this module's docstring
    says, ``index_settings`` what an index is created with besides what is set here; both are OpenSearch's own words.

    ``max_open_rejections`` is how many rows that it refused may be kept; before there are more, the job stops.
    """

    SHAPING: ClassVar[frozenset[str]] = frozenset(
        {"tables", "exclude", "fields", "index_settings", "shards", "deletes"}
    )

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["opensearch"] = "opensearch"
    urls: tuple[str, ...] = Field(("http://127.0.0.1:9200",), min_length=1)
    prefix: str | None = None
    tables: tuple[str, ...] = ()
    exclude: Excluded = ()
    fields: dict[str, dict[str, Any]] = Field(default_factory=dict)
    index_settings: dict[str, Any] = Field(default_factory=dict)
    login: Login = Login()
    tls: Tls = Tls()
    shards: int = Field(1, gt=0)
    replicas: int = Field(1, ge=0)
    refresh_interval_ms: int = Field(500, gt=0)
    deletes: Literal["versioned", "marker"] = "versioned"
    gc_deletes_s: int = Field(60 * 60, gt=0)
    timeout_s: float = Field(60.0, gt=0)
    max_open_rejections: int = Field(10_000, ge=0)

    @field_validator("urls")
    @classmethod
    def _no_secrets(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("an address looks like https://host:9200")
            if parts.username or parts.password:
                raise ValueError("user and password belong into login, not into the address")
        return urls

    @field_validator("fields")
    @classmethod
    def _are_mappings(cls, fields: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        parse_columns(fields)
        shapeless = [text for text, how in fields.items() if not isinstance(how.get("type"), str)]
        if shapeless:
            raise ValueError(f'no type is given for {", ".join(shapeless)}: {{ type = "keyword" }}, say')
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
        if problems:
            raise ValueError("; ".join(problems))
        return index_settings

    @model_validator(mode="after")
    def _fields_are_here(self) -> Self:
        excluded = parse_columns(self.exclude)
        problems = []
        for text in self.fields:
            table, column = parse_column(text)
            if column in excluded.get(table, ()):
                problems.append(f"fields names {text}, which exclude leaves out")
            if self.tables and table not in map(TableName.parse, self.tables):
                problems.append(f"fields names {text}, and tables doesn't name {table}")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def fields_of(self, name: TableName) -> dict[str, dict[str, Any]]:
        """``fields`` of one table, by column."""
        parsed = ((parse_column(text), how) for text, how in self.fields.items())
        return {column: how for (table, column), how in parsed if table == name}


def flat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Index settings by their full names, without the ``index.`` that may stand before them."""
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


def alias_name(prefix: str, name: TableName) -> str:
    """The name that readers search. Different tables have different ones. Raises LockstepError when it gets too long."""
    table = _LIKE_A_GENERATION.sub("~5f", _escaped(name.name))
    alias = f"{prefix}.{_escaped(name.schema)}.{table}"
    if len(alias) > _INDEX_NAME_BYTES_MAX - len("_g0000000000_W"):
        raise LockstepError(
            f"table {name}: its index would have a name longer than OpenSearch allows",
            hint="leave the table out of this sink's tables, or rename it",
        )
    return alias


def _escaped(part: str) -> str:
    # OpenSearch allows lower case only; "~" is legal in index names and needs no escaping in a URL.
    return "".join(chr(byte) if byte in _PLAIN_NAME_BYTES else f"~{byte:02x}" for byte in part.encode())


def field_name(column: str) -> str:
    """A column's field. A dot would make it a path."""
    name = column.replace("%", "%25").replace(".", "%2e")
    if name in _RESERVED_FIELDS or not name.strip():
        name = f"%{ord(name[0]):02x}{name[1:]}"
    return name


def document_id(values: Sequence[JsonValue]) -> str:
    """A key's values as a document's id; different keys of one table have different ids."""
    if len(values) == 1:
        text = values[0] if isinstance(values[0], str) else orjson.dumps(values[0]).decode()
    else:
        text = orjson.dumps(values).decode()
    encoded = text.encode()
    if not text or len(encoded) > _ID_BYTES_MAX or text.startswith(_HASHED):
        return _HASHED + hashlib.sha256(encoded).hexdigest()
    return text


def field_mapping(column: Column) -> Mapping[str, Any]:
    """How a column is indexed; the table is in this module's docstring."""
    value_type = column.value_type
    if column.is_array:
        if value_type in _JSON_TYPES or value_type == "bool":
            return _KEYWORD
        if value_type in ("int2", "int4", "int8", "oid"):
            return {**_FIELD_TYPES[value_type], "ignore_malformed": True}
    if value_type == "text":
        return _TEXT if _TEXT_TYPE.fullmatch(column.type_name) else _KEYWORD
    return _FIELD_TYPES.get(value_type, _KEYWORD)


def mapping(shape: Shape, fields: Mapping[str, Mapping[str, Any]] = _AS_THE_TYPE) -> dict[str, Any]:
    """The index's mapping; ``_meta`` carries the shape it was made from. ``fields`` says how some columns are indexed."""
    properties = {field_name(column.name): fields.get(column.name) or field_mapping(column) for column in shape.columns}
    properties[_TAG_FIELD] = {"type": "keyword"}
    properties[_DELETED_FIELD] = {"type": "boolean"}
    properties[_JSON_FIELD] = {"type": "object", "enabled": False}
    return {"dynamic": "strict", "_meta": {"lockstep_shape": shape.to_json()}, "properties": properties}


class Verdict(Enum):
    """What an item's answer means."""

    APPLIED = "applied"
    STALE = "stale"
    AGAIN = "again"
    REJECTED = "rejected"
    STOP = "stop"


def verdict(status: int, error: str | None) -> Verdict:
    """Judge an item of a bulk answer by its HTTP status and the type of its error."""
    if error is None:
        # 404 without an error: the document to delete wasn't there, and the version is remembered all the same.
        return Verdict.APPLIED
    if error == "version_conflict_engine_exception":
        return Verdict.STALE
    if error == "cluster_block_exception" and status != 503:
        return Verdict.STOP  # full disk or a read-only index: nobody's bad row
    if error == "invalid_index_name_exception":
        return Verdict.STOP  # the writing alias is gone, and the server tried to create an index in its place
    if status == 429 or status >= 500:
        return Verdict.AGAIN
    return Verdict.REJECTED if status in (400, 413) else Verdict.STOP


def _refusal(error: Mapping[str, Any]) -> str:
    """Why, without the server's own sentence: it quotes the value."""
    found = _FIELD_IN_REASON.search(error.get("reason") or "")
    where = "" if found is None else f": field {found['field']!r} of type {found['type']}"
    cause = (error.get("caused_by") or {}).get("type")
    return f"{error['type']}{where}" + ("" if cause is None else f" ({cause})")


@dataclass(frozen=True)
class _Target:
    """Where a table's documents go and how they are made."""

    write_alias: str
    shape: Shape
    deletes_leave_markers: bool = False
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @cached_property
    def columns(self) -> frozenset[str]:
        return frozenset(column.name for column in self.shape.columns)

    @cached_property
    def json_columns(self) -> Mapping[str, str]:
        """json and jsonb columns and their value types."""
        return {
            column.name: column.value_type
            for column in self.shape.columns
            if column.value_type in _JSON_TYPES and not column.is_array
        }

    @cached_property
    def renamed(self) -> Mapping[str, str]:
        """The few columns whose field has another name."""
        return {name: field_name(name) for name in self.columns if field_name(name) != name}

    @cached_property
    def takes_rows_as_they_are(self) -> bool:
        """Whether a row's JSON is its document but for the tag."""
        return not self.renamed and not self.json_columns

    def lines(self, events: TableEvents, place: int, *, searchable: bool = True, replays: bool = False) -> bytes:
        """An event as lines of a bulk request.

        ``searchable`` adds the parsed copy of JSON columns; with ``replays`` a document of the same version is replaced.
        """
        tag, row = events.tags[place], events.rows[place]
        version = _version(tag, or_equal=replays)
        identity = orjson.dumps(document_id(list(parse_key(events.keys[place]).values())))
        head = b'"_index":"%b","_id":%b,%b}}\n' % (self._index, identity, version)
        if row is None:
            if self.deletes_leave_markers:
                return b'{"index":{%b{"%b":"%b","%b":true}\n' % (head, _TAG, tag.encode(), _DELETED)
            return b'{"delete":{' + head
        if self.takes_rows_as_they_are:
            return b'{"index":{%b{"%b":"%b",%b\n' % (head, _TAG, tag.encode(), row[1:])
        document = self._document(parse_object(row), tag, searchable)
        return b'{"index":{' + head + orjson.dumps(document) + b"\n"

    @cached_property
    def _index(self) -> bytes:
        return self.write_alias.encode()

    def _document(self, row: Mapping[str, JsonValue], tag: str, searchable: bool) -> dict[str, Any]:
        document: dict[str, Any] = {self.renamed.get(name, name): value for name, value in row.items()}
        document[_TAG_FIELD] = tag
        if self.json_columns:
            exact = {}
            for name, value_type in self.json_columns.items():
                target = self.renamed.get(name, name)
                text = document.pop(target, None)
                if name in row:  # null too: a row that has it is told from one that lacks the column
                    exact[name] = text
                if text is not None:
                    parsed = self._search_copy(name, text, value_type) if searchable else None
                    if parsed is not None:
                        document[target] = parsed
            document[_JSON_FIELD] = exact
        return document

    def _search_copy(self, column: str, text: Any, value_type: str) -> Any:
        how = self.fields.get(column)
        if how is not None and how["type"] not in _OBJECT_TYPES:
            return text
        return _searchable_json(text, value_type)

    def stored(self, source: Mapping[str, Any], table: Table) -> StoredRow:
        """A document's ``_source`` as the row it was made from."""
        exact = source.get(_JSON_FIELD) or {}
        row: dict[str, JsonValue] = {}
        lacks = []
        for column in table.columns:
            name = column.name
            held, field = (exact, name) if name in self.json_columns else (source, self.renamed.get(name, name))
            row[name] = held.get(field)
            if field not in held:
                lacks.append(name)
        return StoredRow({name: row[name] for name in table.key}, row, source[_TAG_FIELD], lacks)


def _version(tag: str, *, or_equal: bool) -> bytes:
    first, seq = _first_version(tag[:TRANSACTION_LENGTH]), int(tag[TRANSACTION_LENGTH:], 16)
    is_saturated = seq >= VERSION_SEQ_MAX
    number = first + (VERSION_SEQ_MAX if is_saturated else seq)
    return b'"version":%d,"version_type":"%b"' % (number, b"external_gte" if is_saturated or or_equal else b"external")


@lru_cache(maxsize=64)
def _first_version(transaction: str) -> int:
    """The version of a transaction's seq 0, from which the others are counted: most rows of a batch have few transactions."""
    try:
        return external_version(Tag.parse(transaction + "0" * (TEXT_LENGTH - TRANSACTION_LENGTH))).number
    except ValueError as error:
        raise LockstepError(f"the tag can't be an external version: {error}") from error


def _searchable_json(text: Any, value_type: str) -> Any:
    """JSON for a flat_object: the text itself where that is surely fine, or None where it can't be indexed."""
    if not isinstance(text, str) or not text.lstrip().startswith("{"):
        return None
    encoded = text.encode()
    if len(encoded) > _FLAT_BYTES_MAX or text.count("{") + text.count("[") > _FLAT_DEPTH_MAX:
        try:
            if not _is_flat_enough(orjson.loads(encoded), len(_JSON_FIELD), 1):
                return None
        except orjson.JSONDecodeError:
            return None
    if value_type == "jsonb":
        return orjson.Fragment(encoded)
    try:
        return orjson.loads(encoded)  # json may repeat a key, which OpenSearch refuses
    except orjson.JSONDecodeError:
        return None


def _is_flat_enough(value: Any, path_bytes: int, depth: int) -> bool:
    if depth > _FLAT_DEPTH_MAX:
        return False
    if isinstance(value, dict):
        return all(
            _is_flat_enough(inner, path_bytes + 1 + len(name.encode()), depth + 1) for name, inner in value.items()
        )
    if isinstance(value, list):
        return all(_is_flat_enough(inner, path_bytes, depth + 1) for inner in value)
    return not isinstance(value, str) or path_bytes + len(value.encode()) < _FLAT_BYTES_MAX


@dataclass(frozen=True, slots=True)
class _Index:
    """An index of ours: of one table in one generation. ``alias`` is the table's reading alias, wherever that points."""

    name: str
    alias: str
    generation: int
    is_live: bool


def _own_indexes(aliases: Mapping[str, Iterable[str]]) -> Iterator[_Index]:
    """The indexes of ours among these, each given with its aliases. One without a writing alias isn't of our making."""
    for name, held in aliases.items():
        found = _GENERATION_INDEX.fullmatch(name)
        if found is not None and f"{name}_W" in held:
            yield _Index(name, found["alias"], int(found["generation"]), found["alias"] in held)


def _note_id(name: str) -> str:
    # Progress documents are called g<n>: no note's id begins like that.
    return f"note.{name}"


_Answers = list[tuple[int, Mapping[str, Any] | None]]
"""Status and error of each item of a request."""


class _Item(NamedTuple):
    """An event on its way. ``searchable``: with a copy of its JSON columns for searching."""

    events: TableEvents
    place: int
    searchable: bool = True

    @property
    def event(self) -> RowEvent:
        return self.events[self.place]


class OpenSearchSink:
    """Applies events to an OpenSearch cluster. Connects at the first call."""

    def __init__(self, name: str, settings: OpenSearchSettings, generation: int) -> None:
        self._settings = settings
        self._generation = generation
        self._prefix = settings.prefix or name
        if not _PREFIX.fullmatch(self._prefix):
            raise ConfigurationError(
                f"sink {name!r}: {self._prefix!r} can't begin an index name",
                hint="set prefix to lower-case letters, digits, '_' and '-'",
            )
        self._progress_index = f"{self._prefix}.lockstep_progress"
        self._client: Any = None
        self._targets: dict[TableName, _Target] = {}

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        alias_names = [alias_name(self._prefix, table.name) for table in tables]
        self._create_progress_index()
        held_shapes = {table.name: self._shape(self._index(table.name)) for table in tables}
        self._check_fields([table for table in tables if held_shapes[table.name] is None])
        for table in tables:
            index = self._index(table.name)
            fields = self._settings.fields_of(table.name)
            held = held_shapes[table.name]
            if held is None:
                shape = Shape.of(table)
                settings = {
                    **flat_settings(self._settings.index_settings),
                    "number_of_shards": self._settings.shards,
                    "refresh_interval": self._refresh_interval,
                    "gc_deletes": f"{self._settings.gc_deletes_s}s",
                    # Sub-fields count too, and PostgreSQL allows 1600 columns.
                    "mapping.total_fields.limit": max(1000, 4 * len(table.columns) + 100),
                }
                with _shaping(table.name):
                    self._create(index, mapping(shape, fields), settings)
                # Another job may have created it just now: then its shape is compared like any other.
                held = self._shape(index) or shape
            evolved = held.evolve(table)
            if evolved != held:
                with _shaping(table.name):
                    self._call("PUT", f"/{index}/_mapping", _without_dynamic(mapping(evolved, fields)))
            self._targets[table.name] = self._target(index, evolved)
        live = self.live_generation()
        if alias_names and (live == self._generation or (live is None and go_live and not self._loading())):
            adds = [_add(f"{alias}_g{self._generation}", alias) for alias in alias_names]
            self._call("POST", "/_aliases", {"actions": adds})
        return added

    def begin_bulk(self) -> None:
        """Has no effect on the live generation: its readers would wait for every row until ``end_bulk``."""
        mine = [index for index in self._undisturbed() if index.generation == self._generation]
        if not any(index.is_live for index in mine):
            for index in mine:
                self._change_settings(index.name, {"refresh_interval": _NEVER, "number_of_replicas": 0})

    def end_bulk(self) -> None:
        loading = self._loading()
        for index in loading:
            normal = {"refresh_interval": self._refresh_interval, "number_of_replicas": self._settings.replicas}
            # Refreshed first: who sees the interval changed may rely on finding the rows.
            self._call("POST", f"/{index}/_refresh")
            self._change_settings(index, normal)

    def claim(self) -> int:
        """Returns 0: the server can't fence, the versions alone keep two writers right."""
        return 0

    def fence(self) -> int:
        """Returns 0, as ``claim`` does."""
        return 0

    def apply(self, batch: Batch) -> Outcome:
        events = Events.of(batch.events)
        for of_table in events.tables:
            if of_table.table not in self._targets:
                self._aim_at(of_table.table)
        applied = stale = 0
        rejections: list[Rejection] = []
        pending = [_Item(of_table, place) for of_table in events.tables for place in range(len(of_table))]
        documents_max = _BULK_DOCUMENTS
        for _ in range(_ROUNDS):
            again: list[_Item] = []
            for items, answers in self._answers(self._requests(pending, documents_max, replays=batch.replays)):
                if answers is None:
                    applied += len(items)
                    continue
                for item, (status, error) in zip(items, answers, strict=True):
                    match verdict(status, None if error is None else error["type"]):
                        case Verdict.APPLIED:
                            applied += 1
                        case Verdict.STALE:
                            stale += 1
                        case Verdict.AGAIN:
                            again.append(item)
                        case Verdict.REJECTED:
                            assert error is not None
                            if self._knew_too_little(item.event):
                                again.append(item)
                            elif item.searchable and self._targets[item.events.table].json_columns:
                                # The copy for searching may be what it can't index, and the row comes first.
                                again.append(item._replace(searchable=False))
                            else:
                                rejections.append(Rejection(item.event, _refusal(error)))
                        case Verdict.STOP:
                            assert error is not None
                            raise _stopping(status, error["type"])
            if not again:
                return Outcome(applied, stale, rejections)
            pending = again
            documents_max = max(1, documents_max // 4)
        raise Unavailable(
            f"opensearch has no room for {len(pending)} of {len(events)} documents now",
            retry_after_s=_RETRY_AFTER_S,
        )

    def load_progress(self) -> Progress | None:
        path = f"/{self._progress_index}/_doc/g{self._generation}"
        answer = self._call("GET", path, missing_ok=True)
        return load_progress(orjson.dumps(answer["_source"])) if answer and answer.get("found") else None

    def save_progress(self, progress: Progress) -> None:
        path = f"/{self._progress_index}_W/_doc/g{self._generation}"
        self._call("PUT", path, dump_progress(progress), {"require_alias": "true"})

    def live_generation(self) -> int | None:
        live = sorted({index.generation for index in self._undisturbed() if index.is_live})
        if len(live) > 1:  # one request moves all aliases
            raise LockstepError(
                f"the aliases that readers use point to generations {' and '.join(map(str, live))} at once",
                hint="somebody moved one of them by hand; switch to the generation that is meant to be live",
            )
        return live[0] if live else None

    def generations(self) -> list[int]:
        return sorted({index.generation for index in self._indexes()[0]})

    def switch(self) -> None:
        indexes = self._undisturbed()
        mine = [index for index in indexes if index.generation == self._generation]
        if not mine:
            raise LockstepError(
                f"generation {self._generation} doesn't exist", hint="it was never prepared, or it was dropped"
            )
        if self._loading():
            raise LockstepError(
                f"generation {self._generation} is still being loaded in bulk", hint="switch when its load has ended"
            )
        # What is written and not yet refreshed would be missing for readers until the next refresh.
        self._call("POST", f"/{self._prefix}.*_g{self._generation}/_refresh")
        actions = [
            {"remove": {"index": index.name, "alias": index.alias}}
            for index in indexes
            if index.is_live and index.generation != self._generation
        ]
        actions += [_add(index.name, index.alias) for index in mine]
        self._call("POST", "/_aliases", {"actions": actions})

    def keep_only(self, tables: Collection[TableName]) -> list[TableName]:
        others = []
        for index in self._undisturbed():
            shape = self._shape(index.name) if index.generation == self._generation else None
            if shape is not None and shape.table.name not in tables:
                self._call("DELETE", f"/{index.name}", missing_ok=True)  # with its aliases
                self._targets.pop(shape.table.name, None)
                others.append(shape.table.name)
        return sorted(others)

    def drop(self) -> None:
        mine = [index for index in self._indexes()[0] if index.generation == self._generation]
        if any(index.is_live for index in mine):
            raise LockstepError(
                f"generation {self._generation} is live", hint="switch to another generation before you drop this one"
            )
        for index in mine:
            self._call("DELETE", f"/{index.name}", missing_ok=True)
        self._call("DELETE", f"/{self._progress_index}/_doc/g{self._generation}", missing_ok=True)
        for document in self._note_documents():
            if document.startswith(_note_id(f"g{self._generation}.")):
                self._call("DELETE", f"/{self._progress_index}/_doc/{document}", missing_ok=True)
        self._targets.clear()

    def load_note(self, name: str) -> str | None:
        answer = self._call("GET", f"/{self._progress_index}/_doc/{_note_id(name)}", missing_ok=True)
        return str(answer["_source"]["text"]) if answer and answer.get("found") else None

    def save_note(self, name: str, text: str | None) -> None:
        if text is None:
            self._call("DELETE", f"/{self._progress_index}/_doc/{_note_id(name)}", missing_ok=True)
        else:
            self._create_progress_index()
            path = f"/{self._progress_index}_W/_doc/{_note_id(name)}"
            self._call("PUT", path, {"text": text}, {"require_alias": "true"})

    def create_note(self, name: str, text: str) -> bool:
        self._create_progress_index()
        path = f"/{self._progress_index}_W/_create/{_note_id(name)}"
        there = ("version_conflict_engine_exception",)
        return self._call("PUT", path, {"text": text}, {"require_alias": "true"}, passing_errors=there) is not None

    def scan(self, table: Table) -> Iterator[StoredRow]:
        index = self._index(table.name)
        shape = self._shape(index)
        if shape is None:
            raise unprepared(table.name)
        target = self._target(index, shape)
        self._call("POST", f"/{index}/_refresh")
        query = {"size": _SCAN_DOCUMENTS, "sort": ["_doc"], "query": _LIVE}
        page = self._call("POST", f"/{index}/_search", query, {"scroll": _SCAN_KEEP_ALIVE})
        try:
            while page["hits"]["hits"]:
                for hit in page["hits"]["hits"]:
                    yield target.stored(hit["_source"], table)
                again = {"scroll": _SCAN_KEEP_ALIVE, "scroll_id": page["_scroll_id"]}
                page = self._call("POST", "/_search/scroll", again)
        finally:
            self._call("DELETE", "/_search/scroll", {"scroll_id": [page["_scroll_id"]]}, missing_ok=True)

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        index = self._index(table.name)
        shape = self._shape(index)
        if shape is None:
            raise unprepared(table.name)
        target = self._target(index, shape)
        identities = list(dict.fromkeys(document_id([key[name] for name in table.key]) for key in keys))
        if not identities:
            return
        # By id, hence as of now: the server looks into what it hasn't refreshed yet.
        answer = self._call("POST", f"/{index}/_mget", {"ids": identities})
        for document in answer["docs"]:
            if "error" in document:
                raise _unreadable(document["error"])
            if document["found"] and not document["_source"].get(_DELETED_FIELD):
                yield target.stored(document["_source"], table)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _check_fields(self, tables: Sequence[Table]) -> None:
        """Every column of these new tables that ``fields`` names must be there: a slip of the pen has no effect else."""
        problems = [
            f"fields: table {table.name} has no column {column!r}"
            for table in tables
            for column in self._settings.fields_of(table.name)
            if column not in {held.name for held in table.columns}
        ]
        if problems:
            raise ConfigurationError(
                "fields of this sink names columns that don't exist", problems=problems, hint="mend fields of this sink"
            )

    @property
    def _refresh_interval(self) -> str:
        return f"{self._settings.refresh_interval_ms}ms"

    def _loading(self) -> list[str]:
        """The indexes of this generation that are in bulk."""
        path = f"/{self._prefix}.*_g{self._generation}/_settings/index.refresh_interval"
        answer = self._call("GET", path, parameters={"flat_settings": "true"})
        return [name for name, held in answer.items() if held["settings"].get("index.refresh_interval") == _NEVER]

    def _change_settings(self, index: str, settings: Mapping[str, Any]) -> None:
        self._call("PUT", f"/{index}/_settings", {"index": settings})

    def _target(self, index: str, shape: Shape) -> _Target:
        fields = self._settings.fields_of(shape.table.name)
        return _Target(f"{index}_W", shape, self._settings.deletes == "marker", fields)

    def _index(self, name: TableName) -> str:
        return f"{alias_name(self._prefix, name)}_g{self._generation}"

    def _indexes(self) -> tuple[list["_Index"], Mapping[str, frozenset[str]]]:
        """This sink's indexes of all generations; and all indexes that have a name or an alias of ours, with their aliases."""
        answer = self._call("GET", f"/{self._prefix}.*/_alias", parameters={"expand_wildcards": "all"})
        aliases = {index: frozenset(held["aliases"]) for index, held in answer.items()}
        return list(_own_indexes(aliases)), aliases

    def _undisturbed(self) -> list["_Index"]:
        """This sink's indexes. Raises LockstepError when somebody gave a name that readers use to something else."""
        own, aliases = self._indexes()
        names = {index.name for index in own}
        for reading in sorted({index.alias for index in own}):
            if reading in aliases:
                raise LockstepError(
                    f"there is an index called {reading!r}: that is the alias by which readers find this sink's live rows",
                    hint="it is nothing of Lockstep's: move it to another name, or remove it, then try again",
                )
            strangers = [index for index in sorted(aliases) if reading in aliases[index] and index not in names]
            if strangers:
                raise LockstepError(
                    f"alias {reading!r}, by which readers find this sink's live rows, points to index {strangers[0]!r}, "
                    "which isn't this sink's",
                    hint="somebody moved it: point it back or remove it there, then try again; nothing was changed",
                )
        return own

    def _note_documents(self) -> list[str]:
        """The ids of all notes."""
        if self._call("POST", f"/{self._progress_index}/_refresh", missing_ok=True) is None:
            return []
        everything = {"size": _NOTES_MAX, "_source": False, "query": {"match_all": {}}}
        answer = self._call("POST", f"/{self._progress_index}/_search", everything)
        return [hit["_id"] for hit in answer["hits"]["hits"] if hit["_id"].startswith(_note_id(""))]

    def _create_progress_index(self) -> None:
        self._create(self._progress_index, {"dynamic": False}, {"number_of_shards": 1})

    def _shape(self, index: str) -> Shape | None:
        answer = self._call("GET", f"/{index}/_mapping", missing_ok=True)
        if answer is None:
            return None
        meta = answer[index]["mappings"].get("_meta") or {}
        if "lockstep_shape" not in meta:
            raise LockstepError(f"index {index!r} isn't ours", hint="remove it, or set another prefix for this sink")
        return Shape.from_json(meta["lockstep_shape"])

    def _create(self, index: str, index_mapping: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Create an index with its writing alias, unless it is there."""
        body = {
            "settings": {"index": {"number_of_replicas": self._settings.replicas, **settings}},
            "mappings": index_mapping,
            "aliases": {f"{index}_W": {}},
        }
        if self._call("HEAD", f"/{index}") is False:
            self._call("PUT", f"/{index}", body, passing_errors=("resource_already_exists_exception",))

    def _aim_at(self, table: TableName) -> _Target:
        """Know the index of a table. Raises LockstepError when there is none."""
        index = self._index(table)
        shape = self._shape(index)
        if shape is None:
            raise unprepared(table)
        target = self._targets[table] = self._target(index, shape)
        return target

    def _knew_too_little(self, event: RowEvent) -> bool:
        """Whether the event has a column that the index has got since we looked. Raises LockstepError for one it doesn't have."""
        columns = event.row or {}
        if self._targets[event.table].columns.issuperset(columns):
            return False
        now = self._aim_at(event.table).columns
        for name in columns:
            if name not in now:
                raise unknown_column(event.table, name)
        return True

    def _requests(
        self, items: Sequence[_Item], documents_max: int, *, replays: bool
    ) -> Iterator[tuple[list[_Item], bytes]]:
        """Bulk bodies of at most so many documents and about so many bytes; one large document goes alone."""
        portion: list[_Item] = []
        lines: list[bytes] = []
        size = 0
        for item in items:
            events, place, searchable = item
            line = self._targets[events.table].lines(events, place, searchable=searchable, replays=replays)
            if lines and (len(lines) >= documents_max or size + len(line) > _BULK_BYTES):
                yield portion, b"".join(lines)
                portion, lines, size = [], [], 0
            portion.append(item)
            lines.append(line)
            size += len(line)
        if lines:
            yield portion, b"".join(lines)

    def _answers(
        self, requests: Iterator[tuple[list[_Item], bytes]]
    ) -> Iterator[tuple[list[_Item], "_Answers | None"]]:
        """Send requests, some at once, and yield what became of each, in their order. Raises the first one's error."""
        first = next(requests, None)
        second = next(requests, None)
        if first is not None and second is None:  # the rule: no thread for a few rows
            items, body = first
            yield items, self._bulk(body, len(items))
            return
        with ThreadPoolExecutor(_IN_FLIGHT) as pool:
            sent: deque[tuple[list[_Item], Future[_Answers | None]]] = deque()
            for request in chain((one for one in (first, second) if one is not None), requests):
                sent.append((request[0], pool.submit(self._bulk, request[1], len(request[0]))))
                if len(sent) > _IN_FLIGHT:
                    items, answer = sent.popleft()
                    yield items, answer.result()
            for items, answer in sent:
                yield items, answer.result()

    def _bulk(self, body: bytes, count: int) -> "_Answers | None":
        """Status and error of each item; None when all of them were applied."""
        from opensearchpy.exceptions import TransportError

        parameters = {
            "require_alias": "true",
            "filter_path": "errors,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by.type",
        }
        with self._translated():
            try:
                answer = self._transport().perform_request(
                    "POST", "/_bulk", params=parameters, body=body, headers={"content-type": "application/x-ndjson"}
                )
            except TransportError as error:
                if error.status_code == 413 and count == 1:
                    return [(413, {"type": "content_too_long"})]
                raise
        if not answer["errors"]:
            return None
        return [(result["status"], result.get("error")) for item in answer["items"] for result in item.values()]

    def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        parameters: Mapping[str, str] | None = None,
        *,
        missing_ok: bool = False,
        passing_errors: Sequence[str] = (),
    ) -> Any:
        """One request; None for a missing thing with ``missing_ok``, and for an error that is named as fine."""
        from opensearchpy.exceptions import TransportError

        with self._translated():
            try:
                headers = {"content-type": "application/json"}
                return self._transport().perform_request(
                    method, path, params=dict(parameters or {}), body=body, headers=headers
                )
            except TransportError as error:
                if (missing_ok and error.status_code == 404) or error.error in passing_errors:
                    return None
                raise

    def _transport(self) -> Any:
        if self._client is None:
            self._client = _connect(self._settings)
        return self._client.transport

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The client's errors as ours. The server's sentences are left out where they may quote a value."""
        from opensearchpy.exceptions import ConnectionError as NoConnection
        from opensearchpy.exceptions import ImproperlyConfigured, SSLError, TransportError

        try:
            yield
        except SSLError as error:
            raise LockstepError(
                "the certificate of opensearch isn't trusted",
                hint="set tls.ca_file of this sink to its authority's certificate",
            ) from error
        except NoConnection as error:
            raise Unavailable("opensearch doesn't answer", retry_after_s=_RETRY_AFTER_S) from error
        except TransportError as error:
            status = int(error.status_code)
            if verdict(status, error.error) is Verdict.AGAIN:
                raise Unavailable(
                    f"opensearch can't serve now: {status} {error.error}", retry_after_s=_RETRY_AFTER_S
                ) from error
            raise _stopping(status, error.error) from error
        except ImproperlyConfigured as error:
            raise ConfigurationError(f"opensearch client: {error}") from error


def _add(index: str, alias: str) -> dict[str, Any]:
    # Filtered whatever the setting is now: there may be markers from a time when it was another.
    return {"add": {"index": index, "alias": alias, "filter": _LIVE}}


@contextmanager
def _shaping(table: TableName) -> Iterator[None]:
    """Adds what the server says about a mapping or about settings: there are no rows in these sentences."""
    try:
        yield
    except LockstepError as error:
        cause: Any = error.__cause__
        if isinstance(error, Unavailable) or getattr(cause, "status_code", None) != 400:
            raise
        why = (cause.info or {}).get("error", {}).get("reason") if isinstance(cause.info, dict) else None
        raise LockstepError(
            f"opensearch refuses the index of table {table}: {why or cause.error}",
            hint="mend fields or index_settings of this sink; an index that exists keeps what it was created with, "
            "so that another field type needs a new generation",
        ) from cause


def _without_dynamic(index_mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in index_mapping.items() if name != "dynamic"}


def _unreadable(error: Mapping[str, Any]) -> LockstepError:
    """A document that couldn't be looked up isn't one that doesn't exist."""
    if error["type"] == "index_not_found_exception":
        return _stopping(404, error["type"])
    return Unavailable(f"opensearch can't read a document now: {error['type']}", retry_after_s=_RETRY_AFTER_S)


def _stopping(status: int, error: str) -> LockstepError:
    """The operator's turn."""
    if status == 401:
        hint = "check user and password of this sink"
    elif status == 403 and error != "cluster_block_exception":
        hint = "grant the sink's user the right to create, read, write and alias the indexes of its prefix, and to change their settings"
    elif error == "cluster_block_exception":
        hint = "the index is read-only, mostly because the disk is nearly full: free space; OpenSearch then lifts the block"
    elif error in ("index_not_found_exception", "invalid_index_name_exception"):
        hint = "the index was removed; restart the job, or build it anew: lockstep rebuild"
    elif error == "validation_exception":
        hint = "the cluster has as many shards as cluster.max_shards_per_node allows, mostly: remove old indexes, or raise it"
    elif status == 413:
        hint = "raise http.max_content_length of the cluster"
    else:
        hint = "look at the cluster's log"
    return LockstepError(f"opensearch refuses: {status} {error}", hint=hint)


def _connect(settings: OpenSearchSettings) -> Any:
    from opensearchpy import OpenSearch

    options: dict[str, Any] = {}
    password = settings.login.read_password()
    if settings.login.user is not None:
        options["http_auth"] = (settings.login.user, password or "")
    if any(url.startswith("https:") for url in settings.urls):
        tls = settings.tls
        options |= {"verify_certs": tls.verify, "ssl_show_warn": False}
        if not tls.verify:
            options["ssl_assert_hostname"] = False
        for option, file in (
            ("ca_certs", tls.ca_file),
            ("client_cert", tls.certificate_file),
            ("client_key", tls.key_file),
        ):
            if file is not None:
                options[option] = str(file)
    # The client logs requests that fail, with their bodies: rows. Each of them is an error of ours already.
    logging.getLogger("opensearch").setLevel(logging.CRITICAL)
    # The RetryingSink waits and repeats, nobody else: a hidden retry would delay what it reports.
    return OpenSearch(
        hosts=list(settings.urls), timeout=settings.timeout_s, max_retries=0, retry_on_timeout=False, **options
    )
