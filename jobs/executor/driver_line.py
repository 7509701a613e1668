"""The line between a task and its driver, through a local socket: reports what is applied, and ends the batch."""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self

import orjson

from cdc.readiness import wait_ready
from jobs.executor.result import Failure, RejectedEvent
from jobs.offsets import Offsets
from sinks.contract import TopicPartition
from views.figures import ViewFigures

REPORT_S: Final = 0.2
"""How often to report progress to the driver, which stores it in the destination."""

ALIVE_S: Final = 5.0
"""How often to report that there is nothing new, so that the driver can tell when a destination hangs."""

WORK_S: Final = 0.5
"""How long a task may work on what it has read before it reports that it has read it."""

END: Final = b"\n"
GO_ON: Final = b"+"
GO_ON_S: Final = 1.0
"""What the driver sends: that the batch is over, and periodically that it isn't."""

STORED: Final = b"="
"""What the driver sends for each report, once all of it is stored in the destination."""

SILENT_S: Final = 3.0
"""A driver that is silent for so long hangs: its task ends before others take the job for dead and apply in its place
(``jobs.generations.lease.SILENCE_S``)."""


_HEARD_AT_ONCE: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class Until:
    """How a task's batch ends: where the log ends, or with ``goes_on`` by the driver's word."""

    goes_on: bool = False
    socket: str | None = None
    """The driver's; None if the task reports nothing before the end."""
    rows_max: int = 0
    """More rows at once end a batch that goes on: several tasks read a backlog faster."""


_COUNTS: Final = ("rows", "applied", "stale")


@dataclass(slots=True)
class TaskReport:
    """What a task has applied since its last report; ``next_offsets`` has only partitions that have moved.

    ``view`` are a view's figures, None for other sinks; ``shard`` is the task's shard of a divided view.
    ``has_got_on``: something was read or written since the last report, which shows that a long step advances. ``read``
    is how far it has read, if that is further and reported. ``failure`` is what stops a shard: its task ends, or tries
    again after ``retry_after_s`` if a server doesn't answer. ``rejected`` and ``resolved`` are a shard's, as in Result:
    the shard goes on once they are stored.
    """

    rows: int = 0
    applied: int = 0
    stale: int = 0
    commit_time_ms: int = 0
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    view: ViewFigures | None = None
    has_got_on: bool = False
    shard: int | None = None
    read: dict[TopicPartition, int] = field(default_factory=dict)
    failure: Failure | None = None
    rejected: list[RejectedEvent] = field(default_factory=list)
    resolved: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def is_at_work(self) -> bool:
        """Whether the task makes progress or says what stops it. A task that is cut off from Kafka does neither."""
        return bool(self.next_offsets) or self.is_building or self.has_got_on or self.failure is not None

    @property
    def is_building(self) -> bool:
        """Whether a view's state is being built: until then nothing can be applied."""
        return self.view is not None and self.view.building is not None

    def to_json(self) -> bytes:
        """As one line of JSON."""
        facts: dict[str, Any] = {
            **{name: getattr(self, name) for name in (*_COUNTS, "commit_time_ms", "has_got_on", "shard")},
            "next_offsets": _entries(self.next_offsets),
            "view": None if self.view is None else self.view.to_json(),
            "read": _entries(self.read),
            "failure": None if self.failure is None else self.failure.to_json(),
            "rejected": [event.to_json() for event in self.rejected],
            "resolved": [[topic, key.decode()] for topic, key in self.resolved],
        }
        return orjson.dumps(facts) + b"\n"

    def add_json(self, line: bytes) -> bool:
        """Add a later report. Returns whether it is one that the driver answers."""
        facts = orjson.loads(line)
        self.read |= _offsets(facts["read"])
        if len(facts) == 1:
            return False
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + facts[name])
        self.commit_time_ms = max(self.commit_time_ms, facts["commit_time_ms"])
        self.next_offsets |= _offsets(facts["next_offsets"])
        if facts["view"] is not None:
            self.view = ViewFigures.from_json(facts["view"])
        self.has_got_on = self.has_got_on or facts["has_got_on"]
        self.shard = facts["shard"]
        if facts["failure"] is not None:
            self.failure = Failure.from_json(facts["failure"])
        self.rejected += map(RejectedEvent.from_json, facts["rejected"])
        self.resolved += [(topic, key.encode()) for topic, key in facts["resolved"]]
        return True


def _entries(offsets: Offsets) -> list[list[Any]]:
    return [[*at, offset] for at, offset in offsets.items()]


def _offsets(entries: Iterable[Any]) -> Offsets:
    return {(topic, partition): offset for topic, partition, offset in entries}


class DriverLine:
    """A task's line to its driver. Without a driver at the other end, the batch is over. A thread of its own reports
    what was read if the work on it takes long: the task may hang in it."""

    def __init__(self, path: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._heard_at = monotonic()
        self._is_ended = False
        self._newly_stored = 0
        self._lock = threading.Lock()
        self._work: tuple[Offsets] | None = None
        self._ended = threading.Event()
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(path)
        except OSError:
            self.close()

    def __enter__(self) -> Self:
        threading.Thread(target=self._send_read, name="read", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def at_work_on(self, read: Offsets) -> Iterator[None]:
        """The task works on what was read below these offsets during this block. They don't change meanwhile."""
        self._work = (read,)
        try:
            yield
        finally:
            self._work = None

    def _send_read(self) -> None:
        seen = sent = None
        while not self._ended.wait(WORK_S):
            work = self._work
            if work is not None and work is seen and work is not sent:
                self._send(orjson.dumps({"read": _entries(work[0])}) + b"\n")
                sent = work
            seen = work

    def is_over(self) -> bool:
        """Whether the driver has ended the batch or itself, or hangs."""
        if self._socket is not None and wait_ready(self._socket, 0):
            self._listen(self._socket)
        return self._socket is None or self._is_ended or self._monotonic() - self._heard_at > SILENT_S

    def is_over_within(self, seconds: float) -> bool:
        """Wait for so long. Returns whether the batch is over by then."""
        end = self._monotonic() + seconds
        while not self.is_over():
            left = end - self._monotonic()
            if left <= 0 or self._socket is None:
                return False
            wait_ready(self._socket, left)
        return True

    def _listen(self, line: socket.socket) -> None:
        try:
            said = line.recv(_HEARD_AT_ONCE)
        except OSError:
            said = b""
        if not said:
            self.close()
        self._heard_at = self._monotonic()
        self._is_ended = self._is_ended or END in said
        self._newly_stored += said.count(STORED)

    def take_stored(self) -> int:
        """How many more reports are stored, as heard by ``is_over``."""
        taken, self._newly_stored = self._newly_stored, 0
        return taken

    def wait_stored(self, times: int, seconds: float) -> None:
        """Wait until so many reports are stored, for so long at most. Returns early if the driver is gone or hangs, but
        not if the batch is to end."""
        end = self._monotonic() + seconds
        while self._newly_stored < times and self._socket is not None:
            if not wait_ready(self._socket, max(0.0, min(end - self._monotonic(), SILENT_S))):
                return
            self._listen(self._socket)

    def send_report(self, sent: TaskReport) -> None:
        self._send(sent.to_json())

    def _send(self, line: bytes) -> None:
        with self._lock:
            if self._socket is not None:
                try:
                    self._socket.sendall(line)
                except OSError:
                    self.close()

    def close(self) -> None:
        self._ended.set()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
