"""Kill, freeze and cut off capture under traffic: a read-committed reader sees every change once, in commit order."""

import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.postgres.slot import find_slot
from cdc.protocol.control_records import SnapshotPhase
from lockstep.console import EXIT_TAKEN_OVER
from tests.crash.capture_process import KILL_POINTS
from tests.pipeline import Pipeline, Traffic, traffic, wait_until

pytestmark = [pytest.mark.live, pytest.mark.crash]

_numbers = itertools.count(1)


@pytest.fixture
def pipeline(stack: Any, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(stack.endpoints(), tmp_path, f"crash{os.getpid()}_{next(_numbers)}")
    yield made
    made.close()


def _take_snapshot(pipeline: Pipeline) -> None:
    """Handoff first, then the oracle's slot, so that the stream begins before what is compared."""
    capture = pipeline.start_capture()
    pipeline.wait_streaming(capture)
    pipeline.make_oracle()
    assert pipeline.stop(capture) == 0


def _wait_for_more(pipeline: Pipeline) -> None:
    """Wait until capture has published something more, so that it is in the middle of it."""
    before = pipeline.state()
    wait_until(lambda: pipeline.state() != before, what="capture publishes")


def _wait_for_transactions(made: Traffic) -> None:
    wait_until(lambda: made.transactions >= 20, what="there is traffic")


@pytest.mark.parametrize("commits", [(4,), pytest.param((1, 9), marks=pytest.mark.soak)], ids=str)
@pytest.mark.parametrize("point", KILL_POINTS)
def test_kill_9_of_capture_loses_and_repeats_nothing(pipeline: Pipeline, point: str, commits: tuple[int, ...]) -> None:
    _take_snapshot(pipeline)
    with traffic(pipeline):
        for nth in commits:
            killed = pipeline.start_capture(kill=point, nth=nth)
            assert killed.wait(300) == -signal.SIGKILL, killed.log.read_text()
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
    pipeline.wait_published(capture)
    assert pipeline.stop(capture) == 0, capture.log.read_text()
    pipeline.assert_published_exactly_once()


def test_kills_at_any_moment_of_a_start_lose_and_repeat_nothing(pipeline: Pipeline) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    _take_snapshot(pipeline)
    with traffic(pipeline):
        for _ in range(6):
            killed = pipeline.start_capture()
            time.sleep(chance.uniform(0, 3))
            killed.kill()
            killed.wait()
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
    pipeline.wait_published(capture)
    assert pipeline.stop(capture) == 0, capture.log.read_text()
    pipeline.assert_published_exactly_once()


def _replace_while_frozen(pipeline: Pipeline, old: Any) -> Any:
    """Freeze the old capture, let a new one take over, thaw the old one. It has to end by itself."""
    os.kill(old.pid, signal.SIGSTOP)
    new = pipeline.start_capture()
    try:
        wait_until(lambda: "streaming from" in new.log.read_text(), what="the second capture streams")
    finally:
        os.kill(old.pid, signal.SIGCONT)
    assert pipeline.wait_ended(old) == EXIT_TAKEN_OVER, old.log.read_text()
    assert "taken over" in old.log.read_text()
    return new


def test_a_frozen_capture_that_wakes_up_is_fenced(pipeline: Pipeline) -> None:
    _take_snapshot(pipeline)
    with traffic(pipeline):
        old = pipeline.start_capture()
        pipeline.wait_streaming(old)
        _wait_for_more(pipeline)
        new = _replace_while_frozen(pipeline, old)
    pipeline.wait_published(new)
    assert pipeline.stop(new) == 0, new.log.read_text()
    pipeline.assert_published_exactly_once()


@pytest.mark.soak
def test_an_idle_capture_that_wakes_up_does_not_come_back_over_the_newer_one(pipeline: Pipeline) -> None:
    """It first notices that its connection to PostgreSQL is gone, which alone would be a reason to try again."""
    _take_snapshot(pipeline)
    old = pipeline.start_capture()
    pipeline.wait_streaming(old)
    pipeline.wait_published(old)
    new = _replace_while_frozen(pipeline, old)
    with traffic(pipeline) as made:
        _wait_for_transactions(made)
    pipeline.wait_published(new)
    assert pipeline.stop(new) == 0, new.log.read_text()
    pipeline.assert_published_exactly_once()


@pytest.mark.alone
@pytest.mark.parametrize("end", ["kill", pytest.param("stop", marks=pytest.mark.soak)])
def test_capture_survives_a_restart_of_kafka(pipeline: Pipeline, stack: Any, end: str) -> None:
    _take_snapshot(pipeline)
    with traffic(pipeline):
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
        _wait_for_more(pipeline)
        getattr(stack, end)("kafka")
        stack.start("kafka")
    pipeline.wait_published(capture)
    assert pipeline.stop(capture) == 0, capture.log.read_text()
    pipeline.assert_published_exactly_once()


@pytest.mark.alone
def test_capture_survives_a_restart_of_postgresql(pipeline: Pipeline, stack: Any) -> None:
    _take_snapshot(pipeline)
    capture = pipeline.start_capture()
    for seed, end in enumerate((stack.kill, stack.stop), start=1):
        with traffic(pipeline, seed=seed) as made:
            _wait_for_transactions(made)
        end("postgres")
        stack.start("postgres")
    with traffic(pipeline, seed=3) as made:
        _wait_for_transactions(made)
    pipeline.wait_published(capture)
    assert pipeline.stop(capture) == 0, capture.log.read_text()
    pipeline.assert_published_exactly_once()


@pytest.mark.alone
@pytest.mark.soak
def test_a_capture_that_first_finds_no_server_still_takes_over_from_the_one_before(
    pipeline: Pipeline, stack: Any
) -> None:
    _take_snapshot(pipeline)
    stack.stop("postgres")
    try:
        capture = pipeline.start_capture()
        wait_until(lambda: "starting over" in capture.log.read_text(), what="capture has missed PostgreSQL")  # type: ignore[attr-defined]
    finally:
        stack.start("postgres")
    with traffic(pipeline) as made:
        _wait_for_transactions(made)
    pipeline.wait_published(capture)
    assert pipeline.stop(capture) == 0, capture.log.read_text()  # type: ignore[attr-defined]
    pipeline.assert_published_exactly_once()


@pytest.mark.alone
@pytest.mark.soak
def test_the_server_hears_from_us_while_kafka_is_frozen(stack: Any, tmp_path: Path) -> None:
    """The wal_sender_timeout is shorter than the freeze: without answers, the connection would be dropped."""
    name = f"crash{os.getpid()}_{next(_numbers)}"
    pipeline = Pipeline(stack.endpoints(), tmp_path, name, dsn_options="options='-c wal_sender_timeout=3s'")
    try:
        _take_snapshot(pipeline)
        with traffic(pipeline):
            capture = pipeline.start_capture()
            pipeline.wait_streaming(capture)
            _wait_for_more(pipeline)
            reader = _reader(pipeline)
            stack.freeze("kafka")
            try:
                _wait_for_answers(pipeline, seconds=7)
            finally:
                stack.thaw("kafka")
            assert _reader(pipeline) == reader is not None
        pipeline.wait_published(capture)
        assert pipeline.stop(capture) == 0
        pipeline.assert_published_exactly_once()
    finally:
        pipeline.close()


def _wait_for_answers(pipeline: Pipeline, *, seconds: int) -> None:
    """Wait until the server has heard from capture this many seconds later than now."""
    query = "select count(*) from pg_stat_replication where pid = %s and reply_time > %s + make_interval(secs => %s)"
    with pipeline.sql() as sql:
        (now,) = sql.execute("select clock_timestamp()").fetchone() or ()
        wait_until(
            lambda: sql.execute(query, (_reader(pipeline), now, seconds)).fetchone() != (0,),
            what="the server hears from capture",
        )


def _reader(pipeline: Pipeline) -> int | None:
    """The server's process that sends to capture."""
    with pipeline.sql() as sql:
        slot = find_slot(sql, pipeline.config.slot)
        return None if slot is None else slot.active_pid


_SIDE_BY_SIDE = "workers = 2"


def _fill(pipeline: Pipeline) -> None:
    with pipeline.sql() as sql:
        sql.execute(f"insert into {pipeline.name}.account (id, owner) select i, 'o' from generate_series(1, 60000) i")
        sql.execute(f"insert into {pipeline.name}.entry select i, 1, 'n', '{{}}' from generate_series(1, 60000) i")


def _change(pipeline: Pipeline) -> None:
    with pipeline.sql() as sql:
        sql.execute(f"delete from {pipeline.name}.account where id % 10 = 0")
        sql.execute(f"update {pipeline.name}.account set owner = 'changed' where id % 10 = 1")
        sql.execute(f"update {pipeline.name}.entry set account_id = -account_id where account_id % 10 = 2")


def _suspend_copying(pipeline: Pipeline, capture: Any, workers: int) -> list[psutil.Process]:
    """Wait until rows are on their way to Kafka. Returns the suspended processes: capture itself, then its workers.
    They run for a moment at a time, so that the copy can't end while this looks, however long a look takes."""
    wait_until(lambda: "handoff at" in capture.log.read_text(), what="the snapshot begins")
    main = psutil.Process(capture.pid)
    suspended: list[psutil.Process] = []

    def copying() -> bool:
        main.suspend()
        suspended[:] = [main, *(child for child in main.children() if _is_worker(child))]
        for process in suspended:
            process.suspend()
        state = pipeline.state()
        assert state is None or state.phase in (SnapshotPhase.CREATING, SnapshotPhase.COPYING)
        if len(suspended) == 1 + workers and _has_records(pipeline):
            return True
        _resume(suspended)
        return False

    wait_until(copying, what="the snapshot is being copied")
    return suspended


def _has_records(pipeline: Pipeline) -> bool:
    admin = TopicAdmin(pipeline.client)
    counts = admin.all_partition_counts()
    return any(admin.end_offsets(partitions_of(set(pipeline.config.topics().values()), counts)).values())


def _resume(suspended: list[psutil.Process]) -> None:
    for process in reversed(suspended):  # the workers have their turn first
        process.resume()


def _is_worker(child: psutil.Process) -> bool:
    try:
        return "spawn_main" in str(child.cmdline())
    except psutil.NoSuchProcess:  # it has ended meanwhile, and wasn't one
        return False


@pytest.mark.parametrize(
    ("snapshot", "workers"),
    [pytest.param("workers = 0", 0, marks=pytest.mark.soak), (_SIDE_BY_SIDE, 2)],
    ids=["alone", "side by side"],
)
def test_an_interrupted_snapshot_is_never_half(stack: Any, tmp_path: Path, snapshot: str, workers: int) -> None:
    """Killed while it copies: the next start copies the missing tables under a later snapshot and ends the same."""
    name = f"crash{os.getpid()}_{next(_numbers)}"
    pipeline = Pipeline(stack.endpoints(), tmp_path, name, more={"snapshot": snapshot})
    try:
        _fill(pipeline)
        killed = pipeline.start_capture()
        _, *copying = _suspend_copying(pipeline, killed, workers)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        _resume(copying)
        _change(pipeline)  # between the two snapshots
        wait_until(lambda: not any(process.is_running() for process in copying), what="the workers end, too")
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
        pipeline.wait_published(capture)
        assert pipeline.stop(capture) == 0
        assert pipeline.newest_rows() == pipeline.source_rows()
    finally:
        pipeline.close()


@pytest.mark.soak
def test_a_first_copy_that_was_frozen_publishes_nothing_when_it_wakes_up(stack: Any, tmp_path: Path) -> None:
    """Meanwhile another capture finishes the copy and streams changes. The old rows must not come after them."""
    name = f"crash{os.getpid()}_{next(_numbers)}"
    pipeline = Pipeline(stack.endpoints(), tmp_path, name, more={"snapshot": _SIDE_BY_SIDE})
    try:
        _fill(pipeline)
        old = pipeline.start_capture()
        frozen = _suspend_copying(pipeline, old, 2)
        try:
            new = pipeline.start_capture()
            pipeline.wait_streaming(new)
            _change(pipeline)
            pipeline.wait_published(new)
        finally:
            _resume(frozen)
        assert pipeline.wait_ended(old) == EXIT_TAKEN_OVER, old.log.read_text()
        wait_until(lambda: not any(process.is_running() for process in frozen), what="the workers end, too")
        pipeline.wait_published(new)
        assert pipeline.stop(new) == 0, new.log.read_text()
        assert pipeline.newest_rows() == pipeline.source_rows()
    finally:
        pipeline.close()


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.parametrize("server", ["kafka", pytest.param("postgres", marks=pytest.mark.soak)])
def test_a_server_that_is_killed_while_workers_copy(stack: Any, tmp_path: Path, server: str) -> None:
    name = f"crash{os.getpid()}_{next(_numbers)}"
    pipeline = Pipeline(stack.endpoints(), tmp_path, name, more={"snapshot": _SIDE_BY_SIDE})
    try:
        _fill(pipeline)
        capture = pipeline.start_capture()
        copying = _suspend_copying(pipeline, capture, 2)
        stack.kill(server)
        _resume(copying)
        stack.start(server)
        _change(pipeline)
        pipeline.wait_streaming(capture)
        pipeline.wait_published(capture)
        assert pipeline.stop(capture) == 0, capture.log.read_text()
        assert pipeline.newest_rows() == pipeline.source_rows()
    finally:
        pipeline.close()
