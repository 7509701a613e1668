"""What whoever tells of a sink's searches shows of himself: that he tells, or why he can't.

A sign of life doesn't prove that anybody is told: one may begin again and again, and fail each time. So what was in the
way stays stored until a step was done, whoever does it.
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
    """Whether who has taken a place tells nobody, as another one sees it who waits for that.

    A sign is that something new was stored. When, is this process's own business: clocks of several machines differ.
    """

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._patience_s = SEARCHES_SILENT_S
        self._since = monotonic()
        self._seen: int | None = None

    def begin(self) -> None:
        """A place was just taken."""
        self._since, self._seen = self._monotonic(), None

    def is_long(self, status: SearchStatus) -> bool:
        """Whether the place is to be taken back, where this is what is stored by now."""
        now = self._monotonic()
        if status.at_ms != self._seen:
            self._since, self._seen = now, status.at_ms
        return now - self._since >= self._patience_s

    def lengthen(self) -> None:
        """The place was taken back. To begin takes time as well: of two that wait for each other one gets it."""
        self._patience_s = min(2 * self._patience_s, SEARCHES_SILENT_MAX_S)

    def end(self) -> None:
        """A step was done in that place."""
        self._patience_s = SEARCHES_SILENT_S


class Stored(Protocol):
    """Where signs are stored, as ``StoredSearches``."""

    def newest_claim(self) -> Claim | None: ...

    def load_status(self) -> SearchStatus: ...

    def save_status(self, status: SearchStatus, claim: Claim) -> None: ...


class Signs:
    """Of one who has this claim. Every method raises what ``stored`` raises."""

    def __init__(self, stored: Stored, claim: Claim, *, sink: str, monotonic: Callable[[], float]) -> None:
        """Nothing is shown yet: who begins hasn't told anything."""
        self._stored = stored
        self._claim = claim
        self._sink = sink
        self._monotonic = monotonic
        self._status = stored.load_status()
        self._save_at = monotonic() + _STATUS_EVERY_S
        self._is_first = True
        """No step was done yet."""

    def check_claim(self) -> None:
        """Raise Fenced where another process tells of this sink by now."""
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
        """A step is done, so nothing is in the way any more. Raises Fenced as ``check_claim``."""
        now = replace(self._status, matching=matching, refused=refused, waiting="")
        if self._is_first or now != self._status or self._monotonic() >= self._save_at:
            self._save(now)
            self._is_first = False

    def waiting(self, reason: str) -> None:
        """Nobody can be told now, and why. That isn't a sign that anybody tells. Raises Fenced as ``check_claim``."""
        self.check_claim()
        if reason != self._status.waiting:
            self._status = replace(self._status, waiting=reason)
            self._stored.save_status(self._status, self._claim)

    def _save(self, status: SearchStatus) -> None:
        self.check_claim()
        self._status = replace(status, at_ms=time.time_ns() // 1_000_000)
        self._save_at = self._monotonic() + _STATUS_EVERY_S
        self._stored.save_status(self._status, self._claim)
