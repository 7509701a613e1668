"""Who applies to a generation: the newest job shows that it runs, older ones end, and commands can make it pause.

Both records are in the destination, so there is one truth wherever commands run:

``g<n>.heartbeat``
    Written repeatedly by the generation's job. To find out whether a job runs, look twice: clocks of several machines
    differ, but a counter that moves is alive. It also has the time, for a single look that needn't be sure.
    A destination without a fence may have several jobs for a while, so each has an entry of its own. If two write at
    the same moment, one entry is lost, and comes back with its next heartbeat.
    The job with the greatest claim adds what it has read (``jobs.generations.read_so_far``).
    The record has the greatest claim. A job that finds a greater claim than its own ends, however long it hung; a job
    that finds a smaller one writes its own again. So of any number of jobs the newest remains, whatever was lost
    meanwhile. If the destination fences, its fence decides. A fence below the job's own means that the destination
    was put back. If no other job is there, the job begins again and finds what is missing.
    Beside the claim it says whether that job is one of ``apply --once``: a job that such a job has ended goes on
    afterwards.
    ``is_over`` is set by the newest job at its end. Remaining entries then belong to older jobs whose own removal was
    lost to a write at the same moment.
``g<n>.pause_request``
    Asks all of them to begin no batch until the record is gone. Each confirms it in its entry. None pauses longer
    than ``PAUSE_MAX_S``: whoever asked may have died.
"""

import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final

import orjson

from cdc.model.errors import DataLost, Fenced, Unavailable
from cdc.model.table import TableName
from cdc.model.timeouts import PAUSE_MAX_S
from jobs.clock import now_ms
from jobs.generations.batch_gate import BatchGate
from jobs.generations.identities import lost_of
from jobs.generations.pause import Pause
from jobs.generations.read_so_far import ReadSoFar
from sinks.contract import CoordinationRecords, OpenedSink

HEARTBEAT_S: Final = 2.0
"""How often a job shows that it runs."""

SILENCE_S: Final = 3 * HEARTBEAT_S
"""A job without a heartbeat for so long doesn't run."""

_LOOKED_S: Final = HEARTBEAT_S + 1.0
"""A job that hasn't looked at the claims for so long hung, or its destination did."""

_BUSY_MAX_S: Final = PAUSE_MAX_S / 2
"""How long a pause request waits for the running batch."""

_LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Clock:
    """Time as arguments, in seconds; ``now_ms`` is milliseconds since 1970."""

    monotonic_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    now_ms: Callable[[], int] = now_ms


SYSTEM_CLOCK: Final = Clock()


@dataclass(frozen=True, slots=True)
class Beat:
    """A job's entry. ``beats`` counts how often it was written, ``paused_for`` is the request that it pauses for."""

    beats: int
    paused_for: str | None


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """A job's place in the order of a generation's jobs. ``run`` tells apart two that took the same number at once."""

    number: int
    run: str


@dataclass(frozen=True, slots=True)
class LastBeat:
    """The last heartbeat of a generation's jobs, by the clock of its author. ``is_alive`` is False if it was the last
    one of a job that ended, and none goes on. ``read`` is what the newest job has read, None if it didn't say."""

    at_ms: int
    is_alive: bool
    read: ReadSoFar | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Claimed:
    """The number of the greatest claim to a generation, 0 for none; and the count of entries, dead ones included."""

    number: int
    jobs: int


@dataclass(frozen=True, slots=True)
class _Record:
    """The heartbeat record. ``claim`` is the greatest one, None if no job has claimed. ``once``: the job of this claim
    ends by itself. ``is_known``: a job has written the record."""

    beats: Mapping[str, Beat]
    claim: Claim | None
    once: bool
    is_known: bool

    @property
    def number(self) -> int:
        return 0 if self.claim is None else self.claim.number


class _Beats:
    """Since when each entry is unchanged, for a caller that looks repeatedly."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._moved: dict[str, tuple[Beat, float]] = {}

    def living(self, beats: Mapping[str, Beat]) -> dict[str, Beat]:
        """The entries that have changed lately, or weren't seen before."""
        now = self._monotonic_s()
        known = self._moved
        self._moved = {
            run: known[run] if run in known and known[run][0] == beat else (beat, now) for run, beat in beats.items()
        }
        return {run: beat for run, (beat, moved_at) in self._moved.items() if now - moved_at <= SILENCE_S}


class _Pulse:
    """How often a job has shown that it runs, and when it last did."""

    def __init__(self) -> None:
        self.beats = 0
        self._at_s = 0.0

    def is_due(self, now_s: float) -> bool:
        return not self.beats or now_s - self._at_s >= HEARTBEAT_S

    def beat(self, now_s: float, paused_for: str | None) -> Beat:
        self.beats += 1
        self._at_s = now_s
        return Beat(self.beats, paused_for)


