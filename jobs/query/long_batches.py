"""The driver's side of long batches (``jobs.executor.long_batch``): hears how far a task is, and ends its batch."""

import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from cdc.readiness import wait_any_ready
from jobs.executor.long_batch import END, GO_ON, GO_ON_S, STORED, LongBatch, Told
from jobs.generations.batch_gate import BatchGate

_LOOK_S: Final = 0.1
"""How soon it notices that the query has ended, once nobody gets in at the gate any more."""

_RECEIVED_AT_ONCE: Final = 1 << 16

_STANDSTILL_S: Final = 15.0
"""For how long a task may read nothing of what is known to be published. Its client may get nothing from Kafka any
more, and to have nothing is what it expects: only a planned range lets it notice."""


class TaskSlots:
    """The slots that long batches have taken of this process's one Spark. One is left, so that others get on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0

    def take(self, tasks_at_once: int) -> bool:
        """Take one of so many, unless it is the last one that is left. Whether it was taken."""
        with self._lock:
            is_left = self._taken + 1 < tasks_at_once
            self._taken += is_left
            return is_left

    def give_back(self) -> None:
        with self._lock:
            self._taken -= 1


SLOTS: Final = TaskSlots()


class Standstill:
    """Since when a task reads nothing of what is known to be published, in seconds of the caller's clock."""

    def __init__(self, began_s: float) -> None:
        self._since_s = began_s

    def is_too_long(self, now_s: float, *, is_behind: bool) -> bool:
        """Whether it has lasted too long. Called again and again."""
        if not is_behind:
            self._since_s = now_s
        return now_s - self._since_s >= _STANDSTILL_S

    def has_moved(self, now_s: float) -> None:
        self._since_s = now_s


class LongBatches:
    """Listens to the task of one query's long batch, and ends the batch when somebody waits at the gate.

    A batch at a standstill is ended too: Spark then plans what is there, and its task notices when it can't get that.
    ``on_told`` is called with what a task has applied, in the thread of ``serve``. It returns whether all that was told
    before is stored. ``is_behind`` says whether more is known to be published.
    """

    def __init__(
        self,
        gate: BatchGate,
        on_told: Callable[[Told], bool],
        *,
        is_behind: Callable[[], bool],
        seconds: float,
        rows_max: int,
    ) -> None:
        self._gate = gate
        self._on_told = on_told
        self._is_behind = is_behind
        self._directory = Path(tempfile.mkdtemp(prefix="lockstep-"))  # nobody else may look into it
        path = str(self._directory / "s")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        gate.when_wanted(self._ring)
        self.batch = LongBatch(path, seconds, rows_max)

    def serve(self, ended: threading.Event) -> None:
        """Until ``ended``, which follows the gate's end; a batch that still goes on then ends."""
        try:
            while not ended.is_set():
                if self._listener.fileno() in self._wait(self._listener, GO_ON_S):
                    connection, _ = self._listener.accept()
                    with connection, suppress(ConnectionError):  # a task that was killed
                        self._attend(connection, ended)
        finally:
            self.close()

    def close(self) -> None:
        """Nobody listens any more: a task that still goes on ends. Harmless when it was closed before."""
        self._listener.close()
        self._woken.close()
        self._wake.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _ring(self) -> None:
        # One that is full wakes as well, and after the end there is nobody to be woken.
        with suppress(OSError):
            self._wake.send(b"!")

    def _wait(self, for_socket: socket.socket, seconds: float) -> list[int]:
        """The descriptors with something to read. Ends early when the gate is wanted. A query ends soon after that."""
        ready = wait_any_ready((for_socket, self._woken), _LOOK_S if self._gate.is_closed else seconds)
        if self._woken.fileno() in ready:
            self._woken.recv(_RECEIVED_AT_ONCE)
        return ready

    def _attend(self, connection: socket.socket, ended: threading.Event) -> None:
        """Listen to one task until it hangs up. Raises ConnectionError."""
        is_told_to_end, told_at = False, time.monotonic()
        standstill = Standstill(told_at)
        not_stored = 0
        rest = b""
        while not ended.is_set():
            now = time.monotonic()
            is_stuck = standstill.is_too_long(now, is_behind=self._is_behind())
            if (self._gate.is_wanted or is_stuck) and not is_told_to_end:
                connection.sendall(END)
                is_told_to_end = True
            if now - told_at >= GO_ON_S:
                connection.sendall(GO_ON)
                told_at = now
            if connection.fileno() not in self._wait(connection, told_at + GO_ON_S - now):
                continue
            received = connection.recv(_RECEIVED_AT_ONCE)
            if not received:
                return
            *lines, rest = (rest + received).split(b"\n")
            told = Told()
            not_stored += sum([told.add_json(line) for line in lines])
            if lines and self._on_told(told):
                connection.sendall(STORED * not_stored)
                not_stored = 0
            if told.is_at_work:
                standstill.has_moved(time.monotonic())
