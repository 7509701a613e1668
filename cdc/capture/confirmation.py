"""Which position is confirmed to PostgreSQL, and when. Pure: clock and stream come in as arguments."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cdc.model.lsn import Lsn
from cdc.protocol.walsender import status_update


class StatusReceiver(Protocol):
    def send(self, frame: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Clock:
    """Time as arguments: ``monotonic_s`` for intervals, ``unix_us`` for what is sent."""

    monotonic_s: Callable[[], float]
    unix_us: Callable[[], int]


_CONFIRM_S = 0.25
"""The pause after a status update, before one that only reports WAL without changes of ours."""


class Confirmation:
    """Sends status updates. ``confirmed`` grows only by ``committed``; keepalives never raise it. ``complete`` is for
    monitoring: everything that commits before it is in Kafka. The progress record that says so to readers may follow a
    moment later."""

    def __init__(self, stream: StatusReceiver, clock: Clock, *, interval_s: float, confirmed: Lsn) -> None:
        self._stream = stream
        self._clock = clock
        self._interval_s = interval_s
        self._due = 0.0
        self._sent_s = -math.inf
        self._sent_complete = confirmed
        self.received = confirmed
        self.confirmed = confirmed
        self.complete = confirmed

    def committed(self, resume_lsn: Lsn) -> None:
        """Kafka has committed everything that commits before this position."""
        self.confirmed = max(self.confirmed, resume_lsn)
        self.send_status()

    def nothing_waits(self, sent_to: Lsn) -> None:
        """The server has sent all that commits before this position, and Kafka has it: report it soon."""
        self.complete = max(self.complete, sent_to)
        if self.complete > self._sent_complete and self._clock.monotonic_s() - self._sent_s >= _CONFIRM_S:
            self.send_status()

    def send_status(self) -> None:
        self._sent_s = self._clock.monotonic_s()
        self._due = self._sent_s + self._interval_s
        self.complete = self._sent_complete = max(self.complete, self.confirmed)
        self.received = max(self.received, self.complete)
        self._stream.send(
            status_update(
                received=self.received,
                confirmed=self.confirmed,
                applied=self.complete,
                unix_time_us=self._clock.unix_us(),
            )
        )

    def send_status_if_due(self) -> None:
        """Send one before the server would lose patience. Safe to call all the time."""
        if self._clock.monotonic_s() >= self._due:
            self.send_status()


class KeepAlive:
    """Called during anything slow, to run what must go on meanwhile: otherwise the server drops a stream that nobody
    reads. Does nothing before ``add``."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []

    def add(self, call: Callable[[], None]) -> None:
        """Make this call too from now on. It must be safe to make all the time."""
        self._calls.append(call)

    def __call__(self) -> None:
        for call in self._calls:
            call()
