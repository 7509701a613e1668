"""Rows as documents and documents as rows (pure): the lines of a bulk request, and the contents of ``_source``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final

import orjson

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, TableEvents, parse_key, parse_object
from cdc.model.table import Table
from cdc.model.tag import TEXT_LENGTH, TRANSACTION_LENGTH, VERSION_SEQ_MAX, Tag, external_version
from sinks.columns.shape import Shape
from sinks.contract import StoredRow
from sinks.opensearch.ids import IdTemplate, document_id
from sinks.opensearch.mapping import (
    DELETED_FIELD,
    JSON_FIELD,
    JSON_TYPES,
    RANGES_FIELD,
    TAG_FIELD,
    field_name,
    field_of,
    range_columns,
)
from sinks.opensearch.ranges import searchable_range
from sinks.opensearch.shared_versions import Condition, shares_version
from sinks.sink_kernel import chosen_sink_kernel

_TAG: Final = TAG_FIELD.encode()
_DELETED: Final = DELETED_FIELD.encode()

# A term of Lucene has at most 32766 bytes. A flat_object's terms hold the path and the value.
_FLAT_BYTES_MAX: Final = 32_000
_FLAT_DEPTH_MAX: Final = 20
_OBJECT_TYPES: Final = frozenset({"flat_object", "object", "nested"})


@dataclass(frozen=True)
class Target:
    """Where a table's documents go, and how they are made."""

    write_alias: str
    shape: Shape
    deletes_leave_markers: bool = False
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Columns -> the settings' definition."""
    properties: Mapping[str, Mapping[str, Any]] | None = None
    """The index's mapping, if known."""
    id_template: IdTemplate | None = None
    """With ``routing`` (key columns), how documents are identified if not by the key alone."""
    routing: tuple[str, ...] = ()

    @cached_property
    def columns(self) -> frozenset[str]:
        return frozenset(column.name for column in self.shape.columns)

    @cached_property
    def json_columns(self) -> Mapping[str, str]:
        """json and jsonb columns and their value types."""
        return {
            column.name: column.value_type
            for column in self.shape.columns
            if column.value_type in JSON_TYPES and not column.is_array
        }

    @cached_property
    def range_columns(self) -> Mapping[str, str]:
        """Columns that are indexed as ranges, and their value types. An older index may have them as text."""
        properties = self.properties
        if properties is None:
            columns = self.shape.columns
            properties = {field_name(column.name): field_of(column, self.fields.get(column.name)) for column in columns}
        return range_columns(self.shape, properties)

    @cached_property
    def renamed(self) -> Mapping[str, str]:
        """The few columns whose field has another name."""
        return {name: field_name(name) for name in self.columns if field_name(name) != name}

    @cached_property
    def is_called_by_its_key(self) -> bool:
        """Whether a document's id is its key's values, which also route it to its shard."""
        return self.id_template is None and not self.routing

    @cached_property
    def has_copies(self) -> bool:
        """Whether documents have copies of values, for searching."""
        return bool(self.json_columns or self.range_columns)

    @cached_property
    def takes_rows_as_they_are(self) -> bool:
        """Whether a row's JSON is its document, except for the tag."""
        return not self.renamed and not self.has_copies

    def lines(
        self,
        events: TableEvents,
        index: int,
        *,
        searchable: bool = True,
        overwrite_equal_tags: bool = False,
        condition: Condition | None = None,
    ) -> bytes:
        """An event as lines of a bulk request.

        ``searchable`` adds the parsed copies of JSON and ranges. ``overwrite_equal_tags`` replaces a document of the
        same version. ``condition`` replaces the tag's own version.
        """
        tag, row = events.tags[index], events.rows[index]
        version = _version(tag, or_equal=overwrite_equal_tags) if condition is None else condition.clause
        key = parse_key(events.keys[index])
        if self.is_called_by_its_key:
            head = b'"_index":"%b","_id":%b,%b}}\n' % (
                self._index,
                orjson.dumps(document_id(list(key.values()))),
                version,
            )
        else:
            head = b'"_index":"%b",%b,%b}}\n' % (self._index, orjson.dumps(self.identity(key))[1:-1], version)
        if row is None:
            if self.deletes_leave_markers or shares_version(tag):
                return b'{"index":{%b{"%b":"%b","%b":true}\n' % (head, _TAG, tag.encode(), _DELETED)
            return b'{"delete":{' + head
        if self.takes_rows_as_they_are:
            return b'{"index":{%b{"%b":"%b",%b\n' % (head, _TAG, tag.encode(), row[1:])
        document = self._document(parse_object(row), tag, searchable)
        return b'{"index":{' + head + orjson.dumps(document) + b"\n"

    def take_lines(
        self, events: TableEvents, start: int, stop: int, lines: list[bytes], *, bytes_max: int
    ) -> tuple[int, int]:
        """Append what ``lines`` makes of events from ``start`` on, while they are ordinary ones.

        Returns the index of the first event that isn't, or that exceeds ``bytes_max``, or ``stop``; and the lines'
        bytes.
        """
        take: Any = getattr(chosen_sink_kernel().module, "take_documents", None)
        is_ordinary = self.is_called_by_its_key and self.takes_rows_as_they_are and len(self.shape.table.key) == 1
        if take is None or not is_ordinary:
            return start, 0
        key_start = b"{%b:" % orjson.dumps(self.shape.table.key[0])
        head = b'{"index":{"_index":"%b","_id":"' % self._index
        middle = b',"version_type":"external"}}\n{"%b":"' % _TAG
        total = 0
        while start < stop:
            transaction = events.tags[start][:TRANSACTION_LENGTH]
            end, size = take(
                events.keys,
                events.tags,
                events.rows,
                start,
                stop,
                key_start=key_start,
                head=head,
                middle=middle,
                transaction=transaction,
                first_version=first_version(transaction),
                seq_max=VERSION_SEQ_MAX,
                bytes_max=bytes_max - total,
                lines=lines,
            )
            if end == start:
                break
            start = end
            total += size
        return start, total

    def identity(self, key: Mapping[str, JsonValue]) -> dict[str, str]:
        """The identity of a row's document: ``_id``, and ``routing`` if there is one. ``key`` is in key order."""
        identity = {"_id": document_id(list(key.values())) if self._make_id is None else self._make_id(key)}
        if self.routing:
            # Bounded and never empty, like ids: the server refuses an empty one.
            identity["routing"] = document_id([key[name] for name in self.routing])
        return identity

    @cached_property
    def _make_id(self) -> Callable[[Mapping[str, JsonValue]], str] | None:
        return None if self.id_template is None else self.id_template.maker()

    @cached_property
    def _index(self) -> bytes:
        return self.write_alias.encode()

    def _document(self, row: Mapping[str, JsonValue], tag: str, searchable: bool) -> dict[str, Any]:
        document: dict[str, Any] = {self.renamed.get(name, name): value for name, value in row.items()}
        document[TAG_FIELD] = tag
        for home in self._homes:
            document[home] = {}
        for name, target, value_type, home, copy in self._copies:
            value = document.pop(target, None)
            if name in row:  # null too, which differs from a missing column
                document[home][name] = value
            if value is not None and searchable:
                parsed = copy(value, value_type)
                if parsed is not None:
                    document[target] = parsed
        return document

    @cached_property
    def _copies(self) -> Sequence[tuple[str, str, str, str, Callable[[Any, str], Any]]]:
        """Of each column with a copy for searching: name, field, value type, field of the exact value, how to copy."""
        copies: list[tuple[str, str, str, str, Callable[[Any, str], Any]]] = []
        for name, value_type in self.json_columns.items():
            is_object = self.fields.get(name, {}).get("type", "object") in _OBJECT_TYPES
            copies.append((name, field_name(name), value_type, JSON_FIELD, searchable_json if is_object else _as_it_is))
        for name, value_type in self.range_columns.items():
            copies.append((name, field_name(name), value_type, RANGES_FIELD, searchable_range))
        return copies

    @cached_property
    def _homes(self) -> Sequence[str]:
        return tuple({home for _, _, _, home, _ in self._copies})

    def stored(self, source: Mapping[str, Any], table: Table) -> StoredRow:
        """A document's ``_source`` as the row from which it was made."""
        json_texts, range_texts = source.get(JSON_FIELD) or {}, source.get(RANGES_FIELD) or {}
        row: dict[str, JsonValue] = {}
        lacks = []
        for column in table.columns:
            name = column.name
            if name in self.json_columns:
                held, field = json_texts, name
            elif name in self.range_columns:
                held, field = range_texts, name
            else:
                held, field = source, self.renamed.get(name, name)
            row[name] = held.get(field)
            if field not in held:
                lacks.append(name)
        return StoredRow({name: row[name] for name in table.key}, row, source[TAG_FIELD], lacks)


