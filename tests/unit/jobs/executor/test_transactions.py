"""What a step of a consistent sink has in it: all that is below a cut, and nothing of what is beyond."""

import time
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cdc.model.append_only import stored_table
from cdc.model.errors import DataLost
from cdc.model.event import JsonValue
from cdc.model.table import TableName
from cdc.protocol.control_records import ProgressRecord
from jobs.consistency import Consistency, load_consistency, save_consistency
from jobs.executor.driver_line import ALIVE_S, TaskReport
from jobs.executor.log_reader import Polled
from jobs.executor.result import Result
from jobs.executor.task_input import StepsInput, Task
from jobs.executor.task_pace import RECORD_S
from jobs.executor.transactions import Transactions
from jobs.offsets import Offsets
from sinks.contract import Batch, OpenedSink, Outcome
from sinks.memory import MemorySink
from sinks.redis.settings import RedisSettings
from sinks.registry import SinkSettings
from tests.builders import column, table
from tests.events import EPOCH, value_bytes
from tests.stepping import SteppingSink, SteppingStore, open_stepping

A, B = (table(column("id", "int8"), column("n", "int8"), name=TableName("public", name)) for name in ("a", "b"))
LOG = table(column("id", "int8"), column("n", "int8"), name=TableName("public", "log"), key=())
HERE = {"a": A, "b": B, "log": LOG}
LARGE, SMALL = 1 << 20, 1
EMPTY = Consistency(EPOCH, 8, 0, since_lsn=8)


SCHEMA = pa.schema(
    {
        "key": pa.binary(), "value": pa.binary(), "topic": pa.string(), "partition": pa.int32(),
        "offset": pa.int64(), "tombstone_tag": pa.binary(),
    }
)  # fmt: skip


def row(key: int, n: int) -> dict[str, JsonValue]:
    return {"id": key, "n": n}


class Failing(SteppingSink):
    """Fails at the so manieth batch from now on."""

    def __init__(self, store: SteppingStore, fail_at: int) -> None:
        super().__init__(store, 1)
        self._left = fail_at

    def apply(self, batch: Batch) -> Outcome:
        self._left -= 1
        if not self._left:
            raise RuntimeError("on purpose")
        return super().apply(batch)


class Steps:
    """One batch over topics a, b and log of one partition each, read as somebody says.

    ``kept`` is what the sink says of itself.
    """

    def __init__(
        self,
        store: SteppingStore,
        *,
        window_bytes: int = LARGE,
        reached: Offsets | None = None,
        fail_at: int = 0,
        line: Any = None,
    ) -> None:
        def open_it(_name: str, _settings: SinkSettings, _generation: int) -> OpenedSink:
            opened = open_stepping(store)
            return replace(opened, sink=Failing(store, fail_at)) if fail_at else opened

        task = Task(
            "dwh",
            RedisSettings(),
            1,
            0,
            {topic: table.name for topic, table in HERE.items()},
            {table.name: table for table in HERE.values()},
            window_bytes=window_bytes,
            retry_s=0.01,
            run=str(id(self)),
            client={},
            open=open_it,
            steps=StepsInput("progress", "shop"),
        )
        self.store, self.result = store, Result()
        self.run = Transactions(task, reached or {("a", 0): 0, ("b", 0): 0}, line, self.result)
        self._next = {"a": 0, "b": 0} if reached is None else {topic: offset for (topic, _), offset in reached.items()}

    def read(self, topic: str, *rows: tuple[int, int, int]) -> None:
        """Records come: key, value, and LSN of each."""
        start = self._next.setdefault(topic, 0)
        records = [
            {
                "key": b'{"id":%d}' % key if HERE[topic].key else b"{}",
                "value": value_bytes(HERE[topic], "u" if HERE[topic].key else "c", row(key, n), lsn=lsn, seq=1),
                "topic": topic,
                "partition": 0,
                "offset": start + number,
                "tombstone_tag": None,
            }
            for number, (key, n, lsn) in enumerate(rows)
        ]
        self._next[topic] += len(rows)
        batch = pa.RecordBatch.from_pylist(records, schema=SCHEMA)
        self.run.take(Polled([batch], {(topic, 0): self._next[topic]}))

    def committed(self, lsn: int, *, uncopied: tuple[str, ...] = (), **bounds: int) -> None:
        """A progress record comes."""
        record = ProgressRecord(lsn, lsn, {topic: (end,) for topic, end in bounds.items()}, EPOCH, uncopied=uncopied)
        rows = [{"value": record.to_bytes(), "topic": "progress", "partition": 0}]
        self.run.take(Polled([pa.RecordBatch.from_pylist(rows, schema=SCHEMA)], {}))

    @property
    def rows(self) -> dict[str, dict[Any, Any]]:
        sink = MemorySink(self.store, 1)
        return {table.name.name: {stored.key["id"]: stored.row["n"] for stored in sink.scan(table)} for table in (A, B)}

    @property
    def logged(self) -> list[Any]:
        return sorted(stored.row["n"] for stored in MemorySink(self.store, 1).scan(stored_table(LOG)))

    @property
    def kept(self) -> Consistency | None:
        return load_consistency(MemorySink(self.store), 1)


