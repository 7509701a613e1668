"""``lockstep run``: one supervised group."""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.config import load
from monitor.alerts.store import AlertStore
from tests.pipeline import Pipeline, traffic, wait_until

pytestmark = [pytest.mark.live, pytest.mark.busy]


_numbers = itertools.count(1)


@pytest.fixture
def pipeline(stack: Any, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(stack.endpoints(), tmp_path, f"run{os.getpid()}_{next(_numbers)}", sinks=True)
    with made.path.open("a") as file:
        file.write('[dashboard]\nlisten = "127.0.0.1:0"\n')
    yield made
    made.close()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_member_that_is_killed_is_started_again_and_a_stop_ends_all(pipeline: Pipeline) -> None:
    group = pipeline.start("lockstep", "run", "--config", str(pipeline.path))
    log = group.log  # type: ignore[attr-defined]
    with traffic(pipeline, pause_s=0.05):
        wait_until(lambda: "streaming from" in log.read_text(), what="capture streams")
        capture = next(
            child for child in _children(group.pid) if b"capture" in Path(f"/proc/{child}/cmdline").read_bytes()
        )
        os.kill(capture, signal.SIGKILL)
        wait_until(lambda: log.read_text().count("streaming from") == 2, what="capture streams again")
    pipeline.wait_applied(group)
    pipeline.assert_sinks_equal()
    members = _children(group.pid)
    assert len(members) == 3, "capture, jobs and the web page"
    assert pipeline.stop(group) == 0, log.read_text()
    assert [pid for pid in members if Path(f"/proc/{pid}").exists()] == []
    assert re.search(r"process ended process=capture exit_code=-9", log.read_text())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems don't tell a child of its parent's end")
def test_kill_9_of_the_group_ends_its_members(pipeline: Pipeline) -> None:
    group = pipeline.start("lockstep", "run", "--config", str(pipeline.path))
    log = group.log  # type: ignore[attr-defined]
    wait_until(lambda: "streaming from" in log.read_text(), what="capture streams")
    members = _children(group.pid)
    assert len(members) == 3, "capture, jobs and the web page"
    os.kill(group.pid, signal.SIGKILL)
    group.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in members), what="all of them end")


@pytest.mark.soak
def test_a_capture_of_the_group_that_was_replaced_comes_back_when_the_other_one_ends(pipeline: Pipeline) -> None:
    group = pipeline.start("lockstep", "run", "--config", str(pipeline.path))
    log = group.log  # type: ignore[attr-defined]
    wait_until(lambda: "streaming from" in log.read_text(), what="capture streams")
    other = pipeline.start("lockstep", "capture", "--config", str(pipeline.path))
    wait_until(lambda: "standing by" in log.read_text(), what="the group's capture stands by")
    assert pipeline.stop(other) == 0
    with traffic(pipeline, pause_s=0.05):
        wait_until(lambda: log.read_text().count("streaming from") == 2, what="the group's capture streams again")
    pipeline.wait_applied(group)
    pipeline.assert_sinks_equal()
    assert pipeline.stop(group) == 0, log.read_text()


@pytest.mark.soak
def test_whoever_looks_sees_that_a_driver_starts(pipeline: Pipeline, tmp_path: Path) -> None:
    """However long its Java takes: this one never does anything."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexec sleep 300\n")
    java.chmod(0o755)
    text = pipeline.path.read_text()
    pipeline.path.write_text(text.replace("[spark]\n", f'[spark]\njava_home = "{java.parent.parent}"\n'))
    driver = pipeline.start("lockstep", "apply", "--config", str(pipeline.path))

    def applied() -> list[tuple[str, str | None]]:
        command = [sys.executable, "-m", "lockstep", "lag", "--json", "--config", str(pipeline.path)]
        stages = json.loads(subprocess.run(command, check=False, capture_output=True).stdout)["stages"]
        return [(stage["state"], stage["hint"]) for stage in stages if "job" in stage]

    wait_until(lambda: applied() == 3 * [("starting", None)], what="every sink shows that its driver starts")
    driver.kill()


@pytest.mark.soak
def test_somebody_tells_of_alerts_where_the_port_of_the_web_page_is_taken(pipeline: Pipeline) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = pipeline.path.read_text()
        pipeline.path.write_text(text.replace("127.0.0.1:0", f"127.0.0.1:{taken.getsockname()[1]}"))
        group = pipeline.start("lockstep", "run", "--config", str(pipeline.path))
        log = group.log  # type: ignore[attr-defined]
        directory = load(pipeline.path).alerts.directory
        wait_until(lambda: "there is no web page" in log.read_text(), what="it is said")
        wait_until(lambda: not _may_tell(directory), what="another process tells")
        assert pipeline.stop(group) == 0, log.read_text()


def _may_tell(directory: Path) -> bool:
    store = AlertStore(directory)
    with contextlib.closing(store):
        return store.take_lock()
