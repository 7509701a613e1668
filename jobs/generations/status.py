"""Whether a job applies to a generation, and if not, since when and why: for commands that only look.

``g<n>.stopped`` is a coordination record of the destination. A job that ends with an error leaves the error there, and
the next job that gets to work removes it. So the reason outlives its process, wherever that ran.

A job that a newer one has ended leaves that there too: nobody asked it to stop, and once the newer one is gone,
somebody has to start a job. The newer job leaves the record in place, and the one after that removes it.
"""

from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import orjson

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from cdc.model.times import time_text
from jobs.generations.held_tables import HeldTable, held_tables_name, parse_held_tables
from jobs.generations.lease import (
    SYSTEM_CLOCK,
    Clock,
    LastBeat,
    heartbeat_name,
    is_running,
    last_beat,
    last_beat_of,
    newest_run,
    running_of,
)
from jobs.generations.read_so_far import ReadSoFar
from jobs.generations.record import Phase, Record, record_name, way_on
from jobs.generations.starting import STARTING_NAME
from sinks.contract import CoordinationRecords

_NEWER: Final = "newer_run"
"""The field with the newer job, if one has ended the job."""

_APPLIES: Final = way_on(Phase.READY, "", 0)

_OF_THE_SINK: Final = 0
"""Generations are counted from 1; this one stands for the last heartbeat of a driver that starts."""

_FRESH_MS: Final = 15_000
"""One look is enough for a heartbeat from about now. The clocks of two machines may differ, so any other needs two."""


class JobState(StrEnum):
    """``RUNNING``: a job applies to the generation. ``STARTING``: one is on its way. ``STOPPED``: it ended with an
    error, or a newer job ended it and has ended since; somebody has to act. ``SILENT``: it ended silently, or hangs.
    ``ABSENT``: none runs, since none was started or the last was asked to stop."""

    RUNNING = "running"
    STARTING = "starting"
    STOPPED = "stopped"
    SILENT = "silent"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What is known of a generation's job. ``since_ms`` is the start of its state, by the job's own clock; None if
    unknown.

    ``reason`` and ``hint`` are those of a stopped job's error. ``last_sign_ms`` is the time of a running job's last
    heartbeat, by its own clock. ``held_tables`` are the tables that it holds. ``read`` is what a running job has
    read. ``start`` says what starts a job, which depends on the generation's phase.
    """

    state: JobState
    since_ms: int | None = None
    reason: str | None = None
    hint: str | None = None
    last_sign_ms: int | None = field(default=None, compare=False)
    held_tables: Mapping[TableName, HeldTable] = field(default_factory=dict)
    read: ReadSoFar | None = field(default=None, compare=False)
    start: str = _APPLIES

    @property
    def start_again(self) -> str:
        """``start`` for a job that has run."""
        return f"{self.start} again" if self.start == _APPLIES else self.start

    @property
    def needs_somebody(self) -> bool:
        return self.state in (JobState.STOPPED, JobState.SILENT)

    @property
    def has_failed_tables(self) -> bool:
        return any(held.has_failed for held in self.held_tables.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "state": self.state.value,
            "since_ms": self.since_ms,
            "reason": self.reason,
            "hint": self.hint,
            "tables": {str(table): held.to_json() for table, held in sorted(self.held_tables.items())},
        }

    def held_sentences(self, sink: str) -> list[str]:
        """A sentence for each table that is held, those that need somebody first."""
        return [held.sentence(sink, str(table)) for table, held in self.by_need]

    @property
    def by_need(self) -> list[tuple[TableName, HeldTable]]:
        """The tables that are held, those that need somebody first."""
        return sorted(self.held_tables.items(), key=lambda item: (not item[1].has_failed, item[0]))

    def sentence(self, label: str) -> str | None:
        """A sentence about the generation's job; None if one runs."""
        start = self.start
        match self.state:
            case JobState.STOPPED:
                hint = "" if self.hint is None else f"\n    {self.hint}"
                return (
                    f"{label} stopped at {time_text(self.since_ms)}: {self.reason}{hint}\n    then {self.start_again}"
                )
            case JobState.SILENT:
                last = f"its last sign of life was at {time_text(self.since_ms)}"
                return f"{label}: its job ended without a word, or hangs; {last}: {start}"
            case JobState.STARTING:
                return f"{label}: its job is starting since {time_text(self.since_ms)}"
            case JobState.ABSENT if self.since_ms is None:
                return f"{label}: no job has begun to apply to it: {start}"
            case JobState.ABSENT:
                return f"{label}: no job applies to it since {time_text(self.since_ms)}: {start}"
            case _:
                return None


def job_status(records: CoordinationRecords, generation: int, *, now_ms: int, clock: Clock = SYSTEM_CLOCK) -> JobStatus:
    """What is known of a generation's job now. Raises and takes as long as ``job_statuses``."""
    return job_statuses(records, [generation], now_ms=now_ms, clock=clock)[generation]


