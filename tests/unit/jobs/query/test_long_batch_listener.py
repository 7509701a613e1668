"""The line between a driver and the task of a long batch, with the task's end in this process."""

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cdc.model.event import Position
from jobs.executor.driver_line import END, GO_ON, GO_ON_S, SILENT_S, DriverLine, TaskReport
from jobs.executor.log_reader import IDLE_WAIT_S
from jobs.executor.result import Failure, RejectedEvent
from jobs.generations.batch_gate import BatchGate
from jobs.generations.lease import HEARTBEAT_S, SILENCE_S
from jobs.query.long_batch_listener import LongBatches
from jobs.query.threads import TICK_S
from tests.databases import until
from views.counters import Counters
from views.figures import Building, Doing, ViewFigures

P0, P1 = ("t", 0), ("t", 1)

LISTENING_SILENT_S = 300.0
"""After so many seconds without a word, a task takes its driver for one that hangs, while ``listening``."""


class Driver:
    """A driver that listens."""

    def __init__(self, *, is_shared: bool = False) -> None:
        self.gate = BatchGate()
        self.ended = threading.Event()
        self.arrived = threading.Condition()
        self.heard = TaskReport()
        self.stores = True
        self.is_behind = False
        self.long_batches = LongBatches(self.gate, self.add, is_behind=lambda _: self.is_behind, is_shared=is_shared)

    @property
    def path(self) -> str:
        return self.long_batches.path

    def add(self, report: TaskReport) -> bool:
        with self.arrived:
            self.heard.add_json(report.to_json())
            self.arrived.notify_all()
            return self.stores

    def wait_for_rows(self, rows: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.heard.rows >= rows, 30)


@contextmanager
def listening(*, is_shared: bool = False) -> Iterator[Driver]:
    """Where the machine is so busy that the driver's thread waits for seconds, it isn't taken for one that hangs."""
    driver = Driver(is_shared=is_shared)
    thread = threading.Thread(target=driver.long_batches.serve, args=(driver.ended,))
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("jobs.executor.driver_line.SILENT_S", LISTENING_SILENT_S)
            yield driver
    finally:
        driver.ended.set()
        thread.join(300)
    assert not thread.is_alive()


def wait_until_over(line: DriverLine) -> None:
    pause = threading.Event()
    while not line.is_over():
        pause.wait(0.01)


def test_rejections_that_were_not_kept_do_not_count_as_kept_once_something_else_is_stored() -> None:
    """What another shard has told, for one. Theirs come again with the batch's result."""
    refused = RejectedEvent(Position("v", 0, 0), b'{"id":2}', None, "2", "too large")
    with listening(is_shared=True) as driver, DriverLine(driver.path) as line:
        driver.stores = False
        line.send_report(TaskReport(1, rejected=[refused], shard=1))
        driver.wait_for_rows(1)
        driver.stores = True
        for rows in (2, 3):  # by the second one, the first is answered
            line.send_report(TaskReport(1))
            driver.wait_for_rows(rows)
        assert not line.is_over()
        assert line.take_stored() == 0


def test_what_a_task_tells_adds_up() -> None:
    with listening() as driver, DriverLine(driver.path) as line:
        line.send_report(TaskReport(2, 1, 1, 30, {P0: 5}))
        line.send_report(TaskReport(1, 1, 0, 20, {P0: 6, P1: 1}))
        driver.wait_for_rows(3)
        assert driver.heard == TaskReport(3, 2, 1, 30, {P0: 6, P1: 1})
        assert not line.is_over()


def test_a_task_hears_how_much_of_what_it_told_is_stored() -> None:
    with listening() as driver, DriverLine(driver.path) as line:
        driver.stores = False
        line.send_report(TaskReport(rows=1))
        driver.wait_for_rows(1)
        driver.stores = True
        assert not line.is_over()
        assert line.take_stored() == 0
        line.send_report(TaskReport(rows=1))
        line.send_report(TaskReport(rows=1))
        stored = 0

        def are_all_stored() -> bool:
            nonlocal stored
            assert not line.is_over()
            stored += line.take_stored()
            return stored == 3

        until(are_all_stored)


def test_what_is_told_soon_after_something_was_stored_waits_and_the_batch_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jobs.query.long_batch_listener.REPORT_S", 1e9)
    monkeypatch.setattr("jobs.query.long_batch_listener.SLOWEST_S", 1e9)
    with listening() as driver, DriverLine(driver.path) as line:
        line.send_report(TaskReport(1, next_offsets={P0: 5}))
        driver.wait_for_rows(1)
        line.send_report(TaskReport(1, next_offsets={P0: 6}))
        driver.gate.close(0)
        wait_until_over(line)
        assert driver.heard.next_offsets == {P0: 5}


