"""A sink's generations: what each was built with, who may apply to it, and how jobs and commands agree about that.

All of it is kept in the destination, as notes, so that there is one truth wherever commands are run:

``record.<n>``
    Whose log it holds, the settings that shape its rows, and whether it is being built, in use, or on its way out. A running
    ``apply`` applies to those in use. Who creates it has the number, and it stays when the generation is dropped: checkpoints of that
    may still be there, so no number is given twice.
``g<n>.runner``
    Written again and again by the job that applies to it. Who wants to know whether there is one looks twice: clocks of several
    machines don't agree, but a counter that moves is alive.
``g<n>.hold``
    Asks that job to let no batch begin until the note is gone, which it confirms in its own note. It doesn't wait longer than
    ``HOLD_S``: whoever asked may have died.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import orjson

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.event import JsonValue
from jobs.generations.batch_gate import BatchGate
from jobs.offsets import Offsets
from sinks.contract import CoordinationRecords, OpenedSink, Progress

HOLD_S: Final = 90.0
"""How long a job stands still at most when it was asked to: whoever asked may have died."""

BEAT_S: Final = 2.0
"""How often a job shows that it is there."""

_SILENCE_S: Final = 3 * BEAT_S
"""A job that hasn't shown itself for so long isn't there."""

_SWITCH_S: Final = HOLD_S / 2
"""How long a switch may take once it has asked the old generation to stand still."""

_APPROACH_S: Final = 300.0
"""How long a switch lets the new generation come close before it asks the old one to stand still."""

_LOOK_S: Final = 0.2


class Phase(StrEnum):
    """``BUILDING``: by ``rebuild``. ``REPLAYING``: the same, in place. ``READY``: whoever applies keeps it up to date.

    ``RETIRED``: about to be dropped, or gone.
    """

    BUILDING = "building"
    REPLAYING = "replaying"
    READY = "ready"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a generation besides its rows. ``definition`` are the settings that shape them.

    ``pipeline`` is whose log it holds. ``loaded`` says that what the log held when the build began is there, and the rest follows as
    in any other generation. ``shown`` says that readers may have seen it since, though it is still being built.
    """

    pipeline: str
    definition: Mapping[str, JsonValue]
    phase: Phase = Phase.READY
    loaded: bool = True
    created_at_ms: int = 0
    shown: bool = False

    def to_json(self) -> str:
        return orjson.dumps(
            {
                "pipeline": self.pipeline,
                "definition": dict(self.definition),
                "phase": self.phase.value,
                "loaded": self.loaded,
                "created_at_ms": self.created_at_ms,
                "shown": self.shown,
            }
        ).decode()

    @classmethod
    def from_json(cls, text: str) -> "Record":
        fields: dict[str, Any] = orjson.loads(text)
        return cls(
            fields["pipeline"],
            fields["definition"],
            Phase(fields["phase"]),
            fields["loaded"],
            fields["created_at_ms"],
            fields["shown"],
        )


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation as it stands. One that was made before there were records has none."""

    number: int
    is_live: bool
    record: Record | None

    @property
    def phase(self) -> Phase:
        return Phase.READY if self.record is None else self.record.phase

    @property
    def is_planned(self) -> bool:
        """Whether it is to be, where nothing of it is there yet."""
        return self.record is not None and self.record.phase is not Phase.RETIRED


def list_generations(opened: OpenedSink) -> list[Generation]:
    """All generations of a sink, oldest first, whichever the object is bound to. One that is only planned is among them."""
    live = opened.generations.live()
    numbers = set(opened.generations.numbers())
    highest = _highest_number(opened.records, numbers)
    planned = set(range(max(1, highest - _PLANNED_AMONG + 1), highest + 1))
    found = [
        Generation(number, number == live, load_record(opened.records, number)) for number in sorted(numbers | planned)
    ]
    return [generation for generation in found if generation.number in numbers or generation.is_planned]


def load_record(records: CoordinationRecords, generation: int) -> Record | None:
    text = records.load(_record_note(generation))
    return None if text is None else Record.from_json(text)


def save_record(records: CoordinationRecords, generation: int, record: Record) -> None:
    records.save(_record_note(generation), record.to_json())


def _record_note(generation: int) -> str:
    return f"record.{generation}"


def set_phase(records: CoordinationRecords, generation: int, phase: Phase, *, loaded: bool = True) -> None:
    """Change what may be done with a generation. Raises LockstepError when there is no such one."""
    record = load_record(records, generation)
    if record is None:
        raise LockstepError(
            f"generation {generation} has no record", hint="`lockstep generations` lists those there are"
        )
    save_record(records, generation, replace(record, phase=phase, loaded=loaded))


def require_in_use(records: CoordinationRecords, name: str, generation: int) -> None:
    """Raise LockstepError when a generation was dropped, or is about to be: nothing may make it anew."""
    record = load_record(records, generation)
    if record is None or record.phase is Phase.RETIRED:
        raise LockstepError(
            f"generation {generation} of sink {name!r} was dropped", hint="`lockstep generations` lists those there are"
        )


def check_owner(sink: str, generation: int, record: Record, pipeline: str) -> None:
    """Raise LockstepError when a generation holds another pipeline's log."""
    if record.pipeline != pipeline:
        raise LockstepError(
            f"generation {generation} of sink {sink!r} is written by pipeline {record.pipeline!r}, not by {pipeline!r}",
            hint="two logs in one place would mix: give this sink another name or prefix, or, if the other pipeline is gone,"
            f" let its own configuration drop the generation: lockstep generations {sink} --drop {generation}",
        )


