"""Equi-joins. Each side's rows are stored by the join's key, so that one scan finds the partners of a change."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from views.batch_functions import Code, packed
from views.evaluation import compiled_all
from views.expressions import Expression
from views.failures import FanOutExceeded
from views.operators.building import PORTION, PORTION_BYTES, Building, Item, Sorter
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
from views.ordering import Direction, row_encoder
from views.plan import Join, Node
from views.state.contract import Step
from views.values import Kind, Row

KIND: Final = b"j"
_LEFT, _RIGHT = 0, 1
_PACKED = itemgetter(2)


class JoinOperator:
    """An inner or a left join. A left row without a partner has nulls in place of the right row."""

    def __init__(self, node: Join, number: int) -> None:
        # A left row with a null key has no partner and is returned separately. In rows that come in order, no key is
        # null.
        self._left = _Side(node.left, node.left_on, prefix_of(KIND, number, _LEFT), is_all_kept=node.keeps_left)
        self._right = _Side(node.right, node.right_on, prefix_of(KIND, number, _RIGHT))
        self._keeps_left = node.keeps_left
        self._nulls: Row = (None,) * len(node.right.columns)

    def changed(self, source: int, changes: Changes, work: Work) -> Changes:
        made = self._left_changed(changes, work) if source == _LEFT else self._right_changed(changes, work)
        work.count(len(made))
        return made

    def _left_changed(self, changes: Changes, work: Work) -> Changes:
        made: Changes = {}
        kept: dict[bytes, bytes] = {}
        gone: list[bytes] = []
        partners: dict[bytes, list[Row]] = {}
        left, right, keeps_left, nulls = self._left, self._right, self._keeps_left, self._nulls
        for row, weight in retractions_first(changes):
            key = left.key(row)
            if key is None:
                if keeps_left:
                    made[row + nulls] = weight
                continue
            found = partners.get(key)
            if found is None:
                found = partners[key] = right.rows(work.state, key)
            # Rows differ, and so do each row's partners: no pair is made twice.
            for partner in found:
                made[row + partner] = weight
            if keeps_left and not found:
                made[row + nulls] = weight
            if weight > 0:
                kept[left.own_key(key, row)] = pack_row(row)
            else:
                gone.append(left.own_key(key, row))
            if len(made) > work.changes_max:
                work.count(len(made))
        for own in gone:
            if own not in kept:
                work.state.delete(own)
        work.state.put_all(kept)
        return made

    def _right_changed(self, changes: Changes, work: Work) -> Changes:
        made: Changes = {}
        kept: dict[bytes, bytes] = {}
        by_key: dict[bytes, list[tuple[Row, int]]] = {}
        for row, weight in retractions_first(changes):
            key = self._right.key(row)
            if key is not None:
                by_key.setdefault(key, []).append((row, weight))
        for key, rows in by_key.items():
            partners = self._left.rows(work.state, key)
            looks_for_nulls = self._keeps_left and bool(partners)
            had_rows = looks_for_nulls and self._right.has_rows(work.state, key)
            for row, weight in rows:
                for partner in partners:
                    made[partner + row] = weight
                self._right.keep(work.state, key, row, weight, kept)
            if looks_for_nulls:
                has_rows = rows[-1][1] > 0 or self._right.has_rows(work.state, key)
                if has_rows != had_rows:
                    for partner in partners:
                        add(made, partner + self._nulls, -1 if has_rows else 1)
            if len(made) > work.changes_max:
                work.count(len(made))
        work.state.put_all(kept)
        return made

    def built(self, sources: Sequence[Rows], building: Building) -> Rows:
        if self._keeps_left and not self._left.is_in_order:
            sorter = building.sorter()
            for rows in sources[_LEFT]:
                if without_key := self._left.take(rows, sorter):
                    yield [row + self._nulls for row in without_key]
            of_left = building.handed_on(sorter)
        else:
            of_left = self._left.sorted(sources[_LEFT], building)
        left = building.arranged(self._left.prefix, of_left)
        right = building.arranged(self._right.prefix, self._right.sorted(sources[_RIGHT], building))
        alone = [[self._nulls]] if self._keeps_left else []
        made: list[Row] = []
        held = 0
        for lefts, found in _matched(left, right, building.changes_max):
            for item in lefts if found or alone else ():
                row = unpack_row(item[2])
                held += len(item[2])
                for partners in found or alone:
                    made += [row + partner for partner in partners]
                    if len(made) >= PORTION or held >= PORTION_BYTES:
                        building.changed += len(made)
                        yield made
                        made, held = [], 0
        building.changed += len(made)
        yield made


def _matched(
    left: Iterable[list[Item]], right: Iterable[list[Item]], most: int
) -> Iterator[tuple[list[Item], list[list[Row]]]]:
    """Some of the left items of one key, with all right rows of that key, in slices. Both sides are in the order of
    their keys. Memory holds all items of a key only if both sides have it, and then only the right ones. Raises
    FanOutExceeded if either side has more than ``most`` items of a key that both have.
    """
    rights = _by_key(right)
    at, items = next(rights, (None, []))
    last, count = b"", 0
    found: list[list[Row]] = []
    for key, lefts in _by_key(left):
        if key != last or not count:
            last, count = key, 0
            while at is not None and at < key:
                at, items = next(rights, (None, []))
            found, of_right = [], 0
            while at == key:
                found.append(unpack_rows(map(_PACKED, items)))
                of_right += len(items)
                _check_fan_out(of_right, most)
                at, items = next(rights, (None, []))
        count += len(lefts)
        if found:
            _check_fan_out(count, most)
        yield lefts, found
    for _ in rights:
        pass  # reading them stores them


def _by_key(portions: Iterable[list[Item]]) -> Iterator[tuple[bytes, list[Item]]]:
    """The items of each key, perhaps in several slices."""
    for portion in portions:
        for key, items in groupby(portion, key=itemgetter(0)):
            yield key, list(items)


def _check_fan_out(partners: int, most: int) -> None:
    if partners > most:
        raise FanOutExceeded(
            f"one row of the view's operators has more than {most} partners",
            hint="a change of a table reaches that many rows of the view: join by keys that fewer rows share",
        )


class _Side:
    """The rows of one side, by the join's key and then by their own key."""

    def __init__(self, node: Node, on: Sequence[Expression], prefix: bytes, *, is_all_kept: bool = False) -> None:
        self.prefix = prefix
        self._on = compiled_all(on, node.columns)
        self._encode_on = row_encoder([expression.type for expression in on])
        self._key = compiled_all(node.key, node.columns)
        code = Code(node.columns)
        own = code.key([(column, Direction(column.type)) for column in node.key])
        key = code.key([(expression, Direction(expression.type)) for expression in on])
        self._items = code.of_rows(f"({key}, {own}, {code.packed})", self._item)
        self._without_key = code.with_nulls(on)
        self._part = part_of(node, on, is_all=is_all_kept)
        self._encode_key: Callable[[Row], bytes] = row_encoder([column.type for column in node.key])
        assert all(column.type.kind is not Kind.OPAQUE for column in node.key)

    def key(self, row: Row) -> bytes | None:
        """The join key of a row; None if a part of it is null, which equals nothing."""
        on = self._on(row)
        return None if None in on else self._encode_on(on)

    @property
    def is_in_order(self) -> bool:
        """Whether the rows come in the order of their join keys or of the beginning of these."""
        return self._part is not None

    def sorted(self, rows: Rows, building: Building) -> Iterator[list[Item]]:
        """All rows that can have partners, in order."""
        return building.sorted((self._with_key(portion) for portion in rows), self._items, self._part)

    def take(self, rows: list[Row], into: Sorter) -> list[Row]:
        """Add rows to a sorter. Returns those that can't have partners."""
        into.take(self._with_key(rows), self._items)
        return self._without_key(rows)

    def _with_key(self, rows: list[Row]) -> list[Row]:
        return [row for row in rows if None not in self._on(row)] if self._without_key(rows) else rows

    def _item(self, row: Row) -> Item:
        return self._encode_on(self._on(row)), self._encode_key(self._key(row)), packed(row)

    def rows(self, state: Step, key: bytes) -> list[Row]:
        return unpack_rows(stored for _, stored in state.scan(self.prefix + key))

    def has_rows(self, state: Step, key: bytes) -> bool:
        return next(state.scan(self.prefix + key), None) is not None

    def keep(self, state: Step, key: bytes, row: Row, weight: int, kept: dict[bytes, bytes]) -> None:
        """Delete a row at once, or add an inserted one to ``kept``, which the caller stores before anybody reads."""
        if weight > 0:
            kept[self.own_key(key, row)] = pack_row(row)
        else:
            state.delete(self.own_key(key, row))

    def own_key(self, key: bytes, row: Row) -> bytes:
        return self.prefix + key + self._encode_key(self._key(row))
