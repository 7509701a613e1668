"""One generation of a sink, in the form that is compared."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.model.table import Table
from lockstep.verify.canonical import Fingerprint, Key, Row, fingerprint, key_of, key_values, portions
from lockstep.verify.waiting import Waiting
from sinks.contract import Sink

_KEYS_AT_ONCE: Final = 500
_CHECK_EVERY_ROWS: Final = 1000


@dataclass(frozen=True, slots=True)
class Copy:
    """A row as the sink holds it."""

    tag: str
    fingerprint: Fingerprint


class SinkSide:
    """Reads a sink: all of its rows, or some by their keys. Sinks can't be asked for a range of keys. Every method
    raises Unavailable if the sink doesn't answer, and LockstepError if a stop is asked for."""

    def __init__(self, sink: Sink, waiting: Waiting) -> None:
        self._sink = sink
        self._waiting = waiting

    def plan_scans(self, tables: Sequence[Table]) -> None:
        """Announce that these tables are scanned next. From now on ``scan`` may leave out rows that come later."""
        self._sink.plan_scans(tables)

    def scan(self, table: Table) -> Iterator[tuple[Key, Copy]]:
        """Every row; a key comes twice if the sink holds it twice."""
        for count, stored in enumerate(self._sink.scan(table)):
            if count % _CHECK_EVERY_ROWS == 0:
                self._waiting.check()
            key = key_of(table, stored.key)
            yield key, Copy(stored.tag, fingerprint(table, key, stored.row))

    def copies(self, table: Table, keys: Collection[Key]) -> dict[Key, tuple[Copy, ...]]:
        """What is stored under these keys; keys without a row are absent. More than one copy is one too many."""
        copies: dict[Key, tuple[Copy, ...]] = {}
        for key, copy, _ in self._stored(table, keys):
            copies[key] = (*copies.get(key, ()), copy)
        return copies

    def rows(self, table: Table, keys: Collection[Key]) -> dict[Key, list[tuple[Copy, Row]]]:
        """The same with their values; for few keys."""
        rows: dict[Key, list[tuple[Copy, Row]]] = {}
        for key, copy, row in self._stored(table, keys):
            rows.setdefault(key, []).append((copy, row))
        return rows

    def _stored(self, table: Table, keys: Collection[Key]) -> Iterator[tuple[Key, Copy, Row]]:
        for portion in portions(keys, _KEYS_AT_ONCE):
            self._waiting.check()
            asked = set(portion)
            for stored in self._sink.rows(table, [key_values(key) for key in portion]):
                key = key_of(table, stored.key)
                if key in asked:  # a row under the wrong key isn't what readers ask for
                    yield key, Copy(stored.tag, fingerprint(table, key, stored.row)), stored.row