def test_what_a_shard_tells_is_stored_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for that."""
    monkeypatch.setattr("jobs.query.long_batch_listener.REPORT_S", 1e9)
    monkeypatch.setattr("jobs.query.long_batch_listener.SLOWEST_S", 1e9)
    with listening() as driver, DriverLine(driver.path) as line:
        for rows in (1, 2):
            line.send_report(TaskReport(1, next_offsets={P0: rows}, shard=0))
            driver.wait_for_rows(rows)


def test_a_shard_waits_until_what_it_has_rejected_is_kept_also_where_its_batch_is_to_end() -> None:
    event = RejectedEvent(Position("v", 0, 0), b'{"id":1}', '{"name":"\u00fc"}'.encode(), "0" * 28, "too large")
    deleted = replace(event, value=None, is_in_log=True)
    with listening() as driver, DriverLine(driver.path) as line:
        driver.gate.close(0)
        line.send_report(TaskReport(rejected=[event, deleted], resolved=[("v", b'{"id":2}')], shard=1))
        line.wait_stored(1, 300)
        assert line.take_stored() == 1
        assert (driver.heard.rejected, driver.heard.resolved) == ([event, deleted], [("v", b'{"id":2}')])
        driver.stores = False
        line.send_report(TaskReport(rejected=[event], shard=1))
        line.wait_stored(1, 0.1)
        assert line.take_stored() == 0
    line.wait_stored(1, 300)  # nobody is there any more
    assert line.take_stored() == 0


def test_somebody_at_the_gate_is_noticed_though_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.query.long_batch_listener.GO_ON_S", 1e6)
    with listening() as driver, DriverLine(driver.path) as line:
        line.send_report(TaskReport(rows=1))
        driver.wait_for_rows(1)
        driver.gate.close(0)
        wait_until_over(line)


def test_a_task_that_reaches_nothing_of_what_is_published_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client may have gone deaf, and nothing that it expects is missing."""
    monkeypatch.setattr("jobs.query.long_batch_listener.STANDSTILL_S", 0.05)
    with listening() as driver:
        driver.is_behind = True
        with DriverLine(driver.path) as line:
            line.send_report(TaskReport())  # it lives, and that is all
            wait_until_over(line)


def test_a_task_that_reads_much_before_it_applies_anything_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a consistent sink may take long to read, and would be read again from its beginning for ever."""
    now = 0.0
    monkeypatch.setattr("jobs.query.long_batch_listener.time", SimpleNamespace(monotonic=lambda: now))
    with listening() as driver:
        driver.is_behind = True
        with DriverLine(driver.path) as line:
            for _ in range(9):
                now += 10.0
                driver.heard.has_got_on = False
                line.send_report(TaskReport(has_got_on=True))
                until(lambda: driver.heard.has_got_on)
                assert not line.is_over()
            now += 10.0
            line.send_report(TaskReport())
            now += 10.0
            wait_until_over(line)


def test_tasks_of_one_batch_end_with_the_first_of_them() -> None:
    with listening(is_shared=True) as driver, DriverLine(driver.path) as other:
        other.send_report(TaskReport(rows=1))
        with DriverLine(driver.path) as line:
            line.send_report(TaskReport(rows=1))
            driver.wait_for_rows(2)
            assert not other.is_over()
        wait_until_over(other)
        with DriverLine(driver.path) as late:  # of the same batch, and it has only just begun
            wait_until_over(late)
        driver.long_batches.begin()
        with DriverLine(driver.path) as line:
            line.send_report(TaskReport(rows=1))
            driver.wait_for_rows(3)
            assert not line.is_over()


def test_a_state_that_is_being_built_is_not_begun_anew_for_another_task() -> None:
    building = ViewFigures(0, 0, 0, Counters(), Building(1, Doing.READING, 1, 2, 1.0))
    with listening(is_shared=True) as driver, DriverLine(driver.path) as line:
        line.send_report(TaskReport(rows=1, view=building, shard=0))
        driver.wait_for_rows(1)
        with DriverLine(driver.path) as other:
            other.send_report(TaskReport(rows=1, shard=1))
            driver.wait_for_rows(2)
        with DriverLine(driver.path) as late:  # so the one before has hung up
            wait_until_over(late)
        assert not line.is_over()
        line.send_report(TaskReport(rows=1, view=ViewFigures(8, 0, 0, Counters()), shard=0))
        wait_until_over(line)


def test_a_task_at_a_standstill_goes_on_while_another_one_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose sink doesn't answer. No other task could be begun in its place."""
    monkeypatch.setattr("jobs.query.long_batch_listener.STANDSTILL_S", 0.0)
    building = ViewFigures(0, 0, 0, Counters(), Building(1, Doing.READING, 1, 2, 1.0))
    with listening(is_shared=True) as driver, DriverLine(driver.path) as builds, DriverLine(driver.path) as other:
        builds.send_report(TaskReport(rows=1, view=building, shard=0))
        driver.wait_for_rows(1)
        other.send_report(TaskReport(rows=1, shard=1))
        driver.wait_for_rows(2)
        driver.is_behind = True
        for rows in (3, 4):
            other.send_report(TaskReport(rows=1, shard=1))
            driver.wait_for_rows(rows)
        assert not other.is_over()
        builds.send_report(TaskReport(rows=1, view=ViewFigures(8, 0, 0, Counters()), shard=0))
        wait_until_over(other)


