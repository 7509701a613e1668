"""Rows as documents in OpenSearch, one index per table and generation, read through an alias per table.

==================================  ========================================================================
``shop.public.orders``              alias of the live generation: what readers search
``shop.public.orders_g1``           index of generation 1
``shop.public.orders_g1_W``         alias that the job writes through. No index may have a capital letter, so a late write
                                    can't make a dropped index anew, whatever ``action.auto_create_index`` says
                                    (``require_alias`` protects against late writes, but not against late deletes)
``shop.lockstep_progress``          how far each generation is
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

Column names with ``.``, ``%`` or a reserved name have these characters percent-encoded as fields.
"""

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator

from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import Column, Table, TableName
from cdc.model.tag import Tag, external_version
from sinks.access import Login, Tls
from sinks.progress_json import dump_progress, load_progress
from sinks.shape import Shape, unknown_column, unprepared
from sinks.sink import Batch, Outcome, Progress, Rejection, StoredRow

_TAG_FIELD: Final = "_tag"
_DELETED_FIELD: Final = "_deleted"
_JSON_FIELD: Final = "_json"

# Enough that the server's work hides the round trip, little enough for its memory (http.max_content_length is 100 MB).
_BULK_BYTES: Final = 5 * 1024 * 1024
_BULK_DOCUMENTS: Final = 2000
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
_JSON_TYPES: Final = frozenset({"json", "jsonb"})

_FIELD_IN_REASON: Final = re.compile(r"failed to parse field \[(?P<field>[^\]]*)\] of type \[(?P<type>[^\]]*)\]")


class OpenSearchSettings(BaseModel):
    """An OpenSearch cluster: the addresses of one or more nodes.

    ``prefix`` is the first part of every index; without it the sink's name. ``refresh_interval_ms`` is how soon a write can be
    found, ``gc_deletes_s`` how long a deletion's version is remembered.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["opensearch"] = "opensearch"
    urls: tuple[str, ...] = Field(("http://127.0.0.1:9200",), min_length=1)
    prefix: str | None = None
    tables: tuple[str, ...] = ()
    login: Login = Login()
    tls: Tls = Tls()
    shards: int = Field(1, gt=0)
    replicas: int = Field(1, ge=0)
    refresh_interval_ms: int = Field(500, gt=0)
    deletes: Literal["versioned", "marker"] = "versioned"
    gc_deletes_s: int = Field(60 * 60, gt=0)
    timeout_s: float = Field(60.0, gt=0)

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


def mapping(shape: Shape) -> dict[str, Any]:
    """The index's mapping; ``_meta`` carries the shape it was made from."""
    properties = {field_name(column.name): field_mapping(column) for column in shape.columns}
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

    def lines(self, event: RowEvent, *, searchable: bool) -> bytes:
        """An event as lines of a bulk request; ``searchable`` adds the parsed copy of JSON columns."""
        version = _version(event.tag)
        identity = orjson.dumps(document_id(list(event.key.values())))
        head = b'"_index":"%b","_id":%b,%b}}\n' % (self.write_alias.encode(), identity, version)
        if event.row is None:
            if self.deletes_leave_markers:
                marker = {_TAG_FIELD: event.tag, _DELETED_FIELD: True}
                return b'{"index":{' + head + orjson.dumps(marker) + b"\n"
            return b'{"delete":{' + head
        return b'{"index":{' + head + orjson.dumps(self._document(event.row, event.tag, searchable)) + b"\n"

    def _document(self, row: Mapping[str, JsonValue], tag: str, searchable: bool) -> dict[str, Any]:
        if self.renamed:
            document: dict[str, Any] = {self.renamed.get(name, name): value for name, value in row.items()}
            document[_TAG_FIELD] = tag
        else:
            document = {_TAG_FIELD: tag, **row}
        if self.json_columns:
            exact = {}
            for name, value_type in self.json_columns.items():
                field = self.renamed.get(name, name)
                text = document.pop(field, None)
                if text is not None:
                    exact[name] = text
                    parsed = _searchable_json(text, value_type) if searchable else None
                    if parsed is not None:
                        document[field] = parsed
            document[_JSON_FIELD] = exact
        return document

    def stored(self, source: Mapping[str, Any], table: Table) -> StoredRow:
        """A document's ``_source`` as the row it was made from."""
        exact = source.get(_JSON_FIELD) or {}
        row = {
            column.name: exact.get(column.name)
            if column.name in self.json_columns
            else source.get(self.renamed.get(column.name, column.name))
            for column in table.columns
        }
        return StoredRow({name: row[name] for name in table.key}, row, source[_TAG_FIELD])


