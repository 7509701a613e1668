"""One batch of a view's task in a process of its own, killed at a chosen point: ``python -m tests.view_task_process``.

The task comes pickled through standard input. Points are counted: before and after each transaction of the state, and
before and after each write to the sink and each commit to the view's topic.
"""

import itertools
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobs.executor.result import from_arrow
from jobs.executor.task_input import Task
from jobs.executor.view_task import deliver_view

ENDED = 0
KILLED = -signal.SIGKILL


def run_batch(task: Task, *, kill_at: int = 0) -> int:
    """Run one batch; with ``kill_at`` it is killed at that point. Returns ENDED, or KILLED."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.view_task_process", str(kill_at)],
        cwd=Path(__file__).parent.parent,
        input=pickle.dumps(task),
        capture_output=True,
        check=False,
    )
    assert done.returncode in (ENDED, KILLED), done.stderr.decode()
    return done.returncode


def main() -> int:
    from cdc.kafka.publisher import TransactionalPublisher
    from jobs.executor import view_task
    from views.state import file

    kill_at = int(sys.argv[1])
    points = itertools.count(1)

    def point() -> None:
        if next(points) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def between(*arguments: Any, **more: Any) -> Any:
            point()
            result = call(*arguments, **more)
            point()
            return result

        return between

    task = pickle.loads(sys.stdin.buffer.read())
    file.FileState.update = watched(file.FileState.update)  # type: ignore[method-assign]
    file.FileState.clear = watched(file.FileState.clear)  # type: ignore[method-assign]
    TransactionalPublisher.commit_events = watched(TransactionalPublisher.commit_events)  # type: ignore[method-assign]
    sink = view_task.sink_for(task)
    sink.apply = watched(sink.apply)  # type: ignore[method-assign]
    import pyarrow as pa

    result = from_arrow(pa.Table.from_batches(list(deliver_view(task, []))))
    for failure in result.failures:
        print(failure.message, file=sys.stderr)
    return 1 if result.failures else ENDED


if __name__ == "__main__":
    raise SystemExit(main())
