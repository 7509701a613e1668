"""What Spark has computed of a row, as it travels beside the row, and the row with it. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from cdc.model.event import JsonValue
from cdc.model.table import Column

COMPUTED: Final = "computed"
"""The records' column of results: JSON, each result's text under its name, null where its evaluation failed."""

_INTEGERS: Final = frozenset({"int2", "int4", "int8"})
_FLOATS: Final = frozenset({"float4", "float8"})


def condition_name(columns: Collection[str]) -> str:
    """The name of the condition's result, beside these columns."""
    name = "where"
    while name in columns:
        name += "_"
    return name


@dataclass(frozen=True, slots=True)
class ComputedRow:
    """A row with its computed columns, or None where it doesn't meet the condition.

    Where an expression can't be evaluated, ``refused`` says which.
    """

    row: bytes | None
    refused: str = ""


def computed_row(row: bytes, computed: bytes | str, columns: Collection[Column]) -> ComputedRow:
    """A row's JSON and the value of ``COMPUTED`` -> the row. A condition that is null isn't met, as in SQL."""
    results: Mapping[str, Mapping[str, str | None] | None] = orjson.loads(computed)
    condition = condition_name([column.name for column in columns])
    met = results.get(condition)
    if met is not None and met["v"] != "true":
        return ComputedRow(None)
    failed = [name for name, result in results.items() if result is None]
    if failed:
        what = ["the condition of where" if name == condition else f"computed column {name!r}" for name in failed]
        return ComputedRow(None, f"expression: {', '.join(what)} can't be evaluated for this row")
    if not columns:
        return ComputedRow(row)
    named = {column.name: typed_value((results[column.name] or {})["v"], column.value_type) for column in columns}
    values = b",".join(orjson.dumps(name) + b":" + orjson.dumps(value) for name, value in named.items())
    return ComputedRow(row[:-1] + (b"," if len(row) > 2 else b"") + values + b"}")


def typed_value(text: str | None, value_type: str) -> JsonValue:
    """A text of Spark's as a value in the form that its type has in events."""
    if text is None:
        return None
    if value_type == "bool":
        return text == "true"
    if value_type in _INTEGERS:
        return int(text)
    if value_type in _FLOATS:
        return text if text in ("NaN", "Infinity", "-Infinity") else float(text)
    return text
