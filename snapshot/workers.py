"""The worker processes that copy side by side, seen from the process that started them.

They publish in transactions of their own; capture's publisher publishes the state here. This is safe because:

1. A worker fences the previous owner of its transactional id, and only then reports that it is ready.
2. Before the first row, the state is committed once more. That fails if another process has taken over.
3. A process that takes over in the middle of a first copy fences all workers' ids before anything else.

So either 2 fails, and nothing was published; or the takeover came after it, and fenced these workers by 3.

A worker stays with its table while that has parts left. So the lock of a table that others wait for isn't released
before the table is complete, and a worker that can't get the lock leaves the table to those that have it.
"""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final, assert_never, cast

from cdc.model.closing import Closing
from cdc.model.errors import LockstepError, TransactionTimedOut, Unavailable
from cdc.model.table import TableName
from cdc.protocol.control_records import CaptureState
from snapshot.copy import CopyProgress, Interrupted, Publisher
from snapshot.ledger import CopyLedger
from snapshot.ranges import Part
from snapshot.worker import Committed, Failed, Job, Ready, Refused, ReleaseLocks, Report, work

_WAIT_S: Final = 1.0
"""How long the workers may be silent before others get their turn."""

_END_S: Final = 10.0
"""How long a worker may take to abort what it has open."""


class CopyWorkers(Closing):
    """Starts the workers; closing ends them. ``stopping`` is called once a second. ``say`` gets their sentences."""

    def __init__(self, job: Job, count: int, stopping: Callable[[], bool], say: Callable[[str], None]) -> None:
        self._stopping = stopping
        self._say = say
        self._processes: dict[Connection, BaseProcess] = {}
        self._held: dict[Connection, TableName] = {}
        self._refused: dict[Connection, set[TableName]] = {}
        # A forked process would have this one's connections, but none of the threads that serve them.
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
        """Wait until all have the snapshot. Raises Interrupted, and a worker's error."""
        waiting = set(self._processes)
        while waiting:
            for pipe, report in self._reports():
                assert isinstance(report, Ready)
                waiting.discard(pipe)

    def copy(self, parts: Sequence[Part]) -> Iterator[Committed]:
        """What they have committed, one after the other. Raises as ``wait_ready``, and Unavailable for a table that is
        locked and that none of them holds."""
        left: dict[TableName, list[Part]] = {}
        for part in parts:
            left.setdefault(part.table, []).append(part)
        unfinished = len(parts)
        for pipe in self._processes:
            self._give(pipe, left)
        while unfinished:
            for pipe, report in self._reports():
                assert isinstance(report, Committed | Refused)
                if isinstance(report, Refused):
                    self._take_back(pipe, report.part, left)
                elif report.is_last:
                    unfinished -= 1
                    self._give(pipe, left)
                if isinstance(report, Committed):
                    yield report

    def _take_back(self, pipe: Connection, part: Part, left: dict[TableName, list[Part]]) -> None:
        name = part.table
        del self._held[pipe]
        if name not in self._held.values():
            raise Unavailable(f"{name} is locked, by an ALTER TABLE that isn't committed for instance")
        left.setdefault(name, []).insert(0, part)
        self._refused.setdefault(pipe, set()).add(name)
        self._give(pipe, left)

    def _give(self, pipe: Connection, left: dict[TableName, list[Part]]) -> None:
        """Give a part of the table that the worker holds; else one of the first table that it may get; else nothing."""
        held, refused = self._held.pop(pipe, None), self._refused.get(pipe, ())
        name = held if held in left else next((name for name in left if name not in refused), None)
        order: Part | ReleaseLocks = ReleaseLocks()
        if name is not None:
            order = left[name].pop(0)
            self._held[pipe] = name
            if not left[name]:
                del left[name]
        try:
            pipe.send(order)
        except OSError:
            raise self._lost(pipe) from None

    def _reports(self) -> Iterator[tuple[Connection, Report]]:
        """The reports that have come, after a short wait at most."""
        if self._stopping():
            raise Interrupted
        for each in wait(list(self._processes), _WAIT_S):
            pipe = cast(Connection, each)
            try:
                report: Report = pipe.recv()
            except (EOFError, OSError):
                raise self._lost(pipe) from None
            match report:
                case Failed(timed_out=True):
                    raise TransactionTimedOut(report.message)
                case Failed(may_pass=True):
                    raise Unavailable(report.message)
                case Failed():
                    raise LockstepError(report.message, hint=report.hint)
                case str():
                    self._say(report)
                case Ready() | Committed() | Refused():
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


def copy_side_by_side(
    workers: CopyWorkers,
    parts: Sequence[Part],
    *,
    ledger: CopyLedger,
    publisher: Publisher,
    estimated: Mapping[TableName, int],
    state: CaptureState,
    report: Callable[[CopyProgress], None],
) -> CaptureState:
    """Copy all parts; returns the committed state, with the complete tables. Some are missing if it was asked to stop.
    Raises a worker's error."""
    with contextlib.suppress(Interrupted):
        workers.wait_ready()
        publisher.commit(state)  # fails if another process has taken over
        for committed in workers.copy(parts):
            name = committed.part.table
            ledger.add(committed.part, rows=committed.rows, size=committed.size, is_last=committed.is_last)
            if committed.is_last and ledger.is_complete(name):
                state = replace(state, copied={**state.copied, name: ledger.rows[name]})
                publisher.commit(state)
            report(ledger.progress(name, estimated[name], rows=committed.rows, size=committed.size))
    return state
