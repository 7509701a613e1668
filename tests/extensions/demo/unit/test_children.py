"""The demo's processes: watched, ended with all they started, found again after a killed run."""

import json
import time
from pathlib import Path

import psutil
import pytest

from cdc.model.errors import LockstepError
from extensions.demo.children import Children
from stack.process import ProcessId, is_alive

_MODULES = {
    "patient": "import time\nprint('up', flush=True)\ntime.sleep(600)\n",
    "stubborn": (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)\n"
    ),
    "brief": "print('all is lost')\nraise SystemExit(3)\n",
    "worker": "import time\ntime.sleep(1)\nprint('it is done')\n",
    "troubled": (
        "import time\n"
        "print('2026-01-02 03:04:05,678 ERROR sink failed sink=search error=no such index\\nlook at it', flush=True)\n"
        "print('2026-01-02 03:04:06,000 INFO batch applied', flush=True)\n"
        "time.sleep(600)\n"
    ),
    "parent": (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    ),
}


@pytest.fixture
def children(tmp_path, monkeypatch):
    modules = tmp_path / "modules"
    modules.mkdir()
    for name, source in _MODULES.items():
        (modules / f"{name}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(modules))
    started = Children(tmp_path, hurried=lambda: False)
    yield started
    started.stop(grace_s=0)


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pids(directory: Path) -> list[int]:
    return [entry["pid"] for entry in json.loads((directory / "processes.json").read_text())]


def test_a_child_with_a_work_to_finish_may_end(children):
    children.start("one", "worker", [], may_end=True)
    assert not children.has_ended("one")
    wait_for(lambda: children.has_ended("one"))
    children.check()
    assert "it is done" in str(children.failure("one"))


def test_a_child_ends_when_asked_to(children, tmp_path):
    children.start("one", "patient", [])
    (pid,) = pids(tmp_path)
    wait_for(lambda: children.last_line("one") == "up")
    children.check()

    assert children.stop(grace_s=30) == []
    assert not psutil.pid_exists(pid)
    assert not (tmp_path / "processes.json").exists()


def test_one_that_does_not_end_is_killed(children, tmp_path):
    children.start("one", "stubborn", [])
    (started,) = map(ProcessId.of, pids(tmp_path))
    wait_for(lambda: children.last_line("one") == "up")

    assert children.stop(grace_s=0.2) == ["one"]
    wait_for(lambda: not is_alive(started))


def test_processes_of_a_child_end_with_it(children):
    children.start("one", "parent", [])
    wait_for(lambda: children.last_line("one"))
    grandchild = int(children.last_line("one"))

    children.stop(grace_s=0.5)

    wait_for(lambda: not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE)


def test_a_child_that_ends_by_itself_is_shown_with_its_log(children):
    def run():
        children.start("one", "brief", [])
        wait_for(children.check)

    with pytest.raises(LockstepError, match="one ended by itself; the end of its log:\nall is lost"):
        run()


def test_an_error_in_the_log_of_a_child_that_lives_on_is_reported_once(children):
    children.start("one", "troubled", [])
    wait_for(lambda: "INFO" in children.last_line("one"))

    with pytest.raises(LockstepError) as caught:
        children.check()
    children.check()

    assert caught.value.message.endswith("sink failed sink=search error=no such index\nlook at it")


def test_the_next_run_ends_what_a_killed_one_left(children, tmp_path):
    children.start("one", "stubborn", [])
    (pid,) = pids(tmp_path)

    assert Children(tmp_path, hurried=lambda: False).end_leftovers() == 1
    assert not psutil.pid_exists(pid)
    assert Children(tmp_path, hurried=lambda: False).end_leftovers() == 0


def test_a_half_written_list_of_processes_is_passed_over(tmp_path):
    (tmp_path / "processes.json").write_text('[{"pid": 1')

    assert Children(tmp_path, hurried=lambda: False).end_leftovers() == 0
