"""lockstep.supervisor"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from lockstep.cli.main import exit_code
from lockstep.console import EXIT_CONFIGURATION, EXIT_TAKEN_OVER
from lockstep.supervisor import run_group


class _Until:
    """Stands where signals are waited for: tells to stop when something holds."""

    def __init__(self, condition: Callable[[], bool] = lambda: False) -> None:
        self._condition = condition

    def __call__(self) -> bool:
        return self._condition()

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds / 10)
        return self()

    def is_urgent(self) -> bool:
        return False


def _members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> Path:
    """Has the group start a script in place of Python; returns where the script writes what it was started for."""
    script, starts = tmp_path / "python", tmp_path / "starts"
    script.write_text("\n".join(["#!/bin/sh", f'echo "$3" >> {starts}', *lines]))
    script.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(script))
    return starts


def test_a_capture_whose_place_was_taken_stands_by_and_jobs_are_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.supervisor.WAIT_MAX_S", 0.0)
    stands_by = tmp_path / "stands_by"
    starts = _members(
        tmp_path,
        monkeypatch,
        f'test "$3 $4" = "capture --standby" && touch {stands_by} && exit 1',
        f"exit {EXIT_TAKEN_OVER}",
    )
    stopping = _Until(lambda: stands_by.exists() and starts.read_text().split().count("capture") == 4)
    assert run_group(tmp_path / "lockstep.toml", stopping) == 0
    assert starts.read_text().split().count("apply") == 1


def test_somebody_tells_of_alerts_where_the_web_page_can_not_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.supervisor.WAIT_MAX_S", 0.0)
    starts = _members(
        tmp_path,
        monkeypatch,
        f"test $3 = dashboard && exit {EXIT_CONFIGURATION}",
        "test $3 = alerts && exit 2",
        "exit 1",
    )
    stopping = _Until(lambda: starts.exists() and starts.read_text().split().count("alerts") == 2)
    assert run_group(tmp_path / "lockstep.toml", stopping, without_page=[("alerts", "watch")]) == 0
    assert starts.read_text().split().count("dashboard") == 1
    assert starts.read_text().split().count("apply") > 1


def test_a_process_of_an_extension_runs_beside_the_others_and_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.supervisor.WAIT_MAX_S", 0.0)
    starts = _members(tmp_path, monkeypatch, f"test $3 = extra && exit {EXIT_CONFIGURATION}", "exit 1")
    stopping = _Until(lambda: starts.exists() and starts.read_text().split().count("extra") == 2)
    assert run_group(tmp_path / "lockstep.toml", stopping, beside=[("extra", "watch")]) == 0
    assert starts.read_text().split().count("apply") > 0


def test_an_address_that_others_reach_without_a_token_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    starts = _members(tmp_path, monkeypatch, "exit 1")
    monkeypatch.delenv("LOCKSTEP_DASHBOARD_TOKEN", raising=False)
    file = tmp_path / "lockstep.toml"
    file.write_text(CONFIGURATION + '[dashboard]\nlisten = "0.0.0.0:8642"\n')
    assert exit_code(["run", "--config", str(file)]) == EXIT_CONFIGURATION
    assert "LOCKSTEP_DASHBOARD_TOKEN" in capfd.readouterr().err
    assert not starts.exists()


ROOT = Path(__file__).parents[3]
SIGNALS = [signal.SIGHUP, signal.SIGTERM, signal.SIGINT]

CONFIGURATION = """
[pipeline]
name = "shop"
[source]
dsn = "host=127.0.0.1 port=1"
tables = ["public.orders"]
[kafka]
bootstrap_servers = "127.0.0.1:1"
[sinks.cache]
type = "redis"
"""

# The command, with a script in place of the Python that its children are started with.
COMMAND = """\
import signal, sys
from lockstep.cli.main import exit_code
sys.executable = sys.argv[1]
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[3] == "nohup" else signal.SIG_DFL)
sys.exit(exit_code(["run", "--config", sys.argv[2], *sys.argv[4:]]))
"""

ENDS_ON_TERM = """trap 'kill $child; exit 0' TERM
sleep 300 & child=$!
wait"""
IGNORES_TERM = """trap '' TERM
while :; do sleep 300; done"""
MEMBER = """exec {python} -c "
import os, sys, time
from lockstep.console import SUPERVISOR_VARIABLE
from lockstep.supervisor import end_with_supervisor
end_with_supervisor(int(os.environ[SUPERVISOR_VARIABLE]))
print('asked', file=open('{asked}', 'a'))
time.sleep(300)
" """