class _Rival:
    """The job that claimed a destination which was put back, as first seen."""

    def __init__(self) -> None:
        self._first: tuple[str, Beat, float] | None = None
        # True while it is unknown whether that job is at work.
        self.may_be_there = False

    def is_at_work(self, record: _Record, own_run: str, now_s: float) -> bool:
        """Whether its entry has changed since it was first seen."""
        run = "" if record.claim is None else record.claim.run
        beat = record.beats.get(run)
        if run == own_run or beat is None:
            self.may_be_there = False
            return False
        if self._first is None or self._first[0] != run:
            self._first = run, beat, now_s
        self.may_be_there = now_s - self._first[2] <= SILENCE_S
        return self._first[1] != beat


class GenerationLease:
    """A job's side: claims the generation, shows that the job runs, and pauses on request.

    ``heartbeat`` is called about twice a second while the job runs. Thread-safe; ``opened`` is for the lease alone.
    ``once``: the job ends by itself. ``pause_request`` is the record that asks it to pause, the generation's by
    default. Every method raises what the destination raises.
    """

    def __init__(
        self,
        opened: OpenedSink,
        generation: int,
        *,
        once: bool = False,
        pause_request: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._opened = opened
        self._generation = generation
        self._once = once
        self._clock = clock
        # This job among the generation's.
        self._run = uuid.uuid4().hex
        # Its claim, None before it has one; and the destination's number for that, 0 if it doesn't fence.
        self._claim: Claim | None = None
        self._fence = 0
        # Set once the job may not go on.
        self._taken_over: Fenced | None = None
        # When it last knew that nobody had taken over.
        self._looked_at: float | None = None
        self._rival = _Rival()
        self._pulse = _Pulse()
        # The entries of all jobs, as this one saw them.
        self._seen = _Beats(clock.monotonic_s)
        self._pause = Pause(pause_request or pause_request_name(generation))
        self._lock = threading.RLock()
        self._read_so_far: Callable[[], ReadSoFar | None] = lambda: None

    def tells(self, read_so_far: Callable[[], ReadSoFar | None]) -> None:
        """From now on each heartbeat says what was read. The function must not wait for a destination."""
        self._read_so_far = read_so_far

    def reopen(self, opened: OpenedSink) -> None:
        """Go on by another connection, with the same claim and heartbeats. The old connection isn't used any more. May
        wait as long as the old one doesn't answer."""
        with self._lock:
            self._opened = opened

    def claim(self, claim_sink: Callable[[], int]) -> int:
        """Become or remain the generation's newest job. Returns the fence from ``claim_sink`` (``Sink.claim``). Raises
        Fenced, and claims nothing, if another job has claimed since this one did."""
        with self._lock:
            record = self._look()
            fence = claim_sink()
            if fence:  # the destination's own order counts
                self._claim = Claim(fence, self._run)
            elif self._claim is None:
                # A destination that was put back has forgotten claims: the clock, which went on, is beyond them.
                self._claim = Claim(max(record.number + 1, self._clock.now_ms()), self._run)
            self._fence = fence
            self._save_beat(record, self._clock.monotonic_s())
            return fence

    def begin(self) -> None:
        """Call before a query. Raises as ``check``, but gives up a claim that the destination has lost. Raises DataLost
        while somebody else might have claimed the destination since it was put back."""
        with self._lock:
            if self._taken_over is not None:
                raise self._taken_over
            try:
                self._look()
            except DataLost:
                if self._rival.may_be_there:
                    raise
                self._claim, self._fence = None, 0

    def check_fence(self) -> None:
        """Raise DataLost if the destination has forgotten this job's claim, and no other job is known."""
        with self._lock:
            if self._taken_over is None and self._fence and self._opened.sink.fence() < self._fence:
                raise DataLost(_put_back(self._generation))

    def record(self, name: str) -> str | None:
        """A coordination record, by the lease's connection. Raises what the destination raises."""
        with self._lock:
            return self._opened.records.load(name)

    def records(self, names: Collection[str]) -> dict[str, str]:
        """The existing ones of these coordination records, in the same way."""
        with self._lock:
            return self._opened.records.load_all(names)

    def lost(self, known: Mapping[TableName, str]) -> Mapping[TableName, str]:
        """As ``TableIdentities.lost``, by the lease's connection."""
        with self._lock:
            return lost_of(self._opened, known)

    def save_record(self, name: str, text: str | None) -> None:
        """Replace a coordination record, in the same way. Raises as ``look``, and saves nothing then. Otherwise an
        older job that goes on for a moment would undo what the newer one has written."""
        with self._lock:
            self.look()
            self._opened.records.save(name, text)

    def save_claimed(self, name: str, text: str) -> None:
        """Replace a coordination record that only the newest job stores, once it has claimed the generation. Raises as
        ``look``. A destination that fences refuses it if a newer job has claimed since this one looked."""
        with self._lock:
            self.look()
            self._opened.records.save(name, text, fence=self._fence)

    def guard(self, gate: BatchGate) -> None:
        with self._lock:
            self._pause.guard(gate)

    def check(self) -> None:
        """Raise Fenced if another job has claimed the generation since this one did, DataLost if it was put back. Looks
        only if the last look was long ago, as in a process that hung. Progress is never stored without this check."""
        with self._lock:
            now = self._clock.monotonic_s()
            if self._taken_over is not None:
                raise self._taken_over
            if self._looked_at is None or now - self._looked_at > _LOOKED_S:
                self._look()

    def look(self) -> None:
        """As ``check``, but always looks."""
        with self._lock:
            if self._taken_over is not None:
                raise self._taken_over
            self._look()

    def heartbeat(self) -> None:
        """Pause or go on as a pause request says, and show that the job runs. Raises as ``check``."""
        with self._lock:
            now = self._clock.monotonic_s()
            # Before anything that may fail: a destination that doesn't answer must not keep the job paused.
            self._pause.expire(now)
            if self._taken_over is not None:
                raise self._taken_over
            request = self._opened.records.load(self._pause.name)
            if request is not None and request == self._pause.expired:
                # A switch that finds its request relies on the pause. If whoever asked has died, the next job need not
                # wait.
                self._opened.records.save(self._pause.name, None)
                request = None
            if self._pause.obey(request, now) or self._pulse.is_due(now):
                self._save_beat(self._look(), now)

    def end(self) -> None:
        """Show that the job is over, so that nobody waits for it."""
        with self._lock:
            self._pause.release()
            if not self._pulse.beats:
                return
            record = _load(self._opened.records, heartbeat_name(self._generation))
            left = {run: beat for run, beat in record.beats.items() if run != self._run}
            is_newest = self._claim is not None and record.claim == self._claim
            self._save(replace(record, beats=left), is_over=is_newest)

    def _look(self) -> _Record:
        """The record. Raises Fenced if it has a newer claim than ours, DataLost if ours was lost."""
        began = self._clock.monotonic_s()  # this process may hang before it has the answer
        record, claim = _load(self._opened.records, heartbeat_name(self._generation)), self._claim
        if claim is None or record.claim == claim:
            is_newest = True
        elif self._fence and record.number != self._fence:
            fence = self._opened.sink.fence()
            is_newest = fence == self._fence
            if fence < self._fence and not self._rival.is_at_work(record, self._run, began):
                raise DataLost(_put_back(self._generation))
        elif record.claim is None:
            is_newest = True
        else:
            is_newest = record.claim < claim
        self._looked_at = began
        if not is_newest:
            self._taken_over = Fenced(
                f"another job has begun to apply to generation {self._generation} since this one did",
                hint="the newer one goes on: don't start this one again while that one runs",
            )
            raise self._taken_over
        return record

    def _save_beat(self, record: _Record, now: float) -> None:
        own = self._pulse.beat(now, self._pause.request)
        record = replace(record, beats={**self._seen.living(record.beats), self._run: own})
        if self._claim is None:
            self._save(record)
        else:
            self._save(replace(record, claim=self._claim, once=self._once), self._read_so_far())

    def _save(self, record: _Record, read: ReadSoFar | None = None, *, is_over: bool = False) -> None:
        facts = {
            "jobs": {run: asdict(beat) for run, beat in record.beats.items()},
            "at_ms": self._clock.now_ms(),
            "claim": None if record.claim is None else asdict(record.claim),
            "once": record.once,
            "is_over": is_over,
            "read": None if read is None else read.to_json(),
        }
        self._opened.records.save(heartbeat_name(self._generation), orjson.dumps(facts).decode())


class NewerJob:
    """The job that has ended an older one of the same generation, for a caller that looks repeatedly."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._seen: tuple[str | None, float] | None = None
        self.ends_by_itself: bool | None = None
        """Whether it is one of ``apply --once``. None before the first look."""
        self.has_ended = False
        """Whether it has ended in order, or in any way if it ends by itself."""
        self.is_told = False
        """Whether it was reported that it is waited for."""

    def look(self, records: CoordinationRecords, generation: int) -> None:
        now, text = self._monotonic_s(), records.load(heartbeat_name(generation))
        if self._seen is None or self._seen[0] != text:
            self._seen = text, now
        record = _parsed(text)
        self.ends_by_itself = record.once
        # Of two writes at the same moment one is lost: an end counts only if no heartbeat follows it.
        is_silent = now - self._seen[1] > SILENCE_S
        self.has_ended = is_silent and (record.once or not record.beats)


def newest_run(records: CoordinationRecords, generation: int) -> str | None:
    """The job with the greatest claim to a generation; None if none has claimed."""
    claim = _load(records, heartbeat_name(generation)).claim
    return None if claim is None else claim.run


def claimed(records: CoordinationRecords, generation: int) -> Claimed:
    """Who claims to apply to a generation. Raises what the destination raises."""
    record = _load(records, heartbeat_name(generation))
    return Claimed(record.number, len(record.beats))


def last_beat(records: CoordinationRecords, generation: int) -> LastBeat | None:
    """The last heartbeat of a generation's jobs; None if there was none."""
    return last_beat_of(records.load(heartbeat_name(generation)))


def last_beat_of(text: str | None) -> LastBeat | None:
    """As ``last_beat``, from the text of the heartbeat record; None for no record."""
    if text is None:
        return None
    fields = orjson.loads(text)
    is_alive = bool(fields["jobs"]) and not fields["is_over"]
    return LastBeat(fields["at_ms"], is_alive, ReadSoFar.from_json(fields["read"]))


def is_running(records: CoordinationRecords, generation: int, clock: Clock = SYSTEM_CLOCK) -> bool:
    """Whether a job applies to a generation. It takes seconds to see that one has died silently, or isn't there yet."""
    return generation in running_of(records, [generation], clock)


def running_of(
    records: CoordinationRecords, generations: Collection[int], clock: Clock = SYSTEM_CLOCK
) -> frozenset[int]:
    """The sink's generations that a job applies to. Takes as long for all as for one."""
    first = {number: _load(records, heartbeat_name(number)).beats for number in generations}
    doubtful, running = set(generations), set[int]()
    deadline = clock.monotonic_s() + SILENCE_S
    while doubtful and clock.monotonic_s() < deadline:
        for number in list(doubtful):
            record = _load(records, heartbeat_name(number))
            if record.is_known and not record.beats:
                doubtful.discard(number)
            elif any(first[number].get(run) != beat for run, beat in record.beats.items()):
                doubtful.discard(number)
                running.add(number)
        if doubtful:
            clock.sleep(_LOOK_S)
    return frozenset(running)


def wait_for_pause(records: CoordinationRecords, generation: int, request: str, clock: Clock = SYSTEM_CLOCK) -> bool:
    """Wait until every job of a generation confirms this pause request. False if there is no job. Raises Unavailable if
    one is busy with a batch for too long."""
    return generation in wait_for_pauses(records, [generation], request, clock)


def wait_for_pauses(
    records: CoordinationRecords, generations: Collection[int], request: str, clock: Clock = SYSTEM_CLOCK
) -> frozenset[int]:
    """As ``wait_for_pause`` for several generations, in the same time. Returns those with a job."""
    seen = {number: _Beats(clock.monotonic_s) for number in generations}
    deadline, busy = clock.monotonic_s() + _BUSY_MAX_S, list(generations)
    while clock.monotonic_s() < deadline:
        living = {number: beats.living(_load(records, heartbeat_name(number)).beats) for number, beats in seen.items()}
        busy = [
            number for number, beats in living.items() if any(beat.paused_for != request for beat in beats.values())
        ]
        if not busy:
            return frozenset(number for number, beats in living.items() if beats)
        clock.sleep(_LOOK_S)
    raise Unavailable(f"generation {busy[0]} is in the middle of a long batch", hint="try again in a moment")


def pause_request_name(generation: int) -> str:
    """The coordination record that asks a generation's jobs to pause; its text is the request's own id."""
    return f"g{generation}.pause_request"


def _put_back(generation: int) -> str:
    return f"the destination of generation {generation} was put back: it knows nothing of this job"


def heartbeat_name(generation: int) -> str:
    return f"g{generation}.heartbeat"


def _load(records: CoordinationRecords, name: str) -> _Record:
    return _parsed(records.load(name))


def _parsed(text: str | None) -> _Record:
    if text is None:
        return _Record({}, None, once=False, is_known=False)
    fields = orjson.loads(text)
    claim = fields["claim"]
    return _Record(
        {run: Beat(**entry) for run, entry in fields["jobs"].items()},
        None if claim is None else Claim(**claim),
        once=fields["once"],
        is_known=True,
    )
