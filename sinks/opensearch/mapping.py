"""A table's columns as fields of its index: made from the table's shape, never guessed from data (pure)."""

import re
from collections.abc import Mapping
from typing import Any, Final

from cdc.model.table import Column
from sinks.columns.shape import Shape
from sinks.opensearch import ranges

TAG_FIELD: Final = "_tag"
DELETED_FIELD: Final = "_deleted"
JSON_FIELD: Final = "_json"
RANGES_FIELD: Final = "_ranges"

JSON_TYPES: Final = frozenset({"json", "jsonb"})

_KEYWORD_CHARACTERS_MAX: Final = 1024
_RESERVED_FIELDS: Final = frozenset(
    (
        *(
            TAG_FIELD,
            DELETED_FIELD,
            JSON_FIELD,
            RANGES_FIELD,
            "_id",
            "_index",
            "_source",
            "_routing",
            "_type",
            "_version",
        ),
        *(
            "_field_names",
            "_ignored",
            "_seq_no",
            "_primary_term",
            "_nested_path",
            "_doc_count",
            "_data_stream_timestamp",
        ),
        *("_size", "_meta", "_parent", "_feature", "_tier", "_all", "_score", "_name"),
    )
)

# The mapping is strict, but a value that its field can't index must not reject the row. So numbers and dates have
# ``ignore_malformed``: NaN, infinity, BC and years beyond 9999 are legal at the source. Integers have no such values.
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
    # Not a scaled_float, which isn't more precise: if the source changed its scale, new values would be rounded.
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
    **{name: {"type": kind} for name, kind in ranges.FIELD_TYPES.items()},
}
# Declared types whose values are prose. Other types that count as text (enums, domains, extensions) are keywords.
_TEXT_TYPE: Final = re.compile(r"(text|name|citext|character varying(\(\d+\))?)(\[\])?")
_AS_THE_TYPE: Final[Mapping[str, Mapping[str, Any]]] = {}
_UNINDEXED: Final[Mapping[str, Any]] = {"type": "object", "enabled": False}


def field_name(column: str) -> str:
    """A column's field. A dot would make it a path."""
    name = column.replace("%", "%25").replace(".", "%2e")
    if name in _RESERVED_FIELDS or not name.strip():
        name = f"%{ord(name[0]):02x}{name[1:]}"
    return name


def field_mapping(column: Column) -> Mapping[str, Any]:
    """How a column is indexed by default. Arrays are indexed like their elements."""
    value_type = column.value_type
    if column.is_array:
        if value_type in JSON_TYPES or value_type == "bool":
            return _KEYWORD
        if value_type in ("int2", "int4", "int8", "oid"):  # an array with explicit bounds comes as text
            return {**_FIELD_TYPES[value_type], "ignore_malformed": True}
    if value_type == "text":
        return _TEXT if _TEXT_TYPE.fullmatch(column.type_name) else _KEYWORD
    return _FIELD_TYPES.get(value_type, _KEYWORD)


def field_of(column: Column, how: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """How a column is indexed if ``fields`` says ``how``: a ``type`` replaces its default, anything else extends it."""
    if how is None:
        return field_mapping(column)
    if "type" in how:
        return how
    if "enabled" in how:
        return {"type": "object", **how}
    own = field_mapping(column)
    further = {**own.get("fields", {}), **how.get("fields", {})}
    return {**own, **how, **({"fields": further} if further else {})}


def copy_targets(fields: Mapping[str, Mapping[str, Any]]) -> list[str]:
    named = (how.get("copy_to", ()) for how in fields.values())
    return list(dict.fromkeys(name for names in named for name in ([names] if isinstance(names, str) else names)))


def mapping(
    shape: Shape, fields: Mapping[str, Mapping[str, Any]] = _AS_THE_TYPE, *, is_routed: bool = False
) -> dict[str, Any]:
    """The index's mapping. ``_meta`` holds the shape from which it was made. ``fields`` defines how some columns are
    indexed.

    With ``is_routed`` the server refuses to write or find a document without its routing.
    """
    properties: dict[str, Mapping[str, Any]] = {
        name: fields.get(name, {"type": "text"}) for name in copy_targets(fields)
    }
    properties |= {field_name(column.name): field_of(column, fields.get(column.name)) for column in shape.columns}
    properties[TAG_FIELD] = {"type": "keyword"}
    properties[DELETED_FIELD] = {"type": "boolean"}
    properties[JSON_FIELD] = _UNINDEXED
    if range_columns(shape, properties):
        properties[RANGES_FIELD] = _UNINDEXED
    made = {"dynamic": "strict", "_meta": {"lockstep_shape": shape.to_json()}, "properties": properties}
    return {**made, "_routing": {"required": True}} if is_routed else made


def range_columns(shape: Shape, properties: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Columns that an index of this mapping indexes as ranges, and their value types."""
    return {
        column.name: column.value_type
        for column in shape.columns
        if column.value_type in ranges.FIELD_TYPES
        and str(properties.get(field_name(column.name), {}).get("type")).endswith("_range")
    }