@pytest.fixture
def bank(monkeypatch: pytest.MonkeyPatch) -> SteppingStore:
    """Prepared, and consistent as of a moment before all that comes."""
    monkeypatch.setattr("jobs.executor.log_feed.STALLED_S", 1e9)  # there are no brokers that it could ask
    store = SteppingStore()
    MemorySink(store, 1).prepare([A, B, stored_table(LOG)])
    save_consistency(MemorySink(store), 1, EMPTY)
    return store


@pytest.mark.parametrize("window_bytes", [LARGE, SMALL], ids=["in memory", "on disk"])
def test_a_step_has_all_tables_up_to_the_record_and_the_rest_waits(bank: SteppingStore, window_bytes: int) -> None:
    steps = Steps(bank, window_bytes=window_bytes)
    steps.read("a", (1, 10, 16), (2, 20, 24))
    assert steps.rows == {"a": {}, "b": {}}, "the other table's part may still come"
    steps.committed(24, a=1, b=1)
    steps.read("b", (1, -10, 16))
    if window_bytes == LARGE:
        assert steps.rows == {"a": {1: 10}, "b": {1: -10}}
        assert steps.result.next_offsets == {("a", 0): 1, ("b", 0): 1}
        assert steps.kept == Consistency(EPOCH, 24, 24, since_lsn=8)
    else:
        assert steps.rows == {"a": {}, "b": {}}, "what waits on disk is as of a later record"
    steps.committed(32, a=2, b=2)
    steps.read("b", (1, -30, 24))
    assert steps.rows == {"a": {1: 10, 2: 20}, "b": {1: -30}}
    assert steps.result.next_offsets == {("a", 0): 2, ("b", 0): 2}
    assert steps.kept == Consistency(EPOCH, 32, 32, since_lsn=8)


def test_a_step_that_fails_in_the_middle_leaves_the_one_before(bank: SteppingStore) -> None:
    steps = Steps(bank, window_bytes=SMALL, fail_at=2)
    steps.read("a", (1, 10, 16))
    steps.read("b", (1, -10, 16))
    with pytest.raises(RuntimeError, match="on purpose"):
        steps.committed(24, a=1, b=1)
    steps.run.close()
    assert steps.rows == {"a": {}, "b": {}}
    assert steps.kept == EMPTY
    assert bank.next_offsets == {}


@pytest.mark.parametrize("is_whole", [True, False])
def test_only_a_generation_that_is_being_filled_gets_what_has_come_at_once(bank: SteppingStore, is_whole: bool) -> None:
    if not is_whole:
        save_consistency(MemorySink(bank), 1, Consistency())
    steps = Steps(bank, window_bytes=SMALL)
    steps.read("a", (1, 10, 16))
    assert steps.rows["a"] == ({} if is_whole else {1: 10})
    assert steps.result.next_offsets == ({} if is_whole else {("a", 0): 1, ("b", 0): 0})
    steps.committed(16, a=1)
    assert steps.kept == (EMPTY if is_whole else Consistency()), "all of 16 isn't below that"
    steps.read("b", (1, -10, 16))
    steps.committed(24, b=1)
    assert steps.rows == {"a": {1: 10}, "b": {1: -10}}
    assert steps.kept == Consistency(EPOCH, 24, 24, since_lsn=8 if is_whole else 24)


def test_a_generation_with_parts_of_transactions_is_not_taken_for_one_of_the_record_before_them(
    bank: SteppingStore,
) -> None:
    save_consistency(MemorySink(bank), 1, Consistency())
    before = Steps(bank, window_bytes=SMALL)
    before.read("a", (1, 10, 16))
    after = Steps(bank, reached={("a", 0): 1, ("b", 0): 0})
    after.committed(16, a=1, b=0)
    assert after.kept == Consistency(), "it has a part of 16 already"
    after.read("b", (1, -10, 16))
    after.committed(24, b=1)
    assert after.kept == Consistency(EPOCH, 24, 24, since_lsn=24)


def test_a_sink_that_is_read_for_again_from_before_does_not_go_back(bank: SteppingStore) -> None:
    steps = Steps(bank)
    steps.read("a", (1, 10, 16), (1, 11, 24))
    steps.committed(32, a=2)
    again = Steps(bank)
    again.read("a", (1, 10, 16))
    again.committed(24, a=1)
    assert again.rows["a"] == {1: 11}
    assert again.kept == Consistency(EPOCH, 32, 32, since_lsn=8)
    again.read("a", (1, 11, 24), (1, 12, 32))
    again.committed(40, a=3)
    assert again.rows["a"] == {1: 12}
    assert again.kept == Consistency(EPOCH, 40, 40, since_lsn=8)


