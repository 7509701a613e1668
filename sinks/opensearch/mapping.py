"""A table's columns as fields of its index: made from the table's shape, never guessed from data (pure).

The mapping is strict. ``_source`` holds every value exactly as the event has it, and a value that its field can't index
never costs the row:

===================================  =======================================================================
int2, int4, int8, oid                short, integer, long, long
numeric                              double for ranges and sorting, ``.exact`` keyword for every digit
float4, float8                       float, double
text, varchar, char                  text, ``.keyword`` for terms and sorting
bool                                 boolean
timestamp, timestamptz, date         date, to the millisecond
json, jsonb                          flat_object where the root is an object
int4range, int8range, numrange       integer_range, long_range, double_range; multiranges as several of them
daterange, tsrange, tstzrange        date_range, to the millisecond; multiranges as several of them
bytea                                kept, not indexed
uuid, enums, domains, all others     keyword
arrays                               as their elements, whatever their dimensions; bool[], json[] and jsonb[] keyword
===================================  =======================================================================

``ignore_malformed`` is set on numbers, dates and arrays of numbers, and nowhere else: ``NaN``, ``infinity``, years
beyond 9999 or BC and arrays with explicit bounds are legal at the source but nothing to OpenSearch's types. Such a
field is missing in the index of that one document, ``_ignored`` names it, and ``_source`` has the exact text: nothing
is lost and nothing hidden. Integers have no such values, so what doesn't fit them is a rejection. Keywords index up to
1024 characters.

A double tells numbers of up to 15 digits apart, as many as ``scaled_float`` does for a fixed scale; but a column's
scale may be changed at the source, and a scaled_float of the old one would round the new values without a word.

**JSON and ranges.** PostgreSQL's text of a json or jsonb value stands in ``_json``, that of a range in ``_ranges``,
unindexed; the column's own field has it parsed for searching. JSON that flat_object can't take (not an object, too
deep, terms too long) and ranges that OpenSearch can't say (``sinks.opensearch.ranges``) are there only. So the exact
text always comes back, and the search copy is best effort.

**Overrides.** ``fields`` has a field's definition in OpenSearch's own words. With a ``type`` it replaces the column's
own, so that a value which that can't hold is a rejection unless it says ``ignore_malformed``. Without one (``{ index =
false }``, ``{ copy_to = "everything" }``, an analyzer, further ``fields``) it is added to the column's own; ``{ enabled
= false }`` keeps the column unindexed. What ``copy_to`` names and isn't a column becomes a text field, or what
``fields`` says of it.

Column names with ``.``, ``%`` or a reserved name have these characters percent-encoded as fields.
"""

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
    **{name: {"type": kind} for name, kind in ranges.FIELD_TYPES.items()},
}
# Declared types whose values are prose; what else counts as text (enums, domains, extensions) is a keyword.
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
    """How a column is indexed unless ``fields`` says otherwise; the table is in this module's docstring."""
    value_type = column.value_type
    if column.is_array:
        if value_type in JSON_TYPES or value_type == "bool":
            return _KEYWORD
        if value_type in ("int2", "int4", "int8", "oid"):
            return {**_FIELD_TYPES[value_type], "ignore_malformed": True}
    if value_type == "text":
        return _TEXT if _TEXT_TYPE.fullmatch(column.type_name) else _KEYWORD
    return _FIELD_TYPES.get(value_type, _KEYWORD)


def field_of(column: Column, how: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """How a column is indexed where ``fields`` says ``how``."""
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
    """The fields that ``copy_to`` names, each once."""
    named = (how.get("copy_to", ()) for how in fields.values())
    return list(dict.fromkeys(name for names in named for name in ([names] if isinstance(names, str) else names)))


def mapping(
    shape: Shape, fields: Mapping[str, Mapping[str, Any]] = _AS_THE_TYPE, *, is_routed: bool = False
) -> dict[str, Any]:
    """The index's mapping; ``_meta`` carries the shape it was made from. ``fields`` says how some columns are indexed.

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
    """Columns whose ranges are indexed as ranges in an index of this mapping, and their value types."""
    return {
        column.name: column.value_type
        for column in shape.columns
        if column.value_type in ranges.FIELD_TYPES
        and str(properties.get(field_name(column.name), {}).get("type")).endswith("_range")
    }
