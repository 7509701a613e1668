"""Copies for which the stream stops, between a reader and a publisher in memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import pytest

from cdc.capture.batch_size import BatchSize
from cdc.model.errors import Unavailable
from cdc.model.table import Table, TableName
from cdc.postgres.copy_orders import CopyAction, CopyOrder
from cdc.protocol.pgoutput import Fields
from cdc.stream.copy_orders import obeyed
from snapshot.copy import StreamCopy
from snapshot.row_events import Line
from tests.builders import ORDERS, column, table
from tests.copy_lines import copy_line
from tests.edges import Journal, MemoryPublisher, Time
from tests.history import published, state

ITEMS = table(column("id", "int8"), name=TableName("public", "items"))
ROWS: Mapping[TableName, Sequence[Fields]] = {
    ORDERS: [(b"1", b"x"), (b"2", None), (b"3", b"y")],
    ITEMS.name: [(b"7",)],
}


class MemoryReader:
    """Rows in a dict."""

    def __init__(self, rows: Mapping[TableName, Sequence[Fields]] = ROWS) -> None:
        self._rows = rows
        self.read: list[TableName] = []
        self.time = Time()
        self.silence_s = 0

    def estimated_rows(self, shape: Table) -> int:
        return 2

    def lines(
        self, shape: Table, leaves: Sequence[int] = (), *, while_waiting: Callable[[], None] = lambda: None
    ) -> Iterable[list[Line]]:
        """After each row it takes ``silence_s`` seconds for more to come, which are told one by one."""
        self.read.append(shape.name)
        for row in self._rows[shape.name]:
            yield [copy_line(row)]
            for _ in range(self.silence_s):
                self.time.pass_by(1)
                while_waiting()


LOG = table(column("id", "int8"), name=TableName("public", "log"), key=())


def test_a_copy_that_has_taken_away_what_was_there_can_not_be_cancelled() -> None:
    publisher = MemoryPublisher(Journal(), fail_at=2)
    before = replace(state(), copied={LOG.name: 2}, memberships={LOG.name: "m"}).asked_to_copy(LOG.name)
    copy = StreamCopy(
        published(LOG)[LOG.name],
        MemoryReader({LOG.name: [(b"1",), (b"2",)]}),
        publisher,
        before,
        0x200_0000,
        BatchSize(2, 1 << 20),
        stopping=lambda: False,
        report=lambda _: None,
    )
    with pytest.raises(Unavailable):
        copy.copy("m", leaves=(), live_keys=lambda _: nullcontext(set()), schemas=[])
    assert publisher.batches[1][0][2] is not None
    assert publisher.batches[1][0][2].startswith(b'{"op":"t"')
    cancelled, said = obeyed(publisher.states[-1], CopyOrder("s", CopyAction.CANCEL, LOG.name), [LOG.name])
    assert LOG.name not in cancelled.copied
    assert "can't go without it" in said[0]
