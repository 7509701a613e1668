"""Rows of an append-only table: each event is one, until a truncate removes all earlier ones."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

import orjson

from cdc.model.append_only import EVENT_COLUMN, OPERATION_COLUMN, TRUNCATE
from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, RowEvent, TableEvents, parse_key, parse_object
from cdc.model.table import Table
from views.batch_functions import packed
from views.operators.ages import AgeingRows, Ages
from views.operators.arrivals import UNREADABLE, Arrivals, Arrived
from views.operators.building import Building, Item
from views.operators.changes import MIRROR, RowChange, Rows, Work, pack_row, prefix_of, unpack_row
from views.operators.own_rows import OwnRows
from views.retention import Retained
from views.state.contract import Entry
from views.values import Row, from_event, type_of

EMPTIED: Final = b"e"
"""The beginning of the key of a table's newest truncate."""

_BEFORE, _AFTER = b"\x01", b"\x00"
"""They enclose an event's identity in a key, so that keys have the order of the events."""

_AT_ONCE: Final = 10_000


class EventRows(AgeingRows):
    """One table's rows, which never change: the columns that the query reads, by the event's identity. The newest
    truncate is stored as well, so that earlier events that come late are left out. Rows that are too old by
    ``retained``, or that aren't the shard's ``own``, are also left out.
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
        self._emptied = prefix_of(EMPTIED, number)
        self._is_own = None if own is None else own.of(names)
        # The identity is in the key, and isn't stored twice.
        self._read = [(name, from_event(type_of(table.column(name)))) for name in names if name != EVENT_COLUMN]
        self._place = names.index(EVENT_COLUMN)  # a scan always reads the key

    def changed(self, events: Iterable[RowEvent], work: Work) -> list[RowChange]:
        """Take in events of this table, in any order. An event that is stored already changes nothing. Raises
        EvaluationError when an event has a value that isn't of its column's type.
        """
        events = list(events)
        emptied = (work.state.get(self._emptied) or b"").decode()
        newest = max((event.tag for event in events if _empties(event)), default="")
        changes: list[RowChange] = []
        if newest > emptied:
            emptied = newest
            work.state.put(self._emptied, newest.encode())
            changes += self._taken_away(newest, work)
        kept: dict[bytes, bytes] = {}
        ages: dict[bytes, bytes] = {}
        for event in events:
            if event.tag < emptied or _empties(event):
                continue
            identity = str(event.key[EVENT_COLUMN])
            key = self._prefix + _BEFORE + identity.encode() + _AFTER
            if key in kept or work.state.get(key) is not None:
                continue
            values = self._values(event.row or {})
            row = self._row(identity, values)
            if self._is_own is not None and not self._is_own(row):
                continue
            if self._ages is not None:
                if self._ages.is_over(row, work.time_ms):
                    continue
                if (entry := self._ages.entry(row, key[len(self._prefix) :])) is not None:
                    ages[entry] = b""
            kept[key] = pack_row(values)
            changes.append((None, row))
        work.state.put_all(kept | ages)
        work.count(len(kept))
        return changes

    def take(self, events: TableEvents, arrivals: Arrivals) -> None:
        """Note events of this table, in any order. Raises LockstepError for a key that can't be read."""
        items: list[Item] = []
        for key, tag, text in zip(events.keys, events.tags, events.rows, strict=True):
            if tag < arrivals.emptied:
                continue
            identity = str(parse_key(key)[EVENT_COLUMN])
            own = _BEFORE + identity.encode() + _AFTER
            row = {} if text is None else parse_object(text)
            if row.get(OPERATION_COLUMN) == TRUNCATE:
                arrivals.emptied = tag
                continue
            try:
                values = self._values(row)
                if self._is_own is None or self._is_own(self._row(identity, values)):
                    items.append((own, tag.encode(), packed(values)))
            except LockstepError:
                items.append((own, tag.encode(), UNREADABLE + orjson.dumps(row)))
        arrivals.add(items)

    def arrived(self, items: Sequence[Item], time_ms: int, arrivals: Arrivals) -> Arrived:
        """Those of the newest items that count at this time of the view. Raises as ``Mirror.arrived``."""
        emptied = arrivals.emptied.encode()
        entries = [(self._prefix + key, stored) for key, tag, stored in items if tag >= emptied]
        rows = [self._row(self._identity_in(key), self._stored(stored)) for key, stored in entries]
        return Arrived(entries, (), rows) if self._ages is None else self._ages.arrived(entries, rows, time_ms)

    def _stored(self, stored: bytes) -> Row:
        if stored.startswith(UNREADABLE):
            self._values(parse_object(stored[len(UNREADABLE) :]))
            raise AssertionError("a row that couldn't be read can be read")
        return unpack_row(stored)

    def emptied(self, arrivals: Arrivals) -> list[Entry]:
        return [(self._emptied, arrivals.emptied.encode())] if arrivals.emptied else []

    def built(self, building: Building) -> Rows:
        for entries in building.entries(self._prefix):
            yield [self._row(self._identity_in(key), unpack_row(stored)) for key, stored in entries]

    def _taken_away(self, emptied: str, work: Work) -> list[RowChange]:
        changes: list[RowChange] = []
        end = self._prefix + _BEFORE + emptied.encode()
        while entries := [
            (key, stored) for key, stored in islice(work.state.scan(self._prefix), _AT_ONCE) if key < end
        ]:
            work.count(len(entries))
            changes += [(self.removed(key, stored, work), None) for key, stored in entries]
        return changes

    def removed(self, key: bytes, stored: bytes, work: Work) -> Row:
        row = self._row(self._identity_in(key), unpack_row(stored))
        if self._ages is not None:
            self._ages.forget(row, key[len(self._prefix) :], work.state)
        work.state.delete(key)
        return row

    def _identity_in(self, key: bytes) -> str:
        return key[len(self._prefix) + len(_BEFORE) : -len(_AFTER)].decode()

    def _values(self, row: Mapping[str, JsonValue]) -> Row:
        """A delete whose event has no values is a row of nulls."""
        return tuple([read(row.get(name)) for name, read in self._read])

    def _row(self, identity: str, values: Row) -> Row:
        return (*values[: self._place], identity, *values[self._place :])


def _empties(event: RowEvent) -> bool:
    return event.row is not None and event.row[OPERATION_COLUMN] == TRUNCATE