class GenerationLease:
    """A job's side: shows that it runs, and stands still when it is asked to.

    ``tend`` is called about twice a second by a thread of its own, with a sink of its own; what it raises can be ignored.
    """

    def __init__(
        self,
        records: CoordinationRecords,
        generation: int,
        gate: BatchGate,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records = records
        self._note = f"g{generation}.runner"
        self._hold_note = f"g{generation}.hold"
        self._gate = gate
        self._monotonic = monotonic
        self._run = uuid.uuid4().hex
        self._beats = 0
        self._beat_at: float | None = None
        self._holding: str | None = None
        self._held_at = 0.0
        self._spent = ""

    def tend(self) -> None:
        """Look for a wish, fulfil it, tell of it. Raises what the destination raises."""
        now = self._monotonic()
        # Before anything that may fail: a destination that doesn't answer must not keep the job standing.
        expired = self._holding is not None and now - self._held_at > HOLD_S
        if expired:
            self._let_go()
        asked = self._records.load(self._hold_note)
        if expired and asked == self._spent:
            self._records.save(self._hold_note, None)  # whoever asked has died, and the next job need not wait
            asked = None
        if asked != self._holding and self._holding is not None:
            self._let_go()
            self._beat(now)
        if asked is None:
            self._gate.release()
        elif asked not in (self._holding, self._spent) and self._gate.hold(0):
            # Where a batch is still under way, the next call looks again, and no other one begins.
            self._holding, self._held_at = asked, now
            self._beat(now)
        if self._beat_at is None or now - self._beat_at >= BEAT_S:
            self._beat(now)

    def end(self) -> None:
        """The job is over, nobody has to wait for it. Raises what the destination raises."""
        self._gate.release()
        known = self._records.load(self._note)
        if known is None or orjson.loads(known)["run"] == self._run:  # else another job has taken over
            self._records.save(self._note, orjson.dumps({"run": self._run, "ended": True, "holding": None}).decode())

    def _let_go(self) -> None:
        self._spent, self._holding = self._holding or "", None
        self._gate.release()

    def _beat(self, now: float) -> None:
        self._beats += 1
        self._beat_at = now
        note = {"run": self._run, "beats": self._beats, "holding": self._holding}
        self._records.save(self._note, orjson.dumps(note).decode())


@dataclass(frozen=True, slots=True)
class Clock:
    """Time as arguments."""

    monotonic_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def is_running(records: CoordinationRecords, generation: int, clock: Clock = Clock()) -> bool:
    """Whether a job applies to a generation. It takes some seconds to see that one has died without a word, or none is there yet."""
    name = f"g{generation}.runner"
    first = records.load(name)
    deadline = clock.monotonic_s() + _SILENCE_S
    while clock.monotonic_s() < deadline:
        note = records.load(name)
        if _has_ended(note):
            return False
        if note != first:
            return True
        clock.sleep(_LOOK_S)
    return False


def stands_still(records: CoordinationRecords, generation: int, hold: str, clock: Clock = Clock()) -> bool:
    """Wait until a generation's job confirms this hold; False when there is no job.

    Raises Unavailable when it is busy with a batch for too long.
    """
    name = f"g{generation}.runner"
    last, moved_at = None, clock.monotonic_s()
    deadline = moved_at + _SWITCH_S
    while clock.monotonic_s() < deadline:
        note = records.load(name)
        if note is None or _has_ended(note):
            return False
        if orjson.loads(note)["holding"] == hold:
            return True
        if note != last:
            last, moved_at = note, clock.monotonic_s()
        elif clock.monotonic_s() - moved_at > _SILENCE_S:
            return False
        clock.sleep(_LOOK_S)
    raise Unavailable(f"generation {generation} is in the middle of a long batch", hint="try again in a moment")


def _has_ended(note: str | None) -> bool:
    return note is not None and bool(orjson.loads(note).get("ended"))


def behind(progress: Progress | None, wanted: Offsets) -> int:
    """How many records a generation lacks to have applied everything below these offsets, of the topics that it reads."""
    if progress is None:
        return sum(wanted.values())
    return sum(
        max(0, offset - progress.next_offsets.get((topic, partition), 0))
        for (topic, partition), offset in wanted.items()
        if topic in progress.topic_ids
    )


def switch(
    open_generation: Callable[[int], OpenedSink],
    target: int,
    *,
    log_ends: Callable[[], Offsets],
    clock: Clock = Clock(),
) -> int | None:
    """Make a generation the live one, and return which was it before. No reader sees a row go back.

    The live generation stands still until the new one has applied all that it may have shown. Its progress doesn't tell that: a job that
    failed or was killed in the middle of a batch has written rows of which only they know. So it is all that the log has by then.

    Raises LockstepError when the new one lacks something and doesn't catch up, and what ``Generations.switch`` raises.
    """
    with _opened(open_generation, target) as new:
        live = new.generations.live()
        if live == target:
            return live
        if live is None:
            new.generations.switch()
            return None
        _approach(new, target, live, log_ends, clock)
        with _opened(open_generation, live) as old:
            hold, hold_note = uuid.uuid4().hex, f"g{live}.hold"
            began = clock.monotonic_s()
            old.records.save(hold_note, hold)
            try:
                stands_still(old.records, live, hold, clock)
                wanted = log_ends()
                while (lacking := behind(new.generations.load_progress(), wanted)) > 0:
                    if clock.monotonic_s() - began > _SWITCH_S:
                        raise _behind(target, live, lacking)
                    clock.sleep(_LOOK_S)
                new.records.save(PREVIOUS, str(live))
                new.generations.switch()
            finally:
                old.records.save(hold_note, None)
    return live


def _approach(new: OpenedSink, target: int, live: int, log_ends: Callable[[], Offsets], clock: Clock) -> None:
    """Wait until the new generation has what the log has now: it may have fallen behind while it was compared."""
    wanted, began = log_ends(), clock.monotonic_s()
    last, moved_at = None, began
    while (lacking := behind(new.generations.load_progress(), wanted)) > 0:
        now = clock.monotonic_s()
        if lacking != last:
            last, moved_at = lacking, now
        if now - moved_at > _SWITCH_S or now - began > _APPROACH_S:
            raise _behind(target, live, lacking)
        clock.sleep(_LOOK_S)


PREVIOUS: Final = "previous"
"""The note that names the generation that was live before the last switch."""

_LAST: Final = "last"
"""The note that names a number that was given, the highest but for a few: where to begin to look for it."""

_PLANNED_AMONG: Final = 4
"""Generations of which nothing is there yet are among so many of the highest numbers."""


def _behind(target: int, live: int, lacking: int) -> LockstepError:
    return LockstepError(
        f"generation {target} lacks {lacking} events that generation {live} may have shown already: readers would see older rows",
        hint="let `lockstep apply` or `lockstep run` bring it up to date, then try again",
    )


@contextmanager
def _opened(open_generation: Callable[[int], OpenedSink], number: int) -> Iterator[OpenedSink]:
    opened = open_generation(number)
    try:
        yield opened
    finally:
        opened.sink.close()


def begin_generation(opened: OpenedSink, record: Record) -> int:
    """Begin a generation: it gets this record, and a number that none of this sink ever had."""
    while True:
        number = begin_unless_begun(opened, record)
        if number is not None:
            return number


def begin_unless_begun(opened: OpenedSink, record: Record) -> int | None:
    """The same, unless somebody else begins one at this moment: then None, and theirs is among the generations."""
    number = _highest_number(opened.records, opened.generations.numbers()) + 1
    if not opened.records.create(_record_note(number), record.to_json()):
        return None
    opened.records.save(_LAST, str(number))
    return number


def _highest_number(records: CoordinationRecords, existing: Iterable[int]) -> int:
    """The highest number that was ever given. ``existing`` are the generations that the destination has."""
    number = max([int(records.load(_LAST) or 0), *existing])
    while records.load(_record_note(number + 1)) is not None:
        number += 1
    return number
