"""Rows of tables, stored by key, so that every change has an old and a new row."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import orjson

from cdc.model.append_only import is_append_only
from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, RowEvent, TableEvents, parse_object
from cdc.model.table import Table, TableName
from views.batch_functions import Code, packed
from views.evaluation import compiled_all, compiled_condition
from views.expressions import Ref
from views.failures import EvaluationError
from views.operators.ages import AgeingRows, Ages
from views.operators.arrivals import GONE, UNREADABLE, Arrivals, Arrived
from views.operators.building import Building, Item
from views.operators.changes import MIRROR, Changes, RowChange, Rows, Work, add, prefix_of
from views.operators.event_rows import EventRows
from views.operators.log_rows import LogRows
from views.operators.own_rows import IsOwn, OwnRows
from views.ordering import Direction, row_encoder
from views.plan import Scan
from views.retention import Retained
from views.values import TEXT, Row, Value, from_event, type_of

_ALL: Final[Mapping[TableName, OwnRows]] = MappingProxyType({})

_OF_DELETION, _OF_ROW = b"\x00", b"\x01"
"""Behind the tag of what arrives. Equal keys may have different texts, such as 1.0 and 1.00, and all events of a copy
have one tag. So the deletion of a key's former text comes before the row with the new text.
"""


class Mirror(AgeingRows):
    """One table's rows: the columns that the query reads, each row with its tag. Rows that are too old by ``retained``,
    or that aren't the shard's ``own``, count as deleted.
    """

    def __init__(
        self,
        table: Table,
        names: Sequence[str],
        number: int,
        retained: Retained | None = None,
        own: OwnRows | None = None,
    ) -> None:
        self.table = table.name
        self.names = tuple(names)
        self._ages = None if retained is None else Ages(retained, names.index(retained.column), number)
        self._prefix = prefix_of(MIRROR, number)
        # Events whose key alone assigns them to another shard never had a row here, and aren't looked up.
        self._is_own_key = None if own is None else own.of(table.key)
        self._is_own = None if own is None or self._is_own_key is not None else own.of(names)
        self._read = [(name, from_event(type_of(table.column(name)))) for name in names]
        self._key = [(name, from_event(type_of(table.column(name)))) for name in table.key]
        self._encode = row_encoder([type_of(column) for column in table.key_columns])
        self._log_rows = LogRows(table, names)
        self._items = self._written(table)

    def _written(self, table: Table) -> Callable[[list[Row]], list[Item]]:
        """The function that makes items from rows with their tags in front. A scan always reads the key."""
        columns = [Ref(place, of) for place, of in enumerate([TEXT, *map(type_of, map(table.column, self.names))])]
        key = [columns[1 + self.names.index(name)] for name in table.key]
        code = Code(columns)
        encoded = code.key([(column, Direction(column.type)) for column in key])

        def item(row: Row) -> Item:
            return self._encode([row[column.id] for column in key]), str(row[0]).encode() + _OF_ROW, packed(row)

        return code.of_rows(f"({encoded}, r[0].encode() + {_OF_ROW!r}, {code.packed})", item)

    def own_events(self, events: TableEvents) -> TableEvents:
        """Events without those whose key alone assigns them to another shard. No row is parsed."""
        if (is_own := self._is_own_key) is None:
            return events
        keys = [self._key_of(events.key_at(index), row) for index, row in enumerate(events.rows)]
        return events.select([index for index, key in enumerate(keys) if key is not None and is_own(tuple(key))])

    def changed(self, events: Iterable[RowEvent], work: Work) -> list[RowChange]:
        """Take in events of this table, in any order. An event that isn't newer than the stored row changes nothing.
        Raises EvaluationError when an event lacks a column.
        """
        newest: dict[bytes, RowEvent] = {}
        for event in events:
            of_key = self._key_of(event.key, event.row)
            if of_key is None or (self._is_own_key is not None and not self._is_own_key(tuple(of_key))):
                continue
            key = self._prefix + self._encode(of_key)
            if key not in newest or _order(event) >= _order(newest[key]):
                newest[key] = event
        changes: list[RowChange] = []
        kept: dict[bytes, bytes] = {}
        ages = self._ages
        for key, event in newest.items():
            stored = work.state.get(key)
            old: Row | None = None
            if stored is not None:
                tag, *values = orjson.loads(stored)
                if event.tag <= tag:
                    continue
                old = tuple(values)
            new = None if event.row is None else self._values(event.row)
            if new is not None and self._is_own is not None and not self._is_own(new):
                new = None
            if ages is not None:
                if new is not None and ages.is_over(new, work.time_ms):
                    new = None
                own = key[len(self._prefix) :]
                if old is not None and new != old:
                    ages.forget(old, own, work.state)
                if new is not None and (entry := ages.entry(new, own)) is not None:
                    kept[entry] = b""
            if new is not None:
                kept[key] = orjson.dumps((event.tag, *new))
            elif stored is not None:
                work.state.delete(key)
            if new != old:
                changes.append((old, new))
        work.state.put_all(kept)
        work.count(len(changes))
        return changes

    def take(self, events: TableEvents, arrivals: Arrivals) -> None:
        """Note events of this table, in any order. Raises LockstepError for a key that can't be read."""
        events = self.own_events(events)
        there = [index for index, row in enumerate(events.rows) if row is not None]
        with_rows = events if len(there) == len(events) else events.select(there)
        rows = self._log_rows.tagged(with_rows.tags, [row for row in with_rows.rows if row is not None])
        if rows is None:
            arrivals.add([item for index in range(len(events)) for item in self._item(events, index)])
            return
        items = self._items(rows)
        if (is_own := self._is_own) is not None:
            items = [
                item if is_own(row[1:]) else (item[0], item[1], GONE) for item, row in zip(items, rows, strict=True)
            ]
        if with_rows is not events:
            items += [
                item for index in range(len(events)) if events.rows[index] is None for item in self._item(events, index)
            ]
        arrivals.add(items)

    def _item(self, events: TableEvents, index: int) -> list[Item]:
        tag, text = events.tags[index], events.rows[index]
        if (key := self._key_of(events.key_at(index), text)) is None:
            return []
        stored = GONE
        if text is not None:
            try:
                row = self._values(parse_object(text))
                if self._is_own is None or self._is_own(row):
                    stored = packed((tag, *row))
            except LockstepError:
                stored = UNREADABLE + text
        return [(self._encode(key), tag.encode() + (_OF_DELETION if text is None else _OF_ROW), stored)]

    def arrived(self, items: Sequence[Item], time_ms: int, arrivals: Arrivals) -> Arrived:
        """Those of the newest items that count at this time of the view. Raises LockstepError for a row that can't be
        read, EvaluationError for one that lacks a column or has another type in it.
        """
        prefix = self._prefix
        entries = [(prefix + key, stored) for key, _, stored in items if stored]  # without deleted rows
        try:
            rows = [tuple(orjson.loads(stored)[1:]) for _, stored in entries]
        except ValueError:
            rows = [self._stored(stored) for _, stored in entries]
        return Arrived(entries, (), rows) if self._ages is None else self._ages.arrived(entries, rows, time_ms)

    def _stored(self, stored: bytes) -> Row:
        if stored.startswith(UNREADABLE):
            self._values(parse_object(stored[len(UNREADABLE) :]))
            raise AssertionError("a row that couldn't be read can be read")
        return tuple(orjson.loads(stored)[1:])

    def built(self, building: Building) -> Rows:
        for entries in building.entries(self._prefix):
            yield [tuple(orjson.loads(stored)[1:]) for _, stored in entries]

    def removed(self, key: bytes, stored: bytes, work: Work) -> Row:
        _, *values = orjson.loads(stored)
        old = tuple(values)
        if self._ages is not None:
            self._ages.forget(old, key[len(self._prefix) :], work.state)
        work.state.delete(key)
        return old

    def _key_of(self, key: Mapping[str, JsonValue], row: object) -> list[Value] | None:
        """An event's key; None for a deletion whose key has another form, since no stored row has such a key. When a
        column of the key has changed its type, a copy of the table deletes the keys of the old type.
        """
        try:
            return [read(key[name]) for name, read in self._key]
        except KeyError as error:
            if row is not None:
                raise EvaluationError(f"the column {error.args[0]!r} is missing in a key of {self.table}") from None
        except EvaluationError:
            if row is not None:
                raise
        return None

    def _values(self, row: Mapping[str, JsonValue]) -> Row:
        try:
            return tuple([read(row[name]) for name, read in self._read])
        except KeyError as error:
            raise EvaluationError(f"the column {error.args[0]!r} is missing in an event of {self.table}") from None


