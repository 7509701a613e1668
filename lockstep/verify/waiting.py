"""Waiting: until a sink has applied something, between two reads of the source, and no longer than until somebody says stop."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.lsn import Lsn, format_lsn
from sinks.contract import Generations, Progress, TopicPartition

_SLICE_S: Final = 0.05
_SAY_AFTER_S: Final = 5.0


class Stalled(LockstepError):
    """Nothing is being applied."""


class Patience:
    """Sleeps, and raises LockstepError once it is to stop."""

    def __init__(
        self,
        stopping: Callable[[], bool],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._stopping = stopping
        self._sleep = sleep
        self.now_s = monotonic

    def check(self) -> None:
        """Raise when it is to stop."""
        if self._stopping():
            raise LockstepError("stopped before everything was compared", hint="nothing was changed; start it again")

    def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond the wish to stop."""
        until = self.now_s() + seconds
        self.check()
        while (left := until - self.now_s()) > 0:
            self._sleep(min(left, _SLICE_S))
            self.check()


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of the stream: an LSN of the source, or offsets of topics, whichever the other side can tell."""

    lsn: Lsn | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)

    def is_applied(self, progress: Progress | None) -> bool:
        if progress is None:
            return False
        if self.lsn is not None and progress.watermark_lsn < self.lsn:
            return False
        return all(progress.next_offsets.get(at, 0) >= end for at, end in self.offsets.items())


class Applied:
    """Waits for one generation of a sink. What it waits for must move: a stream that stands still raises Stalled."""

    def __init__(
        self,
        generations: Generations,
        *,
        name: str,
        generation: int,
        patience: Patience,
        stall_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._generations = generations
        self._name = name
        self._generation = generation
        self._patience = patience
        self._stall_s = stall_s
        self._say = say

    def wait(self, mark: Mark, while_waiting: Callable[[], None] | None = None) -> None:
        """Return once everything up to the mark is applied."""
        began = moved = self._patience.now_s()
        last: Progress | None = None
        has_said = False
        while True:
            progress = last
            with suppress(Unavailable):
                progress = self._generations.load_progress()
            if mark.is_applied(progress):
                return
            now = self._patience.now_s()
            if _place(progress) != _place(last):
                last, moved = progress, now
            if now - moved > self._stall_s:
                raise self._stalled(mark, progress)
            if now - began > _SAY_AFTER_S and not has_said:
                has_said = True
                self._say(f"waiting for sink {self._name!r} to apply {self._missing(mark, progress)}")
            if while_waiting is not None:
                while_waiting()
            self._patience.sleep(_SLICE_S)

    def _stalled(self, mark: Mark, progress: Progress | None) -> Stalled:
        return Stalled(
            f"sink {self._name!r} (generation {self._generation}) hasn't moved for {self._stall_s:.0f} s and lacks"
            f" {self._missing(mark, progress)}",
            hint=f"`lockstep apply {self._name}` and `lockstep capture` must be running; `lockstep lag` shows which of them is behind",
        )

    @staticmethod
    def _missing(mark: Mark, progress: Progress | None) -> str:
        if progress is None:
            return "everything: no job has ever applied to it"
        if mark.lsn is not None:
            watermark = format_lsn(Lsn(progress.watermark_lsn)) if progress.watermark_lsn else "nothing yet"
            return f"what was committed up to {format_lsn(mark.lsn)} (applied: {watermark})"
        behind = sum(max(0, end - progress.next_offsets.get(at, 0)) for at, end in mark.offsets.items())
        return f"{behind:,} records of its topics"


def _place(progress: Progress | None) -> object:
    # Not updated_at_ms: a job in good health writes it while the log stands still.
    return None if progress is None else (progress.watermark_lsn, dict(progress.next_offsets))