@pytest.mark.parametrize("window_bytes", [LARGE, SMALL], ids=["in memory", "on disk"])
def test_each_event_of_an_append_only_table_is_in_one_step(bank: SteppingStore, window_bytes: int) -> None:
    steps = Steps(bank, window_bytes=window_bytes)
    steps.read("log", (1, 10, 16), (1, 10, 16 + 8), (1, 30, 32))
    steps.read("a", (1, 10, 16))
    assert (steps.logged, steps.rows["a"]) == ([], {})
    steps.committed(40, log=3, a=1)
    assert (steps.logged, steps.rows["a"]) == ([10, 10, 30], {1: 10})
    again = Steps(bank, window_bytes=window_bytes)
    again.read("log", (1, 10, 16), (1, 10, 16 + 8), (1, 30, 32), (2, 40, 40))
    again.committed(48, log=4)
    assert again.logged == [10, 10, 30, 40]


def test_the_driver_hears_that_a_step_is_read_while_nothing_of_it_is_applied(bank: SteppingStore) -> None:
    sent: list[TaskReport] = []
    steps = Steps(
        bank, line=SimpleNamespace(send_report=sent.append, is_over=lambda: False, at_work_on=lambda _: nullcontext())
    )
    now_s = time.monotonic()

    def says() -> TaskReport:
        nonlocal now_s
        now_s += ALIVE_S
        steps.run.report(now_s)
        return sent.pop()

    assert not says().is_at_work
    steps.read("a", (1, 10, 16))
    assert says() == TaskReport(has_got_on=True, read={("a", 0): 1, ("b", 0): 0})
    assert not says().is_at_work, "nothing comes"
    steps.committed(24, a=1, b=1)
    assert not says().is_at_work, "what the record asks for doesn't come"
    steps.read("b", (1, -10, 16))
    assert says() == TaskReport(2, 2, 0, 24, {("a", 0): 1, ("b", 0): 1}, has_got_on=True)


def test_a_step_that_waits_for_the_copy_of_a_table_is_at_work(bank: SteppingStore) -> None:
    """All that is published is read. Whoever reads it again has to wait as well."""
    sent: list[TaskReport] = []
    steps = Steps(
        bank, line=SimpleNamespace(send_report=sent.append, is_over=lambda: False, at_work_on=lambda _: nullcontext())
    )
    steps.committed(24, uncopied=("b",), a=0)
    steps.run.report(time.monotonic() + ALIVE_S)
    assert sent == [TaskReport(has_got_on=True)]


def test_the_driver_hears_that_a_step_is_written(bank: SteppingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[TaskReport] = []
    monkeypatch.setattr("jobs.executor.reports.ALIVE_S", 0.0)
    steps = Steps(
        bank, window_bytes=SMALL, line=SimpleNamespace(send_report=sent.append, at_work_on=lambda _: nullcontext())
    )
    steps.read("a", (1, 10, 16))
    steps.read("b", (1, -10, 16))
    steps.committed(24, a=1, b=1)
    assert sent == [TaskReport(has_got_on=True)] * 2


def test_no_step_is_made_on_a_store_that_was_put_back(bank: SteppingStore) -> None:
    """It has the same fence, and only its offsets tell."""
    before = deepcopy((bank.generations, bank.records, bank.next_offsets))
    steps = Steps(bank)
    steps.read("a", (1, 10, 16))
    steps.read("b", (1, -10, 16))
    steps.committed(24, a=1, b=1)
    reached = dict(steps.result.next_offsets)
    assert reached == {("a", 0): 1, ("b", 0): 1}
    bank.generations, bank.records, bank.next_offsets = before
    steps.read("a", (1, 20, 32))
    with pytest.raises(DataLost, match="put back to an earlier moment"):
        steps.committed(40, a=2, b=1)
    assert (steps.rows, steps.kept) == ({"a": {}, "b": {}}, EMPTY)
    with pytest.raises(DataLost, match="lacks rows of a, partition 0"):
        Steps(bank, reached=reached)
    Steps(bank, reached={})  # a job that begins again has the store's own offsets


def test_a_store_that_was_put_back_while_it_was_filled_is_never_told_to_be_consistent(bank: SteppingStore) -> None:
    before = deepcopy((bank.generations, bank.next_offsets))
    save_consistency(MemorySink(bank), 1, Consistency())
    steps = Steps(bank, window_bytes=SMALL)
    steps.read("a", (1, 10, 16))
    assert steps.rows["a"] == {1: 10}
    bank.generations, bank.next_offsets = before
    with pytest.raises(DataLost):
        steps.read("b", (1, -10, 16))
    assert bank.next_offsets == {}, "offsets behind the gap would hide it"
    assert steps.kept == Consistency()


@pytest.mark.parametrize("uncopied", [(), ("b",), ("another",)])
def test_who_applies_once_is_told_whether_a_copy_or_a_record_is_lacking(
    bank: SteppingStore, uncopied: tuple[str, ...]
) -> None:
    steps = Steps(bank)
    steps.read("a", (1, 10, 16))
    steps.committed(16, uncopied=uncopied, a=1)
    assert not steps.run.is_at_end(0.0)
    assert not steps.result.lacks_record
    assert steps.run.is_at_end(RECORD_S + 1)
    assert (steps.result.lacks_record, steps.result.awaits_copy) == (True, uncopied == ("b",))
