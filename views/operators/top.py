"""The first N rows of each part. All rows are stored in order, together with how far the first N reach. So a change
takes a few reads, however many rows a part has and however large N is.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Final

from views.batch_functions import Code, packed
from views.evaluation import compiled_all
from views.operators.building import Building, Item
from views.operators.changes import (
    Changes,
    Rows,
    Work,
    add,
    pack_row,
    prefix_of,
    retractions_first,
    unpack_row,
    unpack_rows,
)
from views.operators.order import part_of
from views.ordering import Direction, order_encoder, row_encoder
from views.plan import Top
from views.state.contract import Entry, Step
from views.values import Row

ROWS, REACH = b"t", b"w"
_COUNT: Final = struct.Struct(">I")

_Placed = tuple[bytes, Row, int]
"""A row's key in the order, the row, and its weight."""


class TopOperator:
    def __init__(self, node: Top, number: int) -> None:
        columns = node.source.columns
        self._rows_prefix, self._reach_prefix = prefix_of(ROWS, number), prefix_of(REACH, number)
        self._per = compiled_all(node.per, columns)
        self._encode_per: Callable[[Row], bytes] = row_encoder([made.type for made in node.per])
        self._order = compiled_all([key.expression for key in node.order], columns)
        self._encode_order: Callable[[Row], bytes] = order_encoder(
            [Direction(key.expression.type, key.descending, key.nulls_first) for key in node.order]
        )
        self._limit = node.limit
        self._part = part_of(node.source, node.per)
        code = Code(columns)
        per = code.key([(made, Direction(made.type)) for made in node.per])
        order = code.key(
            [(key.expression, Direction(key.expression.type, key.descending, key.nulls_first)) for key in node.order]
        )
        self._items = code.of_rows(f"({per}, {order}, {code.packed})", self._item)

    def changed(self, source: int, changes: Changes, work: Work) -> Changes:
        made: Changes = {}
        by_part: dict[bytes, list[tuple[Row, int]]] = {}
        for change in retractions_first(changes):
            by_part.setdefault(self._encode_per(self._per(change[0])), []).append(change)
        kept: dict[bytes, bytes] = {}
        reaches: dict[bytes, bytes] = {}
        for per, rows in by_part.items():
            self._part_changed(per, rows, work.state, made, kept, reaches)
        work.state.put_all(kept)
        work.state.put_all(reaches)
        work.count(len(made))
        return made

    def built(self, sources: Sequence[Rows], building: Building) -> Rows:
        part, last, count = b"", b"", 0
        for items in building.arranged(self._rows_prefix, building.sorted(sources[0], self._items, self._part)):
            first: list[bytes] = []
            reaches: list[Entry] = []
            for of, at, row in items:
                if of != part or not count:
                    if count:
                        reaches.append(self._reach(part, count, last))
                    part, count = of, 0
                if count < self._limit:
                    count, last = count + 1, at
                    first.append(row)
            building.keep(reaches)
            building.changed += len(first)
            yield unpack_rows(first)
        if count:
            building.keep([self._reach(part, count, last)])

    def _item(self, row: Row) -> Item:
        return self._encode_per(self._per(row)), self._encode_order(self._order(row)), packed(row)

    def _reach(self, part: bytes, count: int, last: bytes) -> Entry:
        return self._reach_prefix + part, _COUNT.pack(count) + self._rows_prefix + part + last

    def _part_changed(
        self,
        per: bytes,
        rows: list[tuple[Row, int]],
        state: Step,
        made: Changes,
        kept: dict[bytes, bytes],
        reaches: dict[bytes, bytes],
    ) -> None:
        """Stores inserted rows at once if a later change of the part reads them. Adds the others to ``kept``."""
        part = self._rows_prefix + per
        reach_key = self._reach_prefix + per
        stored = state.get(reach_key)
        count, last = (0, b"") if stored is None else (_COUNT.unpack_from(stored)[0], stored[_COUNT.size :])
        own: dict[bytes, bytes] = {}
        placed = [(part + self._encode_order(self._order(row)), row, weight) for row, weight in rows]
        if rows[0][1] < 0:
            placed = self._replaced(placed, last, state, made)
        for key, row, weight in placed:
            if weight < 0:
                count, last = self._went(state, part, key, row, count, last, made)
            elif count < self._limit:
                own[key] = pack_row(row)
                add(made, row, 1)
                count, last = count + 1, max(last, key)
            else:
                if own:
                    state.put_all(own)
                    own = {}
                last = self._came(state, part, key, row, last, made)
        kept |= own
        if count:
            # Tuned: most changes don't move the end of the first N, and each part's entry is in a page of its own.
            if (reach := _COUNT.pack(count) + last) != stored:
                reaches[reach_key] = reach
        elif stored is not None:
            state.delete(reach_key)

    def _replaced(self, placed: list[_Placed], last: bytes, state: Step, made: Changes) -> list[_Placed]:
        """Overwrite rows whose position another row had until now: nothing moves. Returns all other changes."""
        gone = {key: row for key, row, weight in placed if weight < 0}
        came = {key: row for key, row, weight in placed if weight > 0 and key in gone}
        for key, row in came.items():
            state.put(key, pack_row(row))
            if key <= last:
                add(made, gone[key], -1)
                add(made, row, 1)
        return [change for change in placed if change[0] not in came] if came else placed

    def _came(self, state: Step, part: bytes, key: bytes, row: Row, last: bytes, made: Changes) -> bytes:
        """Insert a row when there are N rows already. Returns the key of the last of the first N now."""
        state.put(key, pack_row(row))
        if key > last:
            return last
        pushed_out = state.get(last)
        assert pushed_out is not None, "the last of the first rows is there"
        add(made, row, 1)
        add(made, unpack_row(pushed_out), -1)
        return next(state.scan_back(part, before=last))[0]

    def _went(
        self, state: Step, part: bytes, key: bytes, row: Row, count: int, last: bytes, made: Changes
    ) -> tuple[int, bytes]:
        """Delete a row. Returns how many rows are among the first N now, and the key of the last one of them."""
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