def _version(tag: str) -> bytes:
    try:
        number, saturated = external_version(Tag.parse(tag))
    except ValueError as error:
        raise LockstepError(f"the tag can't be an external version: {error}") from error
    return b'"version":%d,"version_type":"%b"' % (number, b"external_gte" if saturated else b"external")


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
class _Item:
    event: RowEvent
    searchable: bool = True


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

    def prepare(self, tables: Sequence[Table]) -> None:
        alias_names = [alias_name(self._prefix, table.name) for table in tables]
        self._create(self._progress_index, {"dynamic": False}, {"number_of_shards": 1})
        for table in tables:
            index = self._index(table.name)
            held = self._shape(index)
            if held is None:
                shape = Shape.of(table)
                settings = {
                    "number_of_shards": self._settings.shards,
                    "refresh_interval": f"{self._settings.refresh_interval_ms}ms",
                    "gc_deletes": f"{self._settings.gc_deletes_s}s",
                    # Sub-fields count too, and PostgreSQL allows 1600 columns.
                    "mapping.total_fields.limit": max(1000, 4 * len(table.columns) + 100),
                }
                self._create(index, mapping(shape), settings)
                # Another job may have created it just now: then its shape is compared like any other.
                held = self._shape(index) or shape
            evolved = held.evolve(table)
            if evolved != held:
                self._call("PUT", f"/{index}/_mapping", _without_dynamic(mapping(evolved)))
            self._targets[table.name] = self._target(index, evolved)
        live = self.live_generation()
        if live in (None, self._generation) and alias_names:
            adds = [_add(f"{alias}_g{self._generation}", alias) for alias in alias_names]
            self._call("POST", "/_aliases", {"actions": adds})

    def claim(self) -> int:
        """Returns 0: the server can't fence, the versions alone keep two writers right."""
        return 0

    def apply(self, batch: Batch) -> Outcome:
        self._aim_at(batch.events)
        applied = stale = 0
        rejections: list[Rejection] = []
        pending = [_Item(event) for event in batch.events]
        documents_max = _BULK_DOCUMENTS
        for _ in range(_ROUNDS):
            again: list[_Item] = []
            for items, body in self._requests(pending, documents_max):
                for item, (status, error) in zip(items, self._bulk(body, len(items)), strict=True):
                    match verdict(status, None if error is None else error["type"]):
                        case Verdict.APPLIED:
                            applied += 1
                        case Verdict.STALE:
                            stale += 1
                        case Verdict.AGAIN:
                            again.append(item)
                        case Verdict.REJECTED:
                            assert error is not None
                            if item.searchable and self._targets[item.event.table].json_columns:
                                # The copy for searching may be what it can't index, and the row comes first.
                                again.append(_Item(item.event, searchable=False))
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
            f"opensearch has no room for {len(pending)} of {len(batch.events)} documents now",
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
        live = [generation for _, alias, generation, aliases in self._indexes("*") if alias in aliases]
        # One request moves all aliases, so they agree; a table that only an older generation had is the exception.
        return max(live, default=None)

    def switch(self) -> None:
        mine = list(self._indexes(str(self._generation)))
        if not mine:
            raise LockstepError(
                f"generation {self._generation} doesn't exist", hint="it was never prepared, or it was dropped"
            )
        actions = [
            {"remove": {"index": index, "alias": alias}}
            for index, alias, generation, aliases in self._indexes("*")
            if alias in aliases and generation != self._generation
        ]
        actions += [_add(index, alias) for index, alias, _, _ in mine]
        self._call("POST", "/_aliases", {"actions": actions})

    def drop(self) -> None:
        mine = list(self._indexes(str(self._generation)))
        if any(alias in aliases for _, alias, _, aliases in mine):
            raise LockstepError(
                f"generation {self._generation} is live", hint="switch to another generation before you drop this one"
            )
        for index, _, _, _ in mine:
            self._call("DELETE", f"/{index}", missing_ok=True)
        self._call("DELETE", f"/{self._progress_index}/_doc/g{self._generation}", missing_ok=True)
        self._targets.clear()

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

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _target(self, index: str, shape: Shape) -> _Target:
        return _Target(f"{index}_W", shape, self._settings.deletes == "marker")

    def _index(self, name: TableName) -> str:
        return f"{alias_name(self._prefix, name)}_g{self._generation}"

    def _indexes(self, generation: str) -> Iterator[tuple[str, str, int, frozenset[str]]]:
        """Index, its reading alias' name, its generation and the aliases it has."""
        for index, held in self._call("GET", f"/{self._prefix}.*_g{generation}/_alias").items():
            found = _GENERATION_INDEX.fullmatch(index)
            if found is not None:
                yield index, found["alias"], int(found["generation"]), frozenset(held["aliases"])

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

    def _aim_at(self, events: Sequence[RowEvent]) -> None:
        """Know the index of every event's table and that it has every column."""
        looked_up: set[TableName] = set()
        for event in events:
            target = self._targets.get(event.table)
            if target is not None and (event.row is None or target.columns.issuperset(event.row)):
                continue
            if event.table not in looked_up:
                looked_up.add(event.table)
                index = self._index(event.table)
                shape = self._shape(index)
                if shape is None:
                    raise unprepared(event.table)
                target = self._targets[event.table] = self._target(index, shape)
            assert target is not None
            for name in event.row or ():
                if name not in target.columns:
                    raise unknown_column(event.table, name)

    def _requests(self, items: Sequence[_Item], documents_max: int) -> Iterator[tuple[list[_Item], bytes]]:
        """Bulk bodies of at most so many documents and about so many bytes; one large document goes alone."""
        portion: list[_Item] = []
        lines: list[bytes] = []
        size = 0
        for item in items:
            line = self._targets[item.event.table].lines(item.event, searchable=item.searchable)
            if lines and (len(lines) >= documents_max or size + len(line) > _BULK_BYTES):
                yield portion, b"".join(lines)
                portion, lines, size = [], [], 0
            portion.append(item)
            lines.append(line)
            size += len(line)
        if lines:
            yield portion, b"".join(lines)

    def _bulk(self, body: bytes, count: int) -> list[tuple[int, Mapping[str, Any] | None]]:
        """Status and error of each item."""
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
            return [(200, None)] * count
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


def _without_dynamic(index_mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in index_mapping.items() if name != "dynamic"}


def _stopping(status: int, error: str) -> LockstepError:
    """The operator's turn."""
    if status == 401:
        hint = "check user and password of this sink"
    elif status == 403 and error != "cluster_block_exception":
        hint = "grant the sink's user the right to create, read, write and alias the indexes of its prefix"
    elif error == "cluster_block_exception":
        hint = "the index is read-only, mostly because the disk is nearly full: free space; OpenSearch then lifts the block"
    elif error in ("index_not_found_exception", "invalid_index_name_exception"):
        hint = "the index was removed; restart the job, or build it anew: give the sink another name in lockstep.toml"
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