class _Group:
    """`lockstep run` as a process, whose children are scripts."""

    def __init__(self, directory: Path, *lines: str, nohup: bool = False, option: str = "") -> None:
        (directory / "lockstep.toml").write_text(CONFIGURATION)
        self._pids, self._messages = directory / "pids", directory / "messages"
        script = directory / "python"
        script.write_text("\n".join(["#!/bin/sh", f"echo $$ >> {self._pids}", *lines, ""]))
        script.chmod(0o755)
        command = [sys.executable, "-c", COMMAND, str(script), str(directory / "lockstep.toml")]
        command += ["nohup" if nohup else "terminal", *filter(None, [option])]
        self._pids.unlink(missing_ok=True)
        with self._messages.open("w") as messages:
            self.process = subprocess.Popen(command, stderr=messages, cwd=ROOT, start_new_session=True)
        _wait(lambda: self._pids.exists() and len(self._pids.read_text().split()) == 3)
        time.sleep(0.3)  # until the scripts have set their traps
        children = [psutil.Process(int(pid)) for pid in self._pids.read_text().split()]
        self.family = [*children, *(below for child in children for below in child.children(recursive=True))]

    def messages(self) -> str:
        return self._messages.read_text()

    def living(self) -> list[psutil.Process]:
        return [process for process in self.family if _is_alive(process)]

    def close(self) -> None:
        for process in [self.process, *self.living()]:
            process.kill()
        self.process.wait()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., _Group]]:
    groups: list[_Group] = []

    def start(*lines: str, nohup: bool = False, option: str = "") -> _Group:
        groups.append(_Group(tmp_path, *lines, nohup=nohup, option=option))
        return groups[-1]

    yield start
    for group in groups:
        group.close()


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_leaves_no_child_behind(number: signal.Signals, started: Callable[..., _Group]) -> None:
    group = started(ENDS_ON_TERM)
    group.process.send_signal(number)
    assert group.process.wait(300) == 0, group.messages()
    assert group.living() == []
    assert "stopping capture, apply and dashboard, up to 30 s; Ctrl-C again kills them" in group.messages()


@pytest.mark.parametrize("first", SIGNALS, ids=lambda number: number.name)
def test_ctrl_c_after_a_signal_kills_the_children_and_what_they_started(
    first: signal.Signals, started: Callable[..., _Group]
) -> None:
    group = started(IGNORES_TERM)
    assert len(group.family) == 6
    group.process.send_signal(first)
    _wait(lambda: "Ctrl-C again" in group.messages())
    time.sleep(0.5)
    assert len(group.living()) == 6, "the first is a request"
    group.process.send_signal(signal.SIGINT)
    assert group.process.wait(300) == 130, group.messages()
    assert group.living() == []


def test_an_impatient_ctrl_c_leaves_no_child_behind(started: Callable[..., _Group]) -> None:
    group = started(IGNORES_TERM)
    while group.process.poll() is None:
        group.process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    # One more may come when Python itself is at its end.
    assert group.process.returncode in {130, -signal.SIGINT}, group.messages()
    assert group.living() == []


def test_a_terminal_that_closes_means_nothing_under_nohup(started: Callable[..., _Group]) -> None:
    group = started(ENDS_ON_TERM, nohup=True)
    group.process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert group.process.poll() is None
    assert len(group.living()) == 6
    group.process.send_signal(signal.SIGTERM)
    assert group.process.wait(300) == 0


def test_a_second_run_is_refused_with_the_pid_of_the_first_and_takes_over_on_purpose(
    tmp_path: Path, started: Callable[..., _Group], capfd: pytest.CaptureFixture[str]
) -> None:
    first = started(ENDS_ON_TERM)
    assert exit_code(["run", "--config", str(tmp_path / "lockstep.toml")]) == EXIT_CONFIGURATION
    refused = capfd.readouterr().err
    assert f"pid {first.process.pid}" in refused
    assert "lockstep run --take-over" in refused
    assert len(first.living()) == 6, "it goes on"
    second = started(ENDS_ON_TERM, option="--take-over")
    assert first.process.wait(300) == 0, "it has stopped in order"
    assert first.living() == []
    assert second.process.poll() is None
    second.process.kill()
    second.process.wait()
    started(ENDS_ON_TERM)  # one that was killed keeps nobody out


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems don't tell a child of its parent's end")
def test_kill_9_leaves_no_child_behind(tmp_path: Path, started: Callable[..., _Group]) -> None:
    asked = tmp_path / "asked"
    group = started(MEMBER.format(python=sys.executable, asked=asked))
    _wait(lambda: asked.exists() and asked.read_text().count("asked") == 3)
    group.process.kill()
    group.process.wait()
    _wait(lambda: group.living() == [])
