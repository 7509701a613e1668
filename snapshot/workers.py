"""The processes that copy side by side, as the one that started them sees them.

They publish in transactions of their own; the state is published here, by capture's publisher. What makes that safe:

1. A worker fences whoever had its transactional id before, and only then says that it is ready.
2. Before the first row, the state is committed once more. That fails if another process has taken over.
3. Whoever takes over in the middle of a first copy fences all workers' ids before it does anything else.

So either 2 fails, and nothing was published; or the takeover came after it, and fenced these workers by 3.
"""

import contextlib
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final, Self, assert_never, cast

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from cdc.protocol.control_records import CaptureState
from snapshot.copy import CopyProgress, Interrupted, Publisher
from snapshot.ranges import Part
from snapshot.worker import Committed, Failed, Job, Ready, Report, work

_WAIT_S: Final = 1.0
"""How long nothing may come of the workers before others have their turn."""

_END_S: Final = 10.0
"""How long a worker may take to abort what it has open."""


class CopyWorkers:
    """Starts them; closing ends them. ``stopping`` is asked about once a second."""

    def __init__(self, job: Job, count: int, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping
        self._processes: dict[Connection, BaseProcess] = {}
        self._busy: set[Connection] = set()
        # A forked process would have this one's connections, and none of the threads that serve them.
        context = multiprocessing.get_context("spawn")
        try:
            for number in range(count):
                ours, theirs = context.Pipe()
                process = context.Process(target=work, args=(number, job, theirs), name=f"lockstep copy {number}")
                process.daemon = True
                process.start()
                theirs.close()
                self._processes[ours] = process
        except BaseException:
            self.close()
            raise

    def wait_ready(self) -> None:
        """Until all have the snapshot and the locks. Raises Interrupted, and what a worker has failed with."""
        waiting = set(self._processes)
        while waiting:
            for pipe, report in self._reports():
                assert isinstance(report, Ready)
                waiting.discard(pipe)

    def copy(self, parts: Sequence[Part]) -> Iterator[Committed]:
        """What they have committed, one after the other. Raises as ``wait_ready``."""
        left = list(reversed(parts))
        unfinished = len(left)
        for pipe in self._processes:
            self._give(pipe, left)
        while unfinished:
            for pipe, report in self._reports():
                assert isinstance(report, Committed)
                if report.is_last:
                    unfinished -= 1
                    self._give(pipe, left)
                yield report

    def _give(self, pipe: Connection, left: list[Part]) -> None:
        if left:
            try:
                pipe.send(left.pop())
            except OSError:
                raise self._lost(pipe) from None

    def _reports(self) -> Iterator[tuple[Connection, Report]]:
        """Those that have come by now, after a while at most."""
        if self._stopping():
            raise Interrupted
        for each in wait(list(self._processes), _WAIT_S):
            pipe = cast(Connection, each)
            try:
                report: Report = pipe.recv()
            except (EOFError, OSError):
                raise self._lost(pipe) from None
            match report:
                case Failed(may_pass=True):
                    raise Unavailable(report.message)
                case Failed():
                    raise LockstepError(report.message, hint=report.hint)
                case Ready() | Committed():
                    yield pipe, report
                case _:
                    assert_never(report)

    def _lost(self, pipe: Connection) -> Unavailable:
        return Unavailable(f"a process that copied has ended: {self._processes[pipe].name}")

    def close(self) -> None:
        """End all, which aborts what they have open."""
        for pipe in self._processes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for pipe, process in self._processes.items():
            process.join(_END_S)
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()
        self._processes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def copy_side_by_side(
    workers: CopyWorkers,
    parts: Sequence[Part],
    *,
    publisher: Publisher,
    estimated: Mapping[TableName, int],
    state: CaptureState,
    report: Callable[[CopyProgress], None],
) -> CaptureState:
    """Copy all parts; returns the committed state, with the tables in its ledger whose parts are all committed.

    Some are missing when it was told to stop. Raises what a worker has failed with.
    """
    left, rows, size = Counter(part.table for part in parts), Counter[TableName](), Counter[TableName]()
    with contextlib.suppress(Interrupted):
        workers.wait_ready()
        publisher.commit(state)  # nobody has taken over by now
        for committed in workers.copy(parts):
            name = committed.part.table
            rows[name] += committed.rows
            size[name] += committed.size
            left[name] -= committed.is_last
            if not left[name]:
                state = replace(state, copied={**state.copied, name: rows[name]})
                publisher.commit(state)
            total = rows[name] if not left[name] else max(rows[name], estimated[name])
            report(CopyProgress(name, rows[name], total, size[name], finished=not left[name]))
    return state
