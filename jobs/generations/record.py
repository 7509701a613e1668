"""A sink's generations: what each was built with, and what may be done with it.

``record.<n>`` is a coordination record of the destination. It says whose log the generation holds, which settings shape
its rows, and whether it is being built, in use, or on its way out. A running ``apply`` applies to those in use.
Creating the record takes the number. It stays when the generation is dropped, since states of that number may still be
there: no number is given twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Protocol

import orjson

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue
from sinks.contract import CoordinationRecords, OpenedSink
from sinks.registry import SinkSettings, changed_settings, definition, with_definition

_LAST: Final = "last"
"""The coordination record with about the highest number given: where the search for the highest one begins."""

_PLANNED_AMONG: Final = 4
"""Generations that only have a record are looked for among so many of the highest numbers."""


class Phase(StrEnum):
    """A generation's purpose. ``BUILDING``: ``rebuild`` builds it. ``READY``: ``apply`` keeps it up to date.
    ``RETIRED``: about to be dropped, or gone."""

    BUILDING = "building"
    READY = "ready"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a generation besides its rows. ``pipeline`` is whose log it holds, ``definition`` the settings
    that shape its rows. ``loaded``: it has what the log held when its build began. ``exposed``: readers may have seen
    it since, though it is still being built."""

    pipeline: str
    definition: Mapping[str, JsonValue]
    phase: Phase = Phase.READY
    loaded: bool = True
    created_at_ms: int = 0
    exposed: bool = False

    def to_json(self) -> str:
        return orjson.dumps(
            {
                "pipeline": self.pipeline,
                "definition": dict(self.definition),
                "phase": self.phase.value,
                "loaded": self.loaded,
                "created_at_ms": self.created_at_ms,
                "exposed": self.exposed,
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
            fields["exposed"],
        )

    def changed_settings(self, settings: SinkSettings) -> list[str]:
        """The names of settings that would give other rows today than the recorded ones. Raises LockstepError if the
        recorded settings don't fit these."""
        today = definition(settings)
        return sorted(changed_settings(definition(with_definition(settings, self.definition)), today))


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation as it is now. Generations from before there were records have none."""

    number: int
    is_live: bool
    record: Record | None

    @property
    def phase(self) -> Phase:
        return Phase.READY if self.record is None else self.record.phase

    @property
    def is_planned(self) -> bool:
        """Whether it is to be built or in use, even if nothing of it is there yet."""
        return self.record is not None and self.record.phase is not Phase.RETIRED


def list_generations(opened: OpenedSink) -> list[Generation]:
    """All generations of a sink, oldest first, planned ones included, whichever ``opened`` is bound to."""
    live = opened.generations.live()
    numbers = set(opened.generations.numbers())
    newest = max(numbers, default=0)
    likely = {*numbers, *range(max(1, newest - _PLANNED_AMONG + 1), newest + 2)}
    records = _AskedAtOnce(opened.records, [_LAST, *map(record_name, sorted(likely))])
    highest = _highest_number(records, numbers)
    planned = set(range(max(1, highest - _PLANNED_AMONG + 1), highest + 1))
    generations = [
        Generation(number, number == live, load_record(records, number)) for number in sorted(numbers | planned)
    ]
    return [generation for generation in generations if generation.number in numbers or generation.is_planned]


class _Loaded(Protocol):
    """Where records are read from."""

    def load(self, name: str) -> str | None: ...


class _AskedAtOnce:
    """Loads the records that are surely needed at once, and any other one on demand."""

    def __init__(self, records: CoordinationRecords, names: Sequence[str]) -> None:
        self._records = records
        self._names = frozenset(names)
        self._found = records.load_all(names)

    def load(self, name: str) -> str | None:
        return self._found.get(name) if name in self._names else self._records.load(name)


def load_record(records: _Loaded, generation: int) -> Record | None:
    """A generation's record; None if it has none."""
    text = records.load(record_name(generation))
    return None if text is None else Record.from_json(text)


def save_record(records: CoordinationRecords, generation: int, record: Record) -> None:
    records.save(record_name(generation), record.to_json())


def record_name(generation: int) -> str:
    return f"record.{generation}"


def set_phase(records: CoordinationRecords, generation: int, phase: Phase) -> None:
    """Change what may be done with a generation. Raises LockstepError if there is no such generation."""
    record = load_record(records, generation)
    if record is None:
        raise LockstepError(
            f"generation {generation} has no record", hint="`lockstep generations` lists those there are"
        )
    save_record(records, generation, replace(record, phase=phase, loaded=True))


def way_on(phase: Phase, sink: str, generation: int) -> str:
    """The command that makes a job apply to a generation of this phase again, in words. Pure."""
    match phase:
        case Phase.READY:
            return "`lockstep run` or `lockstep apply` starts it"
        case Phase.BUILDING:
            return f"`lockstep rebuild {sink}` goes on with it"
        case Phase.RETIRED:
            return f"`lockstep generations {sink} --drop {generation}` drops it for good"


def require_in_use(records: CoordinationRecords, name: str, generation: int) -> None:
    """Raise LockstepError if a generation is or will be dropped, or has lost its record: it must not be recreated."""
    record = load_record(records, generation)
    if record is None:  # it stays when a generation is dropped
        raise LockstepError(
            f"the store of sink {name!r} has lost its records of generation {generation}: it was emptied, or its"
            " bookkeeping was removed",
            hint="start the job again: it lists what is lost, and names the command that reads the log again",
        )
    if record.phase is Phase.RETIRED:
        raise LockstepError(
            f"generation {generation} of sink {name!r} was dropped", hint="`lockstep generations` lists those there are"
        )


def check_owner(sink: str, generation: int, record: Record, pipeline: str) -> None:
    """Raise LockstepError if a generation holds another pipeline's log."""
    if record.pipeline != pipeline:
        raise LockstepError(
            f"generation {generation} of sink {sink!r} is written by pipeline {record.pipeline!r}, not by {pipeline!r}",
            hint="two logs in one place would mix: give this sink another name or prefix, or, if the other"
            " pipeline is gone,"
            f" let its own configuration drop the generation: lockstep generations {sink} --drop {generation}",
        )


def begin_generation(opened: OpenedSink, record: Record) -> int:
    """Begin a generation: it gets this record, and a number that none of this sink ever had."""
    while True:
        number = begin_unless_begun(opened, record)
        if number is not None:
            return number


def begin_unless_begun(opened: OpenedSink, record: Record) -> int | None:
    """As ``begin_generation``, but None if somebody else just begins one, which is then among the generations."""
    number = _highest_number(opened.records, opened.generations.numbers()) + 1
    if not opened.records.create(record_name(number), record.to_json()):
        return None
    opened.records.save(_LAST, str(number))
    return number


def _highest_number(records: _Loaded, existing: Iterable[int]) -> int:
    """The highest number that was ever given. ``existing`` are the generations that the destination has."""
    number = max([int(records.load(_LAST) or 0), *existing])
    while records.load(record_name(number + 1)) is not None:
        number += 1
    return number
