"""Batches of tasks of views and of consistent sinks, in processes of their own that one server forks.

A process is killed or stopped at a chosen point, or its files can't grow. Points are counted: before and after each
transaction of the state, each write of rows to the sink and each commit to the view's topic. For a consistent sink:
before and after each write of a step, of its offsets and of its LSN.

The server has loaded everything that a task needs, which takes longer than a batch. It opens no client and starts no
thread, since a fork has neither.
"""

import io
import itertools
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from jobs.executor.task_input import Task

ENDED = 0
FAILED = 1
KILLED = -signal.SIGKILL
_BROKEN: Final = 70
"""It has raised what no batch should raise."""

_MODULES: Final = (
    "concurrent.futures.thread",
    "ctypes",
    "email.parser",
    "dateutil.relativedelta",
    "encodings.idna",
    "jobs.executor.follow",
    "psycopg",
    "pyarrow.compute",
    "redis",
    "sinks.redis.sink",
    "sinks.warehouse.sink",
    "sqlalchemy.dialects.postgresql.psycopg",
)
"""What a task loads, with everything that these load."""


@dataclass(frozen=True)
class _Batch:
    """What a process does. Without ``at`` no signal comes; without ``file_bytes`` files may grow. With ``is_large`` a
    few rows count as many."""

    task: Task
    at: int
    signal_at: signal.Signals
    file_bytes: int
    is_large: bool


@dataclass(frozen=True)
class _State:
    """How a process has ended, and what it has said. A stopped process has no ``code``."""

    code: int | None
    said: str


class ViewTasks:
    """The server. For one thread."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def close(self) -> None:
        """End it, with all stopped processes."""
        self._process.communicate()

    def run(self, task: Task, *, kill_at: int = 0, is_large: bool = False) -> int:
        """Run one batch; with ``kill_at`` it is killed at that point. Returns ENDED or KILLED. With ``is_large`` a
        state is built like a large one, and five rows are written at once."""
        state = self._waited(self._started(_Batch(task, kill_at, signal.SIGKILL, 0, is_large)))
        assert state.code in (ENDED, KILLED), state.said
        return state.code

    def failed(self, task: Task, *, file_bytes: int = 0) -> str:
        """Run one batch that fails; with ``file_bytes`` no file can grow larger. Returns its error."""
        state = self._waited(self._started(_Batch(task, 0, signal.SIGKILL, file_bytes, is_large=False)))
        assert state.code == FAILED, state.said
        return state.said

    @contextmanager
    def stopped(self, task: Task, *, stop_at: int) -> Iterator[Callable[[], tuple[int, str]]]:
        """One batch that stops at that point. Yields a function that wakes it up, and returns how it has ended."""
        pid = self._started(_Batch(task, stop_at, signal.SIGSTOP, 0, is_large=False))
        state = self._waited(pid)
        assert state.code is None, state.said

        def end(signal_now: signal.Signals) -> _State:
            nonlocal state
            if state.code is None:
                os.kill(pid, signal_now)
                state = self._waited(pid)
            return state

        def wake_up() -> tuple[int, str]:
            ended = end(signal.SIGCONT)
            assert ended.code is not None
            return ended.code, ended.said

        try:
            yield wake_up
        finally:
            end(signal.SIGKILL)

    def _started(self, batch: _Batch) -> int:
        pid = self._asked(batch)
        assert isinstance(pid, int)
        return pid

    def _waited(self, pid: int) -> _State:
        state = self._asked(pid)
        assert isinstance(state, _State)
        return state

    def _asked(self, request: _Batch | int) -> object:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(request, self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)


def serve() -> None:
    """Answer a batch with the process that runs it, and a process with its state once it ends or stops."""
    for module in _MODULES:
        import_module(module)
    said: dict[int, IO[bytes]] = {}
    while sys.stdin.buffer.peek(1):
        # All requests come from one stream: the module that a pickle names is loaded here and not in each process.
        request = pickle.load(sys.stdin.buffer)
        answer: object
        if isinstance(request, int):
            answer = _state(request, said)
        else:
            assert threading.active_count() == 1
            output = tempfile.TemporaryFile()  # noqa: SIM115  closed when its process has ended
            answer = os.fork()
            if not answer:
                _run(request, output)
            said[answer] = output
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    for pid in said:
        os.kill(pid, signal.SIGKILL)


def _state(pid: int, said: dict[int, IO[bytes]]) -> _State:
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return _State(None, "")
    with said.pop(pid) as output:
        output.seek(0)
        return _State(os.waitstatus_to_exitcode(status), output.read().decode())


def _run(batch: _Batch, output: IO[bytes]) -> NoReturn:
    """Runs in the new process, which ends here: with its own standard streams, and nothing of the server's."""
    code = _BROKEN
    try:
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        sys.stdin, sys.stdout, sys.stderr = io.StringIO(), sys.__stderr__, sys.__stderr__
        code = _batch_run(batch)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _batch_run(batch: _Batch) -> int:
    import pyarrow as pa

    from cdc.kafka.transactions import Transactions
    from jobs.executor import follow, transactions, view_build, view_delivery
    from jobs.executor.driver_line import Until
    from jobs.executor.open_sinks import opened_for, sink_for
    from jobs.executor.result import from_arrow
    from views.operators import building
    from views.state import file

    points = itertools.count(1)

    def point() -> None:
        if next(points) == batch.at:
            os.kill(os.getpid(), batch.signal_at)

    def watched(call: Callable[..., Any], *, if_any: bool = False) -> Callable[..., Any]:
        def between(*arguments: Any, **more: Any) -> Any:
            if if_any and not arguments[0].events:
                return call(*arguments, **more)
            point()
            result = call(*arguments, **more)
            point()
            return result

        return between

    if batch.is_large:
        view_build.AHEAD_FROM = 0  # type: ignore[misc]
        view_delivery.PORTION = building.PORTION = 5  # type: ignore[misc]
    if batch.file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (batch.file_bytes, batch.file_bytes))
    file.FileState.update = watched(file.FileState.update)  # type: ignore[method-assign]
    file.FileState.clear = watched(file.FileState.clear)  # type: ignore[method-assign]
    file.FileState.compact = watched(file.FileState.compact)  # type: ignore[method-assign]
    Transactions.commit_events = watched(Transactions.commit_events)  # type: ignore[method-assign]
    # For the next task, which has a process of its own here.
    view_delivery.freeze_opened = follow.freeze_opened = lambda: None  # type: ignore[attr-defined]
    if batch.task.steps is None:
        sink = sink_for(batch.task)
        sink.apply = watched(sink.apply, if_any=True)  # type: ignore[method-assign]
    else:
        sink = opened_for(batch.task).sink
        sink.apply = watched(sink.apply)  # type: ignore[method-assign]
        transactions.save_consistency = watched(transactions.save_consistency)  # type: ignore[attr-defined]
    result = from_arrow(pa.Table.from_batches(list(follow.deliver(batch.task, Until(), []))))
    for failure in result.failures:
        print(failure.error(), getattr(failure.error(), "hint", ""), file=sys.stderr)
    return FAILED if result.failures else ENDED
