"""Waits until a sink has applied something, between two reads of the source, and until a stop is asked for."""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.lsn import Lsn, format_lsn
from sinks.contract import Progress, TopicPartition
from views.retention import NotedTime

_SLICE_S: Final = 0.05
_SAY_AFTER_S: Final = 5.0

_LIFE_LOOK_S: Final = 2.0
"""How often to look for a job's signs of life while nothing moves."""

_ALIVE_TIMES: Final = 10.0
"""A job that gives signs of life gets this many times as long: on a slow machine it prepares, or has a large batch. Not
longer, since a job that hangs gives signs of life too."""


class LoadsProgress(Protocol):
    """How far a generation is, as ``sinks.contract.Generations`` returns it."""

    def load_progress(self) -> Progress | None:
        """None if no job has ever applied to it. Raises what the destination raises."""
        ...


class Stalled(LockstepError):
    """Nothing is being applied."""


class Waiting:
    """Sleeps in short slices. Raises LockstepError once ``stopping`` returns True. ``own_s`` is the processor time of
    the calling thread: for that long it waited for nobody."""

    def __init__(
        self,
        stopping: Callable[[], bool],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        own: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._stopping = stopping
        self._sleep = sleep
        self.now_s = monotonic
        self.own_s = own

    def check(self) -> None:
        """Raise LockstepError if a stop was asked for."""
        if self._stopping():
            raise LockstepError("stopped before everything was compared", hint="nothing was changed; start it again")

    def sleep(self, seconds: float) -> None:
        """Sleep for so long. Raises LockstepError as soon as a stop is asked for."""
        until = self.now_s() + seconds
        self.check()
        while (remaining_s := until - self.now_s()) > 0:
            self._sleep(min(remaining_s, _SLICE_S))
            self.check()


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """A point of the stream: an LSN of the source, or next offsets of topics, whichever the other side knows."""

    lsn: Lsn | None = None
    epoch: int = 0
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)

    def is_applied(self, progress: Progress | None) -> bool:
        """Whether a sink with this progress has applied everything up to here. Raises LockstepError if capture was
        recovered since: the LSN belongs to a server that isn't captured any more."""
        if progress is None:
            return False
        if self.lsn is not None and progress.epoch > self.epoch:
            raise LockstepError("capture was recovered in the meantime", hint="start again")
        if self.lsn is not None and progress.joining:
            return False  # its watermark isn't true of all tables yet
        if self.lsn is not None and (progress.epoch, progress.watermark_lsn) < (self.epoch, self.lsn):
            return False
        return all(progress.next_offsets.get(partition, 0) >= end for partition, end in self.offsets.items())


class _SignsOfLife:
    """When a job last gave a sign of life: ``seen_s`` on the clock of ``waiting``; -inf for never."""

    def __init__(self, ask: Callable[[], object], waiting: Waiting) -> None:
        self._ask = ask
        self._newest: object = None
        self._look_s = waiting.now_s() + _LIFE_LOOK_S
        self._has_looked = False
        self.seen_s = -math.inf

    def look(self, now_s: float) -> None:
        """Ask, if it is time to."""
        if now_s < self._look_s:
            return
        self._look_s = now_s + _LIFE_LOOK_S
        with suppress(Unavailable):
            sign = self._ask()
            if self._has_looked and sign != self._newest:
                self.seen_s = now_s
            self._newest, self._has_looked = sign, True


class Applied:
    """Waits for one generation of a sink. Raises Stalled if the sink makes no progress.

    ``check`` raises LockstepError if waiting, or what is found afterwards, is in vain. It is called at each slice.
    ``sign_of_life`` returns another value each time that the generation's job has shown that it runs.
    """

    def __init__(
        self,
        progress: LoadsProgress,
        *,
        name: str,
        generation: int,
        waiting: Waiting,
        stall_s: float,
        say: Callable[[str], None],
        check: Callable[[], None] = lambda: None,
        sign_of_life: Callable[[], object] = lambda: None,
    ) -> None:
        self._progress = progress
        self._sign_of_life = sign_of_life
        self._check = check
        self._name = name
        self._generation = generation
        self._waiting = waiting
        self._stall_s = stall_s
        self._say = say

    def wait(self, point: SyncPoint, while_waiting: Callable[[], None] | None = None) -> None:
        """Return once everything up to the point is applied.

        Raises Stalled if the sink hasn't moved for ``stall_s`` seconds, or for ten times as long if its job gives signs
        of life. Raises LockstepError if a stop is asked for, and as ``check``.
        """
        began = moved = self._waiting.now_s()
        last: Progress | None = None
        life = _SignsOfLife(self._sign_of_life, self._waiting)
        has_said = False
        while True:
            progress = last
            with suppress(Unavailable):
                progress = self._progress.load_progress()
                self._check()  # after loading: a table is recorded as held before the watermark passes it
            if point.is_applied(progress):
                return
            now = self._waiting.now_s()
            if _position(progress) != _position(last):
                last, moved = progress, now
            life.look(now)
            patience_s = self._stall_s * (_ALIVE_TIMES if now - life.seen_s <= self._stall_s else 1.0)
            if now - moved > patience_s:
                raise self._stalled(point, progress, now - moved)
            if now - began > _SAY_AFTER_S and not has_said:
                has_said = True
                self._say(f"waiting for sink {self._name!r} to apply {_missing(point, progress)}")
            if while_waiting is not None:
                while_waiting()
            self._waiting.sleep(_SLICE_S)

    def _stalled(self, point: SyncPoint, progress: Progress | None, stood_s: float) -> Stalled:
        return Stalled(
            f"sink {self._name!r} (generation {self._generation}) hasn't moved for {stood_s:.0f} s and lacks"
            f" {_missing(point, progress)}",
            hint=f"`lockstep apply {self._name}` and `lockstep capture` must be running; `lockstep lag` shows which of"
            " them lags",
        )


def settled_time(
    load: Callable[[], NotedTime], *, name: str, generation: int, waiting: Waiting, stall_s: float
) -> NotedTime:
    """The time of a view, once all of its rows are as of one time. Raises Stalled if that doesn't happen for
    ``stall_s`` seconds, LockstepError if a stop is asked for."""
    began, first = waiting.now_s(), load()
    time = first
    while not time.is_settled:
        if time != first:
            began, first = waiting.now_s(), time
        if waiting.now_s() - began > stall_s:
            raise Stalled(
                f"view {name!r} (generation {generation}) hasn't taken away all rows that are too old for"
                f" {stall_s:.0f} s",
                hint=f"`lockstep apply {name}` must be running; `lockstep lag` shows how far it is",
            )
        waiting.sleep(_SLICE_S)
        time = load()
    return time


def _missing(point: SyncPoint, progress: Progress | None) -> str:
    """What a sink with this progress lacks, in words."""
    if progress is None:
        return "everything: no job has ever applied to it"
    if point.lsn is not None:
        is_known = progress.watermark_lsn and progress.epoch == point.epoch
        watermark = format_lsn(Lsn(progress.watermark_lsn)) if is_known else "nothing yet"
        return f"commits up to {format_lsn(point.lsn)} (applied: {watermark})"
    lacking = sum(max(0, end - progress.next_offsets.get(partition, 0)) for partition, end in point.offsets.items())
    return f"{lacking:,} records of its topics"


def _position(progress: Progress | None) -> object:
    # Not updated_at_ms: a healthy job writes it while the log doesn't grow.
    return None if progress is None else (progress.epoch, progress.watermark_lsn, dict(progress.next_offsets))
