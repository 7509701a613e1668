"""Which stage ``lag`` names, and why, while a process or a server hangs: one pipeline, one trouble after the other."""

import json
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from lockstep.cli.main import exit_code
from monitor.collector import LagCollector
from monitor.lag import LagReport, Stage, StageState
from tests.databases import until
from tests.pipeline import Pipeline, Process, quick
from tests.services import Services

pytestmark = [pytest.mark.live, pytest.mark.crash, pytest.mark.alone, pytest.mark.soak]

_QUICK = {"spark": "retry_s = 1.0", "search": "timeout_s = 4.0"}
_PATIENCE_S = 300.0
_LOOK_S = 0.5
_QUIET_LOOKS = 20
"""At half a second each: longer than it takes to report that a stage hangs."""


class Running:
    """A pipeline with three sinks, whose processes and servers may be frozen, and an observer of it."""

    def __init__(self, stack: Services, directory: Path) -> None:
        self.stack = stack
        self.pipeline = Pipeline(
            quick(stack.endpoints()), directory, f"stall_{uuid.uuid4().hex[:8]}", sinks=True, more=_QUICK
        )
        self.capture = self.pipeline.start_capture()
        self.job = self.pipeline.start_apply()
        self.pause = threading.Event()
        self._rows = 0
        self.lag = LagCollector(self.pipeline.config.as_pipeline(), self.pipeline.config.sinks)

    def write(self, rows: int = 1) -> None:
        first, self._rows = self._rows, self._rows + rows
        with self.pipeline.sql() as connection:
            connection.execute(
                f"insert into {self.pipeline.name}.account (id) select * from generate_series(%s::bigint, %s::bigint)",
                (first + 1, self._rows),
            )

    def look(self) -> LagReport:
        self.pause.wait(_LOOK_S)  # looks without a pause would slow the servers that they ask about
        return self.lag.collect()

    def until_worst(self, is_it: Callable[[Stage], bool]) -> Stage:
        """The stage that most needs somebody, once it is this one."""
        seen: list[Stage | None] = []

        def found() -> Stage | None:
            seen.append(self.look().worst)
            return seen[-1] if seen[-1] is not None and is_it(seen[-1]) else None

        try:
            stage: Stage = until(found, seconds=_PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {[stage and stage.sentence for stage in seen]}") from None
        return stage

    def until_well(self) -> LagReport:
        """Wait until everybody has everything again."""

        def found() -> LagReport | None:
            lag = self.look()
            is_well = all(stage.state is StageState.CURRENT for stage in lag.stages)
            return lag if is_well and not lag.unanswered else None

        lag: LagReport = until(found, seconds=_PATIENCE_S)
        return lag

    def close(self) -> None:
        self.lag.close()
        self.pipeline.close()


@pytest.fixture(scope="module")
def running(stack: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with closing(Running(stack, tmp_path_factory.mktemp("stalls"))) as made:
        made.pipeline.wait_streaming(made.capture)
        made.write()
        made.pipeline.wait_applied(made.job)
        made.until_well()
        yield made


@contextmanager
def held(process: Process) -> Iterator[None]:
    """Freezes a process's whole group."""
    os.killpg(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGCONT)


@contextmanager
def frozen(stack: Services, server: str) -> Iterator[None]:
    stack.freeze(server)
    try:
        yield
    finally:
        stack.thaw(server)


def test_on_an_idle_pipeline_nothing_hangs_and_nobody_is_behind(running: Running) -> None:
    for _ in range(_QUIET_LOOKS):
        lag = running.look()
        assert lag.worst is None, lag.worst
        assert all((stage.seconds_behind or 0) < 5 for stage in lag.stages)
    running.until_well()


def test_a_capture_that_hangs_and_lost_its_reader_is_named_by_one_lag(
    running: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """PostgreSQL gives up the reader of the slot after a minute, and the session that capture asks over stays."""
    monkeypatch.setattr("monitor.stalls.CAPTURE_SILENT_S", 3.0)
    slot = running.pipeline.config.slot

    def lag() -> str | None:
        code = exit_code(["lag", "--config", str(running.pipeline.path), "--json"])
        received = json.loads(capsys.readouterr().out)["stages"][1]
        return str(received["reason"]) if (code, received["state"]) == (1, "silent") else None

    with held(running.capture):
        with running.pipeline.sql() as connection:
            ended = "select count(pg_terminate_backend(active_pid)) from pg_replication_slots where slot_name = %s"
            assert connection.execute(ended, (slot,)).fetchone() == (1,)
        reason = until(lag, seconds=_PATIENCE_S)
    assert f"doesn't read slot {slot}, and has asked the source nothing for" in reason
    running.until_well()


def test_a_job_that_hangs_is_named_also_on_an_idle_source(running: Running) -> None:
    os.kill(running.job.pid, signal.SIGSTOP)  # only the driver
    try:
        stage = running.until_worst(
            # On a busy machine it is waited for longer than a sign of life counts.
            lambda stage: any(words in (stage.reason or "") for words in ("no sign of life", "ended without a word"))
        )
    finally:
        os.kill(running.job.pid, signal.SIGCONT)
    if stage.state is StageState.STALLED:
        assert stage.name.startswith("read: "), "it has applied all that it has read"
    else:
        assert stage.state is StageState.SILENT
    running.until_well()


@pytest.mark.parametrize(("server", "sink"), [("valkey", "cache"), ("opensearch", "search")])
def test_a_store_that_hangs_is_named_with_its_address(running: Running, server: str, sink: str) -> None:
    with frozen(running.stack, server):
        stage = running.until_worst(lambda stage: stage.name == f"applied: {running.pipeline.name}_{sink}")
        assert stage.state in (StageState.UNKNOWN, StageState.STALLED)
        assert "127.0.0.1" in (stage.reason or "")
    running.until_well()
