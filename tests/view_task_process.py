"""One batch of a view's task in a process of its own: ``python -m tests.view_task_process``.

It is killed or stopped at a chosen point, or its files can't grow. The task comes pickled through standard input.
Points are counted: before and after each transaction of the state, before and after each write of rows to the sink,
and before and after each commit to the view's topic.
"""

import itertools
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobs.executor.result import from_arrow
from jobs.executor.task_input import Task
from jobs.executor.view_task import deliver_view

ENDED = 0
FAILED = 1
KILLED = -signal.SIGKILL


def _started(task: Task, at: int, *, signal_at: signal.Signals, file_bytes: int = 0) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.view_task_process", str(at), str(int(signal_at)), str(file_bytes)],
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(task))
    process.stdin.close()
    process.stdin = None
    return process


def run_batch(task: Task, *, kill_at: int = 0) -> int:
    """Run one batch; with ``kill_at`` it is killed at that point. Returns ENDED, or KILLED."""
    process = _started(task, kill_at, signal_at=signal.SIGKILL)
    _, told = process.communicate()
    assert process.returncode in (ENDED, KILLED), told.decode()
    return process.returncode


def failed_batch(task: Task, *, file_bytes: int = 0) -> str:
    """Run one batch that fails; with ``file_bytes`` no file can become larger. Returns what it failed with."""
    process = _started(task, 0, signal_at=signal.SIGKILL, file_bytes=file_bytes)
    _, told = process.communicate()
    assert process.returncode == FAILED, told.decode()
    return told.decode()


@contextmanager
def stopped_batch(task: Task, *, stop_at: int) -> Iterator[Callable[[], tuple[int, str]]]:
    """One batch that stands still at that point. What is yielded wakes it up, and returns how it has ended."""
    process = _started(task, stop_at, signal_at=signal.SIGSTOP)

    def wake_up() -> tuple[int, str]:
        process.send_signal(signal.SIGCONT)
        _, told = process.communicate()
        return process.returncode, told.decode()

    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        yield wake_up
    finally:
        process.kill()
        process.wait()


def main() -> int:
    from cdc.kafka.publisher import TransactionalPublisher
    from jobs.executor import view_task
    from views.state import file

    at, signal_at, file_bytes = map(int, sys.argv[1:])
    points = itertools.count(1)

    def point() -> None:
        if next(points) == at:
            os.kill(os.getpid(), signal_at)

    def watched(call: Callable[..., Any], *, if_any: bool = False) -> Callable[..., Any]:
        def between(*arguments: Any, **more: Any) -> Any:
            if if_any and not arguments[0].events:
                return call(*arguments, **more)
            point()
            result = call(*arguments, **more)
            point()
            return result

        return between

    task = pickle.loads(sys.stdin.buffer.read())
    if file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    file.FileState.update = watched(file.FileState.update)  # type: ignore[method-assign]
    file.FileState.clear = watched(file.FileState.clear)  # type: ignore[method-assign]
    TransactionalPublisher.commit_events = watched(TransactionalPublisher.commit_events)  # type: ignore[method-assign]
    file.FileState.compact = watched(file.FileState.compact)  # type: ignore[method-assign]
    sink = view_task.sink_for(task)
    sink.apply = watched(sink.apply, if_any=True)  # type: ignore[method-assign]
    import pyarrow as pa

    result = from_arrow(pa.Table.from_batches(list(deliver_view(task, []))))
    for failure in result.failures:
        print(failure.error(), getattr(failure.error(), "hint", ""), file=sys.stderr)
    return FAILED if result.failures else ENDED


if __name__ == "__main__":
    raise SystemExit(main())
