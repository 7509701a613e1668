"""The driver's end of the lines to its tasks (``jobs.executor.driver_line``): takes reports, and ends long batches."""

import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from cdc.pace import Pace
from cdc.readiness import wait_any_ready, wait_ready
from jobs.executor.driver_line import END, GO_ON, GO_ON_S, REPORT_S, STORED, TaskReport
from jobs.generations.batch_gate import BatchGate

_LOOK_S: Final = 0.1
"""How soon it notices that the query has ended, once the gate is closed."""

_RECEIVED_AT_ONCE: Final = 1 << 16

_TIMES_A_STORE: Final = 20.0
SLOWEST_S: Final = 0.5
"""Storing progress takes at most a twentieth of the time: reports wait in the line meanwhile. The first report after a
pause is stored at once."""

STANDSTILL_S: Final = 15.0
"""How long a task may read nothing although more is known to be published. Its client may be cut off from Kafka; the
task can't tell that from an idle topic unless it has a planned range to read."""


class TaskSlots:
    """The slots of this process's one Spark that long batches hold. One slot always stays free for other batches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0

    def take(self, tasks_at_once: int, slots: int = 1) -> bool:
        """Take ``slots`` of ``tasks_at_once``, unless none would stay free. Returns whether they were taken."""
        with self._lock:
            are_left = self._taken + slots < tasks_at_once
            self._taken += slots * are_left
            return are_left

    def give_back(self, slots: int = 1) -> None:
        with self._lock:
            self._taken -= slots


SLOTS: Final = TaskSlots()


class Standstill:
    """Since when a task reads nothing although more is known to be published, in seconds of the caller's clock."""

    def __init__(self, began_s: float) -> None:
        self._since_s = began_s

    def is_too_long(self, now_s: float, *, is_behind: bool) -> bool:
        """Whether it has lasted too long. Called again and again."""
        if not is_behind:
            self._since_s = now_s
        return now_s - self._since_s >= STANDSTILL_S

    def has_moved(self, now_s: float) -> None:
        self._since_s = now_s