def job_statuses(
    records: CoordinationRecords,
    generations: Collection[int],
    *,
    now_ms: int,
    sink: str = "SINK",
    still: MutableMapping[int, LastBeat] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> dict[int, JobStatus]:
    """What is known of the jobs of a sink's generations now. Raises what the destination raises. Takes some seconds if
    a last heartbeat isn't from about now. ``still`` has those that didn't move, for a caller that looks repeatedly: the
    same one isn't waited for twice. ``sink`` is the name to use in commands."""
    still = {} if still is None else still
    names = (heartbeat_name, held_tables_name, record_name)
    found = records.load_all([*(name(number) for number in generations for name in names), STARTING_NAME])
    starting = _starting(found.get(STARTING_NAME), still, now_ms=now_ms)
    beats = {number: last_beat_of(found.get(heartbeat_name(number))) for number in generations}
    alive = {number: beat for number, beat in beats.items() if beat is not None and beat.is_alive}
    fresh = {number for number, beat in alive.items() if abs(now_ms - beat.at_ms) < _FRESH_MS}
    doubtful = [number for number, beat in alive.items() if number not in fresh and still.get(number) != beat]
    running = fresh | running_of(records, doubtful, clock)
    still.update({number: beat for number, beat in alive.items() if number not in running})
    return {
        number: replace(
            JobStatus(
                JobState.RUNNING,
                last_sign_ms=None if beat is None else beat.at_ms,
                read=None if beat is None else beat.read,
            )
            if number in running
            else _ended(records, number, beat, starting),
            held_tables=parse_held_tables(found.get(held_tables_name(number))),
            start=_start(sink, number, found.get(record_name(number))),
        )
        for number, beat in beats.items()
    }


def _start(sink: str, generation: int, record: str | None) -> str:
    return _APPLIES if record is None else way_on(Record.from_json(record).phase, sink, generation)


def _starting(text: str | None, still: MutableMapping[int, LastBeat], *, now_ms: int) -> JobStatus | None:
    """The status while a driver is about to begin the sink's jobs. None without a record that is recent, or changes."""
    if text is None:
        return None
    fields = orjson.loads(text)
    seen, sign = still.get(_OF_THE_SINK), LastBeat(fields["at_ms"], is_alive=True)
    still[_OF_THE_SINK] = sign
    is_alive = abs(now_ms - fields["at_ms"]) < _FRESH_MS or (seen is not None and seen != sign)
    return JobStatus(JobState.STARTING, fields["since_ms"], last_sign_ms=fields["at_ms"]) if is_alive else None


def _ended(
    records: CoordinationRecords, generation: int, beat: LastBeat | None, starting: JobStatus | None
) -> JobStatus:
    """The status without a running job. An error takes precedence over a restart, which may end with the same error."""
    stop = _load_stop(records, generation)
    # If a newer job ended silently, its last heartbeat says more.
    if stop is not None and not (_NEWER in stop and beat is not None and beat.is_alive):
        return JobStatus(JobState.STOPPED, stop["since_ms"], stop["reason"], stop["hint"])
    if starting is not None:
        return starting
    if beat is None:
        return JobStatus(JobState.ABSENT)
    return JobStatus(JobState.SILENT if beat.is_alive else JobState.ABSENT, beat.at_ms)


def save_stop(
    records: CoordinationRecords, generation: int, error: LockstepError, *, now_ms: int, clock: Clock = SYSTEM_CLOCK
) -> None:
    """Store why a job has ended; the first time of the same error stays. Raises what the destination raises. If another
    job applies to the generation, nothing has stopped, and nothing is stored. Finding that out may take seconds."""
    beat = last_beat(records, generation)
    if beat is not None and beat.is_alive and is_running(records, generation, clock):
        return
    before = _load_stop(records, generation) or {}
    since_ms = before["since_ms"] if before.get("reason") == error.message else now_ms
    stop = {"since_ms": since_ms, "reason": error.message, "hint": error.hint}
    records.save(_name(generation), orjson.dumps(stop).decode())


def clear_stop(records: CoordinationRecords, generation: int) -> None:
    """The newest job is at work. A job that it has ended stays stored. Raises what the destination raises."""
    stop = _load_stop(records, generation)
    if stop is not None and (_NEWER not in stop or stop[_NEWER] != newest_run(records, generation)):
        records.save(_name(generation), None)


def save_takeover(records: CoordinationRecords, generation: int, *, now_ms: int) -> None:
    """Store that the newest job has ended an older one. A stored error stays, since it ended the newest one. Raises
    what the destination raises."""
    if has_error(records, generation):
        return
    stop = {
        "since_ms": now_ms,
        "reason": "a newer job had taken its place, and doesn't run any more",
        "hint": "a `lockstep apply` that still runs goes on with it within seconds; stop a `lockstep run` whose `apply`"
        " has ended",
        _NEWER: newest_run(records, generation),
    }
    records.save(_name(generation), orjson.dumps(stop).decode())


def clear_takeover(records: CoordinationRecords, generation: int) -> None:
    """Call when a job that a newer one had ended was asked to stop. Raises what the destination raises."""
    if _NEWER in (_load_stop(records, generation) or {}):
        records.save(_name(generation), None)


def has_error(records: CoordinationRecords, generation: int) -> bool:
    """Whether an error of a generation's job is stored. Raises what the destination raises."""
    stop = _load_stop(records, generation)
    return stop is not None and _NEWER not in stop


def _load_stop(records: CoordinationRecords, generation: int) -> dict[str, Any] | None:
    text = records.load(_name(generation))
    return None if text is None else orjson.loads(text)


def _name(generation: int) -> str:
    return f"g{generation}.stopped"