def _version(tag: str, *, or_equal: bool) -> bytes:
    number = first_version(tag[:TRANSACTION_LENGTH]) + min(int(tag[TRANSACTION_LENGTH:], 16), VERSION_SEQ_MAX)
    # A shared version says nothing about equal tags: after a conflict, the tags are compared.
    may_be_equal = or_equal and not shares_version(tag)
    return b'"version":%d,"version_type":"%b"' % (number, b"external_gte" if may_be_equal else b"external")


@lru_cache(maxsize=64)
def first_version(transaction: str) -> int:
    """The version of a transaction's seq 0, from which its others are counted.

    Cached, since most rows of a batch belong to few transactions. Raises LockstepError for a position beyond all
    versions.
    """
    try:
        return external_version(Tag.parse(transaction + "0" * (TEXT_LENGTH - TRANSACTION_LENGTH)))
    except ValueError as error:
        raise LockstepError(
            f"OpenSearch's versions have no room for this position of the source: {error}",
            hint="a generation that is built again has none either. A server that is filled from a dump begins with"
            " small LSNs: move the source there, and start a pipeline of another name. Other kinds of sinks have no"
            " such limit",
        ) from error


def _as_it_is(value: Any, _: str) -> Any:
    return value


def searchable_json(text: Any, value_type: str) -> Any:
    """JSON for a flat_object: the text itself if that is surely valid, or None if it can't be indexed."""
    if not isinstance(text, str) or not text.lstrip().startswith("{"):
        return None
    encoded = text.encode()
    if len(encoded) > _FLAT_BYTES_MAX or text.count("{") + text.count("[") > _FLAT_DEPTH_MAX:
        try:
            if not _is_flat_enough(orjson.loads(encoded), len(JSON_FIELD), 1):
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
