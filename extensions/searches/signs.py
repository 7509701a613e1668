"""The signs that a process gives about a sink's searches: that it reports them, or why it can't. A sign of life doesn't
prove that anything is reported: a process may begin again and again, and fail each time. So the reason stays stored
until any process has completed a step.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from cdc.model.errors import Fenced
from cdc.model.timeouts import SEARCHES_SILENT_MAX_S, SEARCHES_SILENT_S
from extensions.searches.stored import Claim, SearchStatus

_STATUS_EVERY_S: Final = 10.0


class Silence:
    """Whether the process that took over is silent, as seen by one that waits for that. A sign is any change of the
    stored status. Its time is taken here, since clocks of several machines differ.
    """

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._patience_s = SEARCHES_SILENT_S
        self._since = monotonic()
        self._seen: int | None = None

    def begin(self) -> None:
        """Another process has just taken over."""
        self._since, self._seen = self._monotonic(), None

    def is_long(self, status: SearchStatus) -> bool:
        """Whether to take over again, given the status that is stored now."""
        now = self._monotonic()
        if status.at_ms != self._seen:
            self._since, self._seen = now, status.at_ms
        return now - self._since >= self._patience_s

    def lengthen(self) -> None:
        """This process took over again. Starting takes time: with growing patience, one of two rivals gets through."""
        self._patience_s = min(2 * self._patience_s, SEARCHES_SILENT_MAX_S)

    def end(self) -> None:
        """This process has completed a step."""
        self._patience_s = SEARCHES_SILENT_S


class Stored(Protocol):
    """Where signs are stored; the protocol of ``StoredSearches``."""

    def newest_claim(self) -> Claim | None: ...

    def load_status(self) -> SearchStatus: ...

    def save_status(self, status: SearchStatus, claim: Claim) -> None: ...


class Signs:
    """The signs of the process with this claim. Every method raises what ``stored`` raises."""

    def __init__(self, stored: Stored, claim: Claim, *, sink: str, monotonic: Callable[[], float]) -> None:
        """Writes nothing: a process that begins hasn't reported anything."""
        self._stored = stored
        self._claim = claim
        self._sink = sink
        self._monotonic = monotonic
        self._status = stored.load_status()
        self._save_at = monotonic() + _STATUS_EVERY_S
        self._is_first = True
        """No step was completed yet."""

    def check_claim(self) -> None:
        """Raise Fenced if another process reports this sink by now."""
        newest = self._stored.newest_claim()
        if newest is not None and newest > self._claim:
            raise Fenced(
                f"another process has taken over the searches of sink {self._sink!r}",
                hint="let one process watch them: `lockstep run`, or `lockstep searches watch`",
            )

    def going_on(self) -> None:
        """A long step goes on. Raises Fenced as ``check_claim``."""
        if self._monotonic() >= self._save_at:
            self._save(self._status)

    def done(self, matching: Mapping[str, int], refused: Mapping[str, str]) -> None:
        """A step is complete, so nothing is in the way any more. Raises Fenced as ``check_claim``."""
        now = replace(self._status, matching=matching, refused=refused, waiting="")
        if self._is_first or now != self._status or self._monotonic() >= self._save_at:
            self._save(now)
            self._is_first = False

    def waiting(self, reason: str) -> None:
        """Store why nothing can be reported now. This is no sign of life. Raises Fenced as ``check_claim``."""
        self.check_claim()
        if reason != self._status.waiting:
            self._status = replace(self._status, waiting=reason)
            self._stored.save_status(self._status, self._claim)

    def _save(self, status: SearchStatus) -> None:
        self.check_claim()
        self._status = replace(status, at_ms=time.time_ns() // 1_000_000)
        self._save_at = self._monotonic() + _STATUS_EVERY_S
        self._stored.save_status(self._status, self._claim)
