"""Applies a sink's expressions to a row: its computed columns, or that the sink doesn't get it. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import orjson

from cdc.model.event import JsonValue
from views.evaluation import compiled, compiled_condition
from views.expressions import Expression, refs
from views.failures import EvaluationError
from views.plan import RowPlan
from views.values import Value, from_event, to_event

_PLANS_MAX: Final = 1000
"""How many plans a process stores ready for use."""


@dataclass(frozen=True, slots=True)
class ComputedRow:
    """A row with its computed columns, or None if it doesn't meet the condition. If an expression can't be evaluated,
    ``refused`` says which, and why."""

    row: Mapping[str, JsonValue] | None
    refused: str = ""


class RowComputer:
    """Evaluates one table's expressions."""

    def __init__(self, plan: RowPlan) -> None:
        names = {column.id: name for name, column in zip(plan.names, plan.columns, strict=True)}
        self._is_met = None if plan.condition is None else _function(plan.condition, names, compiled_condition)
        self._columns = [
            (name, _function(expression, names, compiled), to_event(expression.type))
            for name, expression in plan.outputs
        ]

    def computed(self, row: Mapping[str, JsonValue]) -> ComputedRow:
        """The sink's row for a row of the table's shape. As in SQL, a condition that is null isn't met."""
        values, refused = self._values(row)
        return ComputedRow(None if values is None else {**row, **values} if values else row, refused)

    def computed_text(self, text: bytes) -> tuple[bytes | None, str]:
        """As ``computed``, for a row in JSON, whose own columns stay as written. Returns the row, and the refusal."""
        values, refused = self._values(orjson.loads(text))
        if not values:
            return (None if values is None else text), refused
        return text[:-1] + (b"," if len(text) > 2 else b"") + orjson.dumps(values)[1:], ""

    def _values(self, row: Mapping[str, JsonValue]) -> tuple[dict[str, JsonValue] | None, str]:
        """The computed columns, None for a row that the sink doesn't get; and why it is refused."""
        failed: list[str] = []
        if self._is_met is not None:
            try:
                if not self._is_met(row):
                    return None, ""
            except _FAILS as error:
                failed.append(_failure("the condition of where", error))
        values: dict[str, JsonValue] = {}
        for name, evaluate, in_events in self._columns:
            try:
                values[name] = in_events(evaluate(row))
            except _FAILS as error:
                failed.append(_failure(f"computed column {name!r}", error))
        if failed:
            return None, f"expression: {'; '.join(failed)}"
        return values, ""


@lru_cache(_PLANS_MAX)
def row_computer(plan: RowPlan) -> RowComputer:
    """The computer of a plan, made once per process."""
    return RowComputer(plan)


_FAILS: Final = (EvaluationError, ArithmeticError, ValueError)
"""What evaluation raises for a value without a result."""


def _failure(what: str, error: Exception) -> str:
    why = f": {error.reason}" if isinstance(error, EvaluationError) else ""
    return f"{what} can't be evaluated for this row{why}"


def _function(expression: Expression, names: Mapping[int, str], compile_it: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a row in an event. It reads only the columns of this expression: others may be unreadable."""
    used = {ref.id: ref for ref in refs(expression)}
    readers = [(names[ref.id], from_event(ref.type)) for ref in used.values()]
    evaluate = compile_it(expression, tuple(used.values()))

    def of_row(row: Mapping[str, JsonValue]) -> Value:
        try:
            values = tuple([read(row[name]) for name, read in readers])
        except KeyError as error:
            raise EvaluationError(f"the column {error.args[0]!r} is missing in it") from None
        result: Value = evaluate(values)
        return result

    return of_row
