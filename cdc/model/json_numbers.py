"""Which PostgreSQL types are numbers in an event's JSON. Other types are text, except ``bool`` and arrays."""

from typing import Final

INTEGERS: Final = frozenset({"int2", "int4", "int8", "oid"})
"""Their text is already JSON."""

FLOATS: Final = frozenset({"float4", "float8"})
"""Numbers, except for ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``."""
