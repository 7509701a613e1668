"""One range of a table's blocks: rows of the snapshot become events of one or several Kafka transactions. Rows of an
append-only table can't be told apart, so a range of it is committed all at once."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from cdc.capture.batch_size import BatchSize
from cdc.model.table import Table
from cdc.protocol.copy_ledger import CopiedRange
from cdc.row_rate import RowRate
from snapshot.copy import TRANSACTION_AGE_MAX_S
from snapshot.ledger import CopyRun
from snapshot.ranges import Part
from snapshot.row_events import EncodedRow, Line, RowEvents

_SLICE_S: Final = 0.5
"""How long to wait for the rate limit before others get their turn."""


class PartReader(Protocol):
    """Rows of a range under a snapshot."""

    def part(
        self, table: Table, part: Part, *, where: str = ..., while_waiting: Callable[[], None] = ...
    ) -> Iterable[list[Line]]: ...


class RowPublisher(Protocol):
    """Takes events of rows. ``serve`` frees those that the brokers have."""

    def send_rows(self, topic: str, rows: Sequence[EncodedRow]) -> None: ...

    def serve(self) -> None: ...


class PartCommit(Protocol):
    """Commits what was sent: so many more rows and bytes of values. ``done``: these were the last, with the part's
    record."""

    def __call__(self, rows: int, size: int, done: CopiedRange | None) -> None: ...


@dataclass(frozen=True, slots=True)
class PartCopies:
    """Copies parts of one run, one after the other."""

    run: CopyRun
    reader: PartReader
    publisher: RowPublisher
    size: BatchSize
    rate: RowRate
    heed: Callable[[], None]
    """Called now and then while nothing is committed, but not after a part's last commit, when another part may be
    requested. What it raises ends the copy."""

    def copy(self, part: Part, table: Table, where: str, topic: str, events: RowEvents, commit: PartCommit) -> None:
        """Publish a part's rows. ``where`` is one more condition. What ``commit`` raises ends the copy."""
        full, rate = self.size, self.rate
        at_once = not table.key and part.in_blocks
        rows = size = rows_before = size_before = 0
        begun_s = opened_s = time.monotonic()

        def commit_if_due() -> None:
            nonlocal rows, size, rows_before, size_before
            is_full = rows >= full.rows or size >= full.bytes
            if not at_once and rows and (is_full or time.monotonic() - opened_s > TRANSACTION_AGE_MAX_S):
                commit(rows, size, None)
                rows_before, size_before = rows_before + rows, size_before + size
                rows = size = 0
            else:
                self.heed()

        def wait_for_rate() -> None:
            while (seconds := rate.wait_s()) > 0:
                time.sleep(min(seconds, _SLICE_S))
                commit_if_due()

        wait_for_rate()  # for the previous part, if that was committed at once: no transaction stays open meanwhile
        for lines in self.reader.part(table, part, where=where, while_waiting=commit_if_due):
            encoded = events.of_lines(lines)
            self.publisher.serve()  # else all rows of the transaction stay in memory until its commit
            sent = 0
            while sent < len(encoded):
                if not rows:
                    opened_s = time.monotonic()
                room = len(encoded) if at_once else full.rows - rows
                taken = encoded[sent : sent + room]
                self.publisher.send_rows(topic, taken)
                sent += len(taken)
                rows += len(taken)
                size += sum(len(value) for _, value in taken)
                commit_if_due()
            rate.taken(len(encoded))
            if not at_once:
                wait_for_rate()
        took_ms, now_ms = int((time.monotonic() - begun_s) * 1000), time.time_ns() // 1_000_000
        all_rows, all_bytes = rows_before + rows, size_before + size
        commit(rows, size, self.run.record(part, rows=all_rows, size=all_bytes, took_ms=took_ms, now_ms=now_ms))
