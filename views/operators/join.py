"""Equi-joins. Each side's rows are kept by the join's key, so that a change finds its partners by one look."""

from collections.abc import Callable, Sequence
from typing import Final

from views.evaluation import compiled_all
from views.expressions import Expression
from views.operators.changes import Changes, Work, add, pack_row, prefix_of, retractions_first, unpack_row
from views.ordering import row_encoder
from views.plan import Join, Node
from views.state.contract import Step
from views.values import Kind, Row

KIND: Final = b"j"
_LEFT, _RIGHT = 0, 1


class JoinOperator:
    """An inner or a left join. A left row without partner is there with nulls in place of the right row."""

    def __init__(self, node: Join, number: int) -> None:
        self._left = _Side(node.left, node.left_on, prefix_of(KIND, number, _LEFT))
        self._right = _Side(node.right, node.right_on, prefix_of(KIND, number, _RIGHT))
        self._keeps_left = node.keeps_left
        self._nulls: Row = (None,) * len(node.right.columns)

    def changed(self, source: int, changes: Changes, work: Work) -> Changes:
        made = self._left_changed(changes, work) if source == _LEFT else self._right_changed(changes, work)
        work.count(len(made))
        return made

    def _left_changed(self, changes: Changes, work: Work) -> Changes:
        made: Changes = {}
        partners: dict[bytes, list[Row]] = {}
        for row, weight in retractions_first(changes):
            key = self._left.key(row)
            if key is None:
                if self._keeps_left:
                    add(made, row + self._nulls, weight)
                continue
            if key not in partners:
                partners[key] = self._right.rows(work.state, key)
            for partner in partners[key]:
                add(made, row + partner, weight)
            if self._keeps_left and not partners[key]:
                add(made, row + self._nulls, weight)
            self._left.keep(work.state, key, row, weight)
            if len(made) > work.changes_max:
                work.count(len(made))
        return made

    def _right_changed(self, changes: Changes, work: Work) -> Changes:
        made: Changes = {}
        by_key: dict[bytes, list[tuple[Row, int]]] = {}
        for row, weight in retractions_first(changes):
            key = self._right.key(row)
            if key is not None:
                by_key.setdefault(key, []).append((row, weight))
        for key, rows in by_key.items():
            partners = self._left.rows(work.state, key)
            had_rows = self._keeps_left and self._right.has_rows(work.state, key)
            for row, weight in rows:
                for partner in partners:
                    add(made, partner + row, weight)
                self._right.keep(work.state, key, row, weight)
            if self._keeps_left and (has_rows := self._right.has_rows(work.state, key)) != had_rows:
                for partner in partners:
                    add(made, partner + self._nulls, -1 if has_rows else 1)
            if len(made) > work.changes_max:
                work.count(len(made))
        return made


class _Side:
    """The rows of one side, by the join's key and then by their own."""

    def __init__(self, node: Node, on: Sequence[Expression], prefix: bytes) -> None:
        self._prefix = prefix
        self._on = compiled_all(on, node.columns)
        self._encode_on = row_encoder([expression.type for expression in on])
        self._key = compiled_all(node.key, node.columns)
        self._encode_key: Callable[[Row], bytes] = row_encoder([column.type for column in node.key])
        assert all(column.type.kind is not Kind.OPAQUE for column in node.key)

    def key(self, row: Row) -> bytes | None:
        """What partners have in common; None where a part of it is null, which equals nothing."""
        on = self._on(row)
        return None if None in on else self._encode_on(on)

    def rows(self, state: Step, key: bytes) -> list[Row]:
        return [unpack_row(stored) for _, stored in state.scan(self._prefix + key)]

    def has_rows(self, state: Step, key: bytes) -> bool:
        return next(state.scan(self._prefix + key), None) is not None

    def keep(self, state: Step, key: bytes, row: Row, weight: int) -> None:
        own = self._prefix + key + self._encode_key(self._key(row))
        if weight > 0:
            state.put(own, pack_row(row))
        else:
            state.delete(own)