def test_a_task_waits_for_its_next_attempt_no_longer_than_its_batch_lasts() -> None:
    with listening() as driver, DriverLine(driver.path) as line:
        assert not line.is_over_within(0.0)
        line.send_report(TaskReport(rows=1, failure=Failure("Unavailable", "it is down", retry_after_s=2.0)))
        driver.wait_for_rows(1)
        assert driver.heard.failure == Failure("Unavailable", "it is down", retry_after_s=2.0)
        assert driver.heard.is_at_work
        driver.gate.close(0)
        assert line.is_over_within(1e6)


def test_without_a_driver_every_batch_is_over() -> None:
    with listening() as driver:
        line = DriverLine(driver.path)
        line.send_report(TaskReport(rows=1))
        driver.wait_for_rows(1)
    wait_until_over(line)
    line.send_report(TaskReport(rows=1))
    line.send_report(TaskReport(rows=1))  # the first one may have gone nowhere without an error
    assert line.is_over()
    line.close()
    with DriverLine(driver.path) as late:
        assert late.is_over()
        late.send_report(TaskReport(rows=1))
    assert not Path(driver.path).parent.exists()


def test_a_batch_whose_driver_hangs_is_over() -> None:
    now = 0.0
    with socket.socket(socket.AF_UNIX) as listener, tempfile.TemporaryDirectory() as directory:
        listener.bind(f"{directory}/s")
        listener.listen()
        with DriverLine(f"{directory}/s", monotonic=lambda: now) as line:
            driver, _ = listener.accept()
            now += SILENT_S
            driver.sendall(GO_ON)
            assert not line.is_over()
            now += SILENT_S
            assert not line.is_over()
            now += 1
            assert line.is_over()
            # What was said comes late.
            driver.sendall(GO_ON + END + GO_ON)
            assert line.is_over()
            driver.sendall(GO_ON)
            assert line.is_over()
            driver.close()


def test_the_task_of_a_driver_that_hangs_is_over_before_others_hold_its_job_for_dead() -> None:
    assert 3 * GO_ON_S <= SILENT_S, "a word that comes late doesn't end a batch"
    # The last beat may be as old as a beat is when the driver begins to hang; the task looks when nothing comes.
    assert SILENT_S + IDLE_WAIT_S < SILENCE_S - HEARTBEAT_S - TICK_S


def test_a_driver_that_has_nothing_to_say_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.query.long_batch_listener.GO_ON_S", 0.0)
    now = 0.0
    with listening() as driver, DriverLine(driver.path, monotonic=lambda: now) as line:
        now += LISTENING_SILENT_S + 1
        until(lambda: not line.is_over())


def test_the_driver_hears_of_what_was_read_once_the_work_on_it_takes_long() -> None:
    """The task may hang in it. It isn't one of those that the driver answers."""
    with listening() as driver, DriverLine(driver.path) as line:
        with line.at_work_on({P0: 7}):
            until(lambda: driver.heard.read == {P0: 7})
            assert not driver.heard.is_at_work, "nothing has got on"
        line.send_report(TaskReport(rows=1))
        driver.wait_for_rows(1)
        until(lambda: not line.is_over() and line.take_stored() == 1)
