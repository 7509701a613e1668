"""Functions of many rows at once, as generated Python code for a plan's expressions, without a call for each value.
They do what the functions of ``views.evaluation`` and ``views.ordering`` do. If a slice has a null that the code
doesn't expect, those functions are used instead.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

import orjson

from views.evaluation import compiled
from views.expressions import Expression, Ref
from views.ordering import NUMBERS, SIGN, VALUE, Direction, encoder
from views.values import Kind, Row

T = TypeVar("T")


def packed(row: Row) -> bytes:
    """A row as operators store it, for callers with many in memory: orjson's own bytes object has room for 1,024."""
    return memoryview(orjson.dumps(row)).tobytes()


@dataclass(slots=True)
class Code:
    """The code of one function, and the objects that it uses by name. In the code, a row is ``r``."""

    columns: Sequence[Ref]
    names: dict[str, Any] = field(default_factory=lambda: {"SIGN": SIGN, "DESCENDING": SIGN - 1})

    def name(self, known: Any) -> str:
        name = f"o{len(self.names)}"
        self.names[name] = known
        return name

    def value(self, expression: Expression) -> str:
        if isinstance(expression, Ref):
            return f"r[{[column.id for column in self.columns].index(expression.id)}]"
        return f"{self.name(compiled(expression, self.columns))}(r)"

    def row(self, expressions: Sequence[Expression]) -> str:
        return f"({''.join(self.value(expression) + ', ' for expression in expressions)})"

    def key(self, parts: Sequence[tuple[Expression, Direction]]) -> str:
        """Code of the bytes by which rows are ordered. Raises TypeError or AttributeError for some nulls."""
        pieces = []
        for are_numbers, alike in groupby(parts, key=lambda part: part[1].type.kind in NUMBERS):
            some = list(alike)
            if are_numbers:
                pack = self.name(struct.Struct(">" + "BQ" * len(some)).pack)
                pieces.append(f"{pack}({', '.join(self._number(*part) for part in some)})")
            else:
                pieces += [self._other(*part) for part in some]
        return " + ".join(pieces) or 'b""'

    def _number(self, expression: Expression, direction: Direction) -> str:
        value = self.value(expression)
        return f"{VALUE[0]}, " + (f"DESCENDING - {value}" if direction.descending else f"{value} + SIGN")

    def _other(self, expression: Expression, direction: Direction) -> str:
        value = self.value(expression)
        if direction.type.kind in (Kind.TEXT, Kind.UUID, Kind.CHAR) and not direction.descending:
            return rf'{VALUE!r} + {value}.encode() + b"\x00"'
        encode = encoder(direction.type, descending=direction.descending, nulls_first=direction.nulls_first)
        return f"{self.name(encode)}({value})"

    @property
    def packed(self) -> str:
        return f"{self.name(memoryview)}({self.name(orjson.dumps)}(r)).tobytes()"

    def of_rows(self, made: str, otherwise: Callable[[Row], T]) -> Callable[[list[Row]], list[T]]:
        """A function that makes ``made`` from each row of a slice. ``otherwise`` makes the same from any row."""
        written = self._written(made)

        def all_of(rows: list[Row]) -> list[T]:
            try:
                return written(rows)
            except (TypeError, AttributeError):
                return [otherwise(row) for row in rows]

        return all_of

    def with_nulls(self, expressions: Sequence[Expression]) -> Callable[[list[Row]], list[Row]]:
        """A function that returns those rows of a slice for which one of the expressions is null."""
        return self._written("r", " or ".join(f"{self.value(made)} is None" for made in expressions))

    def _written(self, made: str, condition: str = "True") -> Callable[[list[Row]], list[Any]]:
        written: Callable[[list[Row]], list[Any]] = self.written(f"lambda rows: [{made} for r in rows if {condition}]")
        return written

    def written(self, code: str) -> Any:
        """The function of this code, which contains text from outside only as literals."""
        return eval(code, self.names)  # noqa: S307  of names that we have made
