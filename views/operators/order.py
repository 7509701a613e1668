"""The order in which the rows of a node come while a state is built. Pure. A table's rows come in the order of its key,
pairs of an inner join in the order of the join's values, and the first rows of each part in the order of the parts. An
operator that needs such an order sorts only a few rows at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import assert_never

from views.evaluation import compiled_all
from views.expressions import Expression
from views.ordering import row_encoder
from views.plan import Filter, Group, Join, Node, Project, Scan, Top, Union
from views.values import Row


def part_of(node: Node, by: Sequence[Expression], *, is_all: bool = False) -> Callable[[Row], bytes] | None:
    """A function that encodes the beginning of ``by`` by which a node's rows are ordered; None if they come in any
    order. With ``is_all`` it is all of ``by`` or nothing, and no row has a null in it.
    """
    length = max((_alike(order, by) for order in _orders(node, may_be_null=not is_all)), default=0)
    if not length or (is_all and length < len(by)):
        return None
    values = compiled_all(by[:length], node.columns)
    encode = row_encoder([expression.type for expression in by[:length]])
    return lambda row: encode(values(row))


def _alike(order: Sequence[Expression], by: Sequence[Expression]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(order, by, strict=False)))


def _orders(node: Node, *, may_be_null: bool) -> Iterator[Sequence[Expression]]:
    """A table's key and the values that an inner join's pairs share are never null."""
    match node:
        case Scan():
            yield node.key
        case Filter():
            yield from _orders(node.source, may_be_null=may_be_null)
        case Project():
            columns = {made: column for column, made in node.expressions}
            for order in _orders(node.source, may_be_null=may_be_null):
                yield [columns[made] for made in takewhile(columns.__contains__, order)]
        case Join():
            if not node.keeps_left:
                yield node.left_on
                yield node.right_on
        case Top():
            if may_be_null:
                yield node.per
        case Group() | Union():
            pass
        case _:
            assert_never(node)
