"""Copies in the stream and rows of chosen keys, between a reader and a publisher in memory."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import pytest

from cdc.capture.published_table import PublishedTable
from cdc.capture.settings import CaptureSettings
from cdc.model.errors import Unavailable
from cdc.model.table import Table, TableName
from cdc.model.tag import Tag
from cdc.postgres.copy_orders import CopyAction, CopyOrder
from cdc.protocol.pgoutput import Fields
from cdc.stream.copy_orders import obeyed
from snapshot.copy import Interrupted, Republished, copy_into_stream, republish_keys
from snapshot.keys import KeyTexts
from snapshot.row_events import Line
from snapshot.table_reader import FoundKey
from tests.builders import ORDERS, column, table
from tests.copy_lines import copy_line
from tests.edges import Journal, MemoryPublisher, Time
from tests.history import EPOCH, published, state

ITEMS = table(column("id", "int8"), name=TableName("public", "items"))
SHAPES = (table(), ITEMS)
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

    def find(
        self, shape: Table, keys: Sequence[KeyTexts], *, while_waiting: Callable[[], None] = lambda: None
    ) -> Sequence[FoundKey]:
        there = {row[0] for row in self._rows[shape.name]}
        rest = (None,) * (len(shape.columns) - 1)
        return [FoundKey((key.encode(), *rest), key.encode() in there) for (key,) in keys]

    def rows_of(
        self, shape: Table, keys: Sequence[KeyTexts], *, while_waiting: Callable[[], None] = lambda: None
    ) -> Iterable[Fields]:
        return [row for row in self._rows[shape.name] if (row[0].decode(),) in keys]  # type: ignore[union-attr]


class MemoryOfRows:
    """What is remembered, with a log of it beside the publisher's batches."""

    def __init__(self, publisher: MemoryPublisher) -> None:
        self._publisher = publisher
        self._rows: dict[bytes, object] = {b'{"id":1}': "old", b'{"id":9}': "old"}
        self.kept: list[tuple[int, dict[bytes, object]]] = []
        """(batches that were committed before, rows) of each commit."""

    def remember(self, _: PublishedTable, key: bytes, fields: Fields) -> None:
        self._rows[key] = fields[1]

    def forget(self, _: PublishedTable, key: bytes) -> None:
        self._rows.pop(key, None)

    def commit(self) -> None:
        self.kept.append((len(self._publisher.batches), dict(self._rows)))


class Repair:
    """Keys 1, 3 and 9 of the orders, of which 9 has no row."""

    def __init__(self, *, batch_rows: int = 1000, fail_at: int | None = None, stop: bool = False) -> None:
        self.publisher = MemoryPublisher(Journal(), fail_at=fail_at)
        self.memory = MemoryOfRows(self.publisher)
        self._settings = CaptureSettings(batch_rows=batch_rows)
        self._stop = stop

    def run(self) -> Republished:
        return republish_keys(
            published(table())[ORDERS],
            [("1",), ("9",), ("3",)],
            reader=MemoryReader(),
            publisher=self.publisher,
            memory=self.memory,
            state=state(),
            consistent_point=0x200_0000,
            settings=self._settings,
            stopping=lambda: self._stop,
        )


def test_chosen_keys_get_their_rows_or_a_delete_with_its_tombstone() -> None:
    repair = Repair()
    assert repair.run() == Republished(2, 1)
    events = [(key, json.loads(value)["op"] if value else "tombstone") for _, key, value, _ in repair.publisher.events]
    assert events == [(b'{"id":1}', "r"), (b'{"id":3}', "r"), (b'{"id":9}', "d"), (b'{"id":9}', "tombstone")]


def test_all_events_of_chosen_keys_have_the_tag_of_the_snapshot() -> None:
    repair = Repair()
    repair.run()
    tags = {
        json.loads(value)["tag"] if value else (extra or b"").decode() for _, _, value, extra in repair.publisher.events
    }  # type: ignore[union-attr]
    assert tags == {str(Tag(EPOCH, 0x200_0000, 0))}


def test_the_position_stays_where_the_stream_is() -> None:
    repair = Repair(batch_rows=1)
    repair.run()
    assert set(map(str, repair.publisher.states)) == {str(state())}


def test_old_values_are_forgotten_before_and_new_ones_kept_after_kafka_has_the_rows() -> None:
    repair = Repair(batch_rows=1)
    repair.run()
    assert repair.memory.kept[0] == (0, {})
    for batches, rows in repair.memory.kept:
        committed = {key for batch in repair.publisher.batches[:batches] for _, key, _, _ in batch}
        assert rows.keys() <= committed
    assert repair.memory.kept[-1][1] == {b'{"id":1}': b"x", b'{"id":3}': b"y"}


@pytest.mark.parametrize("fail_at", range(4))
def test_a_failure_leaves_nothing_in_the_memory_that_the_log_lacks(fail_at: int) -> None:
    repair = Repair(batch_rows=1, fail_at=fail_at)
    with pytest.raises(Unavailable):
        repair.run()
    assert b'{"id":9}' not in repair.memory.kept[-1][1]
    assert repair.memory.kept[-1][1].get(b'{"id":1}') != "old"


def test_a_delete_and_its_tombstone_are_committed_together() -> None:
    repair = Repair(batch_rows=1)
    repair.run()
    assert [len(batch) for batch in repair.publisher.batches] == [1, 1, 2, 0]


def test_a_stop_ends_a_repair_between_two_batches() -> None:
    repair = Repair(batch_rows=1, stop=True)
    with pytest.raises(Interrupted):
        repair.run()
    assert len(repair.publisher.batches) == 1


LOG = table(column("id", "int8"), name=TableName("public", "log"), key=())


def test_a_copy_that_has_taken_away_what_was_there_can_not_be_cancelled() -> None:
    publisher = MemoryPublisher(Journal(), fail_at=2)
    before = replace(state(), copied={LOG.name: 2}, memberships={LOG.name: "m"}).asked_to_copy(LOG.name)
    with pytest.raises(Unavailable):
        copy_into_stream(
            published(LOG)[LOG.name],
            reader=MemoryReader({LOG.name: [(b"1",), (b"2",)]}),
            publisher=publisher,
            state=before,
            consistent_point=0x200_0000,
            membership="m",
            leaves=(),
            live_keys=lambda _: nullcontext(set()),
            schemas=[],
            settings=CaptureSettings(batch_rows=2),
            stopping=lambda: False,
            report=lambda _: None,
        )
    assert publisher.batches[1][0][2] is not None
    assert publisher.batches[1][0][2].startswith(b'{"op":"t"')
    cancelled, said = obeyed(publisher.states[-1], CopyOrder("s", CopyAction.CANCEL, LOG.name), [LOG.name])
    assert LOG.name not in cancelled.copied
    assert "can't go without it" in said[0]


def test_an_order_where_no_copy_waits_says_so() -> None:
    whole = replace(state(), copied={LOG.name: 2})
    assert obeyed(whole, CopyOrder("s", CopyAction.PAUSE, None), [LOG.name]) == (
        whole,
        ["warning: pause is ignored: no copy waits or runs"],
    )
