"""Which rows of a table belong to a shard, by a few of the table's columns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from cdc.model.table import TableName
from views.evaluation import Evaluate, compiled
from views.expressions import Expression, Ref, rewritten
from views.failures import EvaluationError
from views.plan import Node, Scan, nodes
from views.shard import Shard
from views.values import Row, Value

IsOwn = Callable[[Row], bool]


class OwnRows:
    """The rows of one table that at least one of several scans needs. ``names`` are the columns that ``has`` takes."""

    def __init__(self, shard: Shard, scans: Sequence[tuple[Scan, Expression]]) -> None:
        numbers: dict[str, int] = {}
        by = dict.fromkeys(_by_names(expression, scan, numbers) for scan, expression in scans)
        self.names: Final = tuple(numbers)
        columns = [Ref(number, scans[0][1].type) for number in range(len(numbers))]
        self._each = [compiled_own(shard, expression, columns) for expression in by]

    @property
    def is_of_one_value(self) -> bool:
        """Whether all scans need the same rows."""
        return len(self._each) == 1

    def has(self, values: Row) -> bool:
        return any(is_own(values) for is_own in self._each)

    def of(self, names: Iterable[str]) -> IsOwn | None:
        """``has`` for rows with these columns; None if one is missing."""
        places = {name: place for place, name in enumerate(names)}
        if any(name not in places for name in self.names):
            return None
        own = [places[name] for name in self.names]
        return lambda row: self.has(tuple([row[place] for place in own]))


def compiled_own(shard: Shard, expression: Expression, columns: Sequence[Ref]) -> IsOwn:
    """A function that says whether a row belongs to the shard, by the value of an expression."""
    return partial(_is_own, shard, compiled(expression, columns))


def _is_own(shard: Shard, evaluate: Evaluate, row: Row) -> bool:
    value: Value
    try:
        value = evaluate(row)
    except EvaluationError:
        # The query may leave this row out. If it doesn't, it fails in whichever shard has the row.
        value = None
    return shard.has(value)


def divided_by(root: Node, shard: Shard) -> dict[int, Expression]:
    """The expressions by which scans of this plan are divided, by the node's ``id()``."""
    scans = [node for node in nodes(root) if isinstance(node, Scan)]
    pairs = zip(scans, shard.sharding.columns, strict=True)
    return {id(scan): expression for scan, expression in pairs if expression is not None}


def own_rows(root: Node, shard: Shard) -> Mapping[TableName, OwnRows]:
    """The rows that a shard needs, for each table of which it doesn't need all."""
    divided = divided_by(root, shard)
    by_table: dict[TableName, list[tuple[Scan, Expression | None]]] = {}
    for node in nodes(root):
        if isinstance(node, Scan):
            by_table.setdefault(node.table, []).append((node, divided.get(id(node))))
    return {
        table: OwnRows(shard, [(scan, by) for scan, by in scans if by is not None])
        for table, scans in by_table.items()
        if all(by is not None for _, by in scans)
    }


def _by_names(expression: Expression, scan: Scan, numbers: dict[str, int]) -> Expression:
    """The expression over columns that are numbered by name, independently of the scan's numbers."""
    names = {column.id: name for name, column in zip(scan.names, scan.columns, strict=True)}

    def numbered(part: Expression) -> Expression | None:
        if not isinstance(part, Ref):
            return None
        name = names[part.id]
        return Ref(numbers.setdefault(name, len(numbers)), part.type)

    return rewritten(expression, numbered)