class LongBatches:
    """Listens to the tasks of one query's long batch, and ends the batch when somebody waits at the gate.

    It also ends a batch at a standstill: the next one is planned, so its task notices if it can't get what is there.

    ``on_report`` takes a task's report, in the thread of ``serve``, and returns whether all reports so far are stored.
    ``is_behind`` says whether more is known to be published than a task has; its argument is the task's shard of a
    view, None if the view isn't divided.
    """

    def __init__(
        self,
        gate: BatchGate,
        on_report: Callable[[TaskReport], bool],
        *,
        is_behind: Callable[[int | None], bool],
        is_shared: bool = False,
    ) -> None:
        """``is_shared``: a batch has several tasks. Once one of them has ended, the others must end as well."""
        self._gate = gate
        self._is_shared = is_shared
        self._batch_number = 0
        self._ended_number = -1
        self._on_report = on_report
        self._is_behind = is_behind
        self._directory = Path(tempfile.mkdtemp(prefix="lockstep-"))  # private to this user
        self.path = str(self._directory / "s")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        gate.when_wanted(self._ring)

    def serve(self, ended: threading.Event) -> None:
        """Serve the lines until ``ended``, which follows the gate's end. A batch that still goes on then ends."""
        lines: list[_TaskLine] = []
        try:
            while not ended.is_set():
                now = time.monotonic()
                seconds = min((line.reported_at + GO_ON_S - now for line in lines), default=GO_ON_S)
                seconds = min([seconds, *(line.hears_at - now for line in lines if line.hears_at > now)])
                heard = [line.connection for line in lines if line.hears_at <= now]
                ready = self._wait([self._listener, *heard], seconds)
                for line in list(lines):
                    has_said = line.connection.fileno() in ready
                    if not self._is_attended(line, lines, has_said=has_said):
                        line.connection.close()
                        lines.remove(line)
                        self._ended_number = max(self._ended_number, line.batch_number)
                if self._listener.fileno() in ready:
                    lines.append(_TaskLine(self._listener.accept()[0], time.monotonic(), self._batch_number))
        finally:
            for line in lines:
                line.connection.close()
            self.close()

    def begin(self) -> None:
        """A batch begins: connections from now on are its tasks."""
        self._batch_number += 1

    def close(self) -> None:
        """Stop listening: a task that still goes on ends. Repeating it is harmless."""
        self._listener.close()
        self._woken.close()
        self._wake.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _ring(self) -> None:
        # A full buffer wakes as well, and after the end nobody is left to wake.
        with suppress(OSError):
            self._wake.send(b"!")

    def _wait(self, sockets: Sequence[socket.socket], seconds: float) -> list[int]:
        """The descriptors with something to read. Returns early if the gate is wanted: the query ends soon then."""
        ready = wait_any_ready((*sockets, self._woken), _LOOK_S if self._gate.is_closed else max(0.0, seconds))
        if self._woken.fileno() in ready:
            self._woken.recv(_RECEIVED_AT_ONCE)
        return ready

    def _is_attended(self, line: "_TaskLine", lines: "Sequence[_TaskLine]", *, has_said: bool) -> bool:
        """Take a task's reports and send what is due. False once the task has hung up."""
        try:
            if has_said and not self._hear(line):
                return False
            self._say(line, lines)
        except ConnectionError:  # a task that was killed
            return False
        return True

    def _hear(self, line: "_TaskLine") -> bool:
        received = line.connection.recv(_RECEIVED_AT_ONCE)
        is_there = bool(received)
        while is_there and wait_ready(line.connection, 0):
            more = line.connection.recv(_RECEIVED_AT_ONCE)
            received, is_there = received + more, bool(more)
        *lines, line.rest = (line.rest + received).split(b"\n")
        report = TaskReport()
        answered = sum([report.add_json(text) for text in lines])
        if answered:
            line.shard, line.is_building = report.shard, report.is_building
        if lines:
            line.not_stored += answered
            began = time.monotonic()
            is_stored = self._on_report(report)
            if report.next_offsets and report.shard is None:  # a shard may wait for the answer
                line.pace.took(time.monotonic() - began)
                line.hears_at = began + line.pace.interval_s
            line.lacks_rejections |= bool(report.rejected or report.resolved) and not is_stored
            # Other tasks' reports may all be stored while this one's isn't: it comes again with the task's result.
            if is_stored and is_there and not line.lacks_rejections:
                line.connection.sendall(STORED * line.not_stored)
                line.not_stored = 0
        if report.is_at_work:
            line.standstill.has_moved(time.monotonic())
        return is_there

    def _say(self, line: "_TaskLine", lines: "Sequence[_TaskLine]") -> None:
        now = time.monotonic()
        # Spark can't restart one task of a batch, so all of them end. That would restart a build too: until the build
        # has ended, no other task of its batch can be restarted.
        others = [other for other in lines if other is not line and other.batch_number == line.batch_number]
        would_begin = not any(other.is_building for other in others)
        is_stuck = line.standstill.is_too_long(now, is_behind=self._is_behind(line.shard)) and would_begin
        is_left_alone = self._is_shared and line.batch_number == self._ended_number and not line.is_building
        if (self._gate.is_wanted or is_stuck or is_left_alone) and not line.is_asked_to_end:
            line.connection.sendall(END)
            line.is_asked_to_end = True
        if now - line.reported_at >= GO_ON_S:
            line.connection.sendall(GO_ON)
            line.reported_at = now


class _TaskLine:
    """The driver's end of the line to the task of this ``shard`` of a view; None if the view isn't divided."""

    def __init__(self, connection: socket.socket, now_s: float, batch_number: int) -> None:
        self.connection = connection
        self.batch_number = batch_number
        self.reported_at = self.hears_at = now_s
        self.pace = Pace(times_as_long=_TIMES_A_STORE, fastest_s=REPORT_S, slowest_s=SLOWEST_S)
        self.standstill = Standstill(now_s)
        self.shard: int | None = None
        self.is_building = False
        self.is_asked_to_end = False
        self.not_stored = 0
        self.lacks_rejections = False
        self.rest = b""