def _order(event: RowEvent) -> tuple[str, bool]:
    """The order of events with equal keys, as of ``_OF_ROW``."""
    return event.tag, event.row is not None


def mirrors(
    tables: Mapping[TableName, Table],
    scans: Sequence[Scan],
    retained: Sequence[Retained] = (),
    own: Mapping[TableName, OwnRows] = _ALL,
) -> dict[TableName, Mirror | EventRows]:
    """A mirror for each scanned table, with the columns that any of its scans reads, and the column of its age. Of
    tables in ``own``, it has only those rows.
    """
    names: dict[TableName, dict[str, None]] = {}
    for scan in scans:
        names.setdefault(scan.table, {}).update(dict.fromkeys(scan.names))
    of_table = {each.table: each for each in retained}
    for each in retained:
        names[each.table].setdefault(each.column)
    return {
        table: (EventRows if is_append_only(tables[table]) else Mirror)(
            tables[table], list(columns), number, of_table.get(table), own.get(table)
        )
        for number, (table, columns) in enumerate(names.items())
    }


class ScanOperator:
    """A table's changes as changes of the rows of one scan; with ``is_own``, only of rows that pass that test."""

    def __init__(self, node: Scan, mirror: Mirror | EventRows, is_own: IsOwn | None = None) -> None:
        self.table = node.table
        by_name = dict(zip(node.names, node.columns, strict=True))
        # The mirror's columns with the scan's numbers; columns that only other scans read have no number here.
        kept = [by_name.get(name, Ref(-1, node.columns[0].type)) for name in mirror.names]
        self._project = compiled_all(node.columns, kept)
        self._condition = None if node.condition is None else compiled_condition(node.condition, node.columns)
        self._is_own = is_own

    def built(self, of_table: Rows) -> Rows:
        """The scan's rows, from all rows of the table's mirror."""
        project, condition, is_own = self._project, self._condition, self._is_own
        for rows in of_table:
            projected = [project(row) for row in rows]
            if is_own is not None:
                projected = [row for row in projected if is_own(row)]
            yield projected if condition is None else [row for row in projected if condition(row)]

    def changes_of(self, rows: Sequence[RowChange]) -> Changes:
        changes: Changes = {}
        for old, new in rows:
            for row, weight in ((old, -1), (new, 1)):
                if row is not None:
                    projected = self._project(row)
                    if self._is_own is not None and not self._is_own(projected):
                        continue
                    if self._condition is None or self._condition(projected):
                        add(changes, projected, weight)
        return changes
