"""Who applies to a generation: the job shows that it runs, and commands see that and ask it to pause.

Both are coordination records of the destination, so there is one truth wherever commands are run:

``g<n>.heartbeat``
    Written again and again by the generation's job. Who wants to know whether there is one looks twice: clocks of
    several machines don't agree, but a counter that moves is alive. A destination without a fence may have several jobs
    for a while, so each has an entry of its own. Of two that write at the same moment one is lost, and comes back.
    It has the time too, for who looks only once and needn't be sure.
``g<n>.pause_request``
    Asks all of them to let no batch begin until the record is gone. Each confirms it in its entry. None pauses longer
    than ``PAUSE_MAX_S``: whoever asked may have died.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

import orjson

from cdc.model.errors import Unavailable
from jobs.generations.batch_gate import BatchGate
from sinks.contract import CoordinationRecords

PAUSE_MAX_S: Final = 90.0
"""How long a job pauses at most when it was asked to: whoever asked may have died."""

HEARTBEAT_S: Final = 2.0
"""How often a job shows that it runs."""

_SILENCE_S: Final = 3 * HEARTBEAT_S
"""A job without a heartbeat for so long doesn't run."""

_BUSY_MAX_S: Final = PAUSE_MAX_S / 2
"""How long a pause request waits for the batch that is under way."""

_LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Clock:
    """Time as arguments, in seconds."""

    monotonic_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


SYSTEM_CLOCK: Final = Clock()


@dataclass(frozen=True, slots=True)
class Beat:
    """A job's entry. ``beats`` counts how often it was written, ``paused_for`` is the request that it pauses for."""

    beats: int
    paused_for: str | None


@dataclass(frozen=True, slots=True)
class LastBeat:
    """The last sign of life of a generation's jobs, by the clock of who gave it.

    ``is_alive`` is False where it was a goodbye, and none goes on. An earlier version tells no time.
    """

    at_ms: int | None
    is_alive: bool


class _Beats:
    """Since when each entry has been as it is, for one who looks again and again."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._moved: dict[str, tuple[Beat, float]] = {}

    def living(self, beats: Mapping[str, Beat]) -> dict[str, Beat]:
        """The entries of these that have moved lately, or weren't seen before."""
        now = self._monotonic_s()
        known = self._moved
        self._moved = {
            run: known[run] if run in known and known[run][0] == beat else (beat, now) for run, beat in beats.items()
        }
        return {run: beat for run, (beat, moved_at) in self._moved.items() if now - moved_at <= _SILENCE_S}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class GenerationLease:
    """A job's side: shows that it runs, and pauses when it is asked to.

    ``heartbeat`` is called about twice a second by a thread of its own, with a sink of its own. What it raises can be
    ignored.
    """

    def __init__(
        self,
        records: CoordinationRecords,
        generation: int,
        gate: BatchGate,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = _now_ms,
    ) -> None:
        self._records = records
        self._heartbeat_name = _heartbeat_name(generation)
        self._request_name = pause_request_name(generation)
        self._gate = gate
        self._monotonic = monotonic
        self._now_ms = now_ms
        self._run = uuid.uuid4().hex
        self._beats = 0
        self._seen = _Beats(monotonic)
        self._beat_at: float | None = None
        self._paused_for: str | None = None
        self._paused_at = 0.0
        self._expired = ""

    def heartbeat(self) -> None:
        """Pause or go on as a pause request says, and show that the job runs. Raises what the destination raises."""
        now = self._monotonic()
        # Before anything that may fail: a destination that doesn't answer must not keep the job paused.
        expired = self._paused_for is not None and now - self._paused_at > PAUSE_MAX_S
        if expired:
            self._go_on()
        request = self._records.load(self._request_name)
        if expired and request == self._expired:
            # Whoever asked has died, and the next job need not wait.
            self._records.save(self._request_name, None)
            request = None
        if request != self._paused_for and self._paused_for is not None:
            self._go_on()
            self._beat(now)
        if request is None:
            self._gate.release()
        elif request not in (self._paused_for, self._expired) and self._gate.hold(0):
            # Where a batch is still under way, the next call looks again, and no other one begins.
            self._paused_for, self._paused_at = request, now
            self._beat(now)
        if self._beat_at is None or now - self._beat_at >= HEARTBEAT_S:
            self._beat(now)

    def end(self) -> None:
        """The job is over, nobody has to wait for it. Raises what the destination raises."""
        self._gate.release()
        beats = _load(self._records, self._heartbeat_name) or {}
        self._save({run: beat for run, beat in beats.items() if run != self._run})

    def _go_on(self) -> None:
        self._expired, self._paused_for = self._paused_for or "", None
        self._gate.release()

    def _beat(self, now: float) -> None:
        self._beats += 1
        self._beat_at = now
        living = self._seen.living(_load(self._records, self._heartbeat_name) or {})
        self._save({**living, self._run: Beat(self._beats, self._paused_for)})

    def _save(self, beats: Mapping[str, Beat]) -> None:
        entries = {run: asdict(beat) for run, beat in beats.items()}
        text = orjson.dumps({"jobs": entries, "at_ms": self._now_ms()}).decode()
        self._records.save(self._heartbeat_name, text)


def last_beat(records: CoordinationRecords, generation: int) -> LastBeat | None:
    """The last sign of life of a generation's jobs; None where none has ever given one."""
    text = records.load(_heartbeat_name(generation))
    if text is None:
        return None
    fields = orjson.loads(text)
    return LastBeat(fields.get("at_ms"), bool(fields.get("jobs")))


def is_running(records: CoordinationRecords, generation: int, clock: Clock = SYSTEM_CLOCK) -> bool:
    """Whether a job applies to a generation.

    It takes some seconds to see that one has died without a word, or that there is none yet.
    """
    name = _heartbeat_name(generation)
    first = _load(records, name) or {}
    deadline = clock.monotonic_s() + _SILENCE_S
    while clock.monotonic_s() < deadline:
        beats = _load(records, name)
        if beats is not None and not beats:
            return False
        if any(first.get(run) != beat for run, beat in (beats or {}).items()):
            return True
        clock.sleep(_LOOK_S)
    return False


def wait_for_pause(records: CoordinationRecords, generation: int, request: str, clock: Clock = SYSTEM_CLOCK) -> bool:
    """Wait until every job of a generation confirms this pause request; False when there is no job.

    Raises Unavailable when one is busy with a batch for too long.
    """
    name, seen = _heartbeat_name(generation), _Beats(clock.monotonic_s)
    deadline = clock.monotonic_s() + _BUSY_MAX_S
    while clock.monotonic_s() < deadline:
        living = seen.living(_load(records, name) or {})
        if all(beat.paused_for == request for beat in living.values()):
            return bool(living)
        clock.sleep(_LOOK_S)
    raise Unavailable(f"generation {generation} is in the middle of a long batch", hint="try again in a moment")


def pause_request_name(generation: int) -> str:
    """The coordination record that asks a generation's jobs to pause; its text is the request's own id."""
    return f"g{generation}.pause_request"


def _heartbeat_name(generation: int) -> str:
    return f"g{generation}.heartbeat"


def _load(records: CoordinationRecords, name: str) -> dict[str, Beat] | None:
    """The jobs' entries; None where no job has ever written one, as far as this version knows."""
    text = records.load(name)
    entries = None if text is None else orjson.loads(text).get("jobs")
    return None if entries is None else {run: Beat(**entry) for run, entry in entries.items()}
