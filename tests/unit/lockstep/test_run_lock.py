"""Who takes over from a run asks whoever holds the lock, also where that is another one by then."""

import signal
import subprocess
import sys
from pathlib import Path

from lockstep.run_lock import only_run

_HOLDER = """
import fcntl, sys, time
with open(sys.argv[1], "ab") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    time.sleep(600)
"""


def _hold(file: Path) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-c", _HOLDER, str(file)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_each_run_that_holds_the_lock_is_told_to_stop(tmp_path: Path) -> None:
    file = tmp_path / "run.lock"
    file.touch()
    holders = [_hold(file)]
    said: list[str] = []

    def wait(_: float) -> bool:
        if len(holders) == 1:
            holders[0].wait()
            holders.append(_hold(file))  # quicker than we are
        return False

    with only_run(file, take_over=True, say=said.append, wait=wait) as has_it:
        assert has_it
    assert [holder.wait() for holder in holders] == [-signal.SIGTERM] * 2
    assert [f"(pid {holder.pid})" in text for holder, text in zip(holders, said, strict=True)] == [True, True]
    for holder in holders:
        assert holder.stdout is not None
        holder.stdout.close()
