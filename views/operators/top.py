"""The first N rows of each part. All rows are kept in order; how far the first N reach is remembered.

So a change costs a few looks, however many rows a part has and however large N is.
"""

import struct
from collections.abc import Callable
from typing import Final

from views.evaluation import compiled, compiled_all
from views.operators.changes import Changes, Work, add, pack_row, prefix_of, retractions_first, unpack_row
from views.ordering import encoder, row_encoder
from views.plan import Top
from views.state.contract import Step
from views.values import Row

ROWS, REACH = b"t", b"w"
_COUNT: Final = struct.Struct(">I")


class TopOperator:
    """Rows that are among the first N of their part."""

    def __init__(self, node: Top, number: int) -> None:
        columns = node.source.columns
        self._rows_prefix, self._reach_prefix = prefix_of(ROWS, number), prefix_of(REACH, number)
        self._per = compiled_all(node.per, columns)
        self._encode_per: Callable[[Row], bytes] = row_encoder([made.type for made in node.per])
        self._order = [
            (
                compiled(key.expression, columns),
                encoder(key.expression.type, descending=key.descending, nulls_first=key.nulls_first),
            )
            for key in node.order
        ]
        self._limit = node.limit

    def changed(self, source: int, changes: Changes, work: Work) -> Changes:
        made: Changes = {}
        for row, weight in retractions_first(changes):
            per = self._encode_per(self._per(row))
            part = self._rows_prefix + per
            key = part + b"".join([encode(evaluate(row)) for evaluate, encode in self._order])
            reach_key = self._reach_prefix + per
            stored = work.state.get(reach_key)
            count, last = (0, b"") if stored is None else (_COUNT.unpack_from(stored)[0], stored[_COUNT.size :])
            change = self._came if weight > 0 else self._went
            count, last = change(work.state, part, key, row, count, last, made)
            if count:
                work.state.put(reach_key, _COUNT.pack(count) + last)
            elif stored is not None:
                work.state.delete(reach_key)
        work.count(len(made))
        return made

    def _came(
        self, state: Step, part: bytes, key: bytes, row: Row, count: int, last: bytes, made: Changes
    ) -> tuple[int, bytes]:
        """How many rows are among the first N now, and the key of the last one of them."""
        state.put(key, pack_row(row))
        if count < self._limit:
            add(made, row, 1)
            return count + 1, max(last, key)
        if key < last:
            pushed_out = state.get(last)
            assert pushed_out is not None, "the last of the first rows is there"
            add(made, row, 1)
            add(made, unpack_row(pushed_out), -1)
            return count, next(state.scan_back(part, before=last))[0]
        return count, last

    def _went(
        self, state: Step, part: bytes, key: bytes, row: Row, count: int, last: bytes, made: Changes
    ) -> tuple[int, bytes]:
        state.delete(key)
        if key > last:
            return count, last
        add(made, row, -1)
        following = next(state.scan(part, after=last), None)
        if following is not None:
            add(made, unpack_row(following[1]), 1)
            return count, following[0]
        if key == last:
            before = next(state.scan_back(part, before=last), None)
            last = b"" if before is None else before[0]
        return count - 1, last
