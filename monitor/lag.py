"""How far each stage is behind the end of the WAL, and whether it moves. Pure: facts in, report out.

A generation of a sink has up to three stages. ``read`` is what its job has taken from Kafka: in a batch that ends by
itself, the whole batch; in one that goes on, what its task has received. ``applied`` is what the store has. ``visible``
is what queries find; only a live generation has it, in a store that shows applied rows only after a while.

Each figure has one definition:

* ``lsn``: the stage has everything that commits before it. None if unknown. A sink's isn't true of a table that joins,
  until the sink has all of it: ``reason`` names the table.
* ``bytes_behind``: WAL between ``lsn`` and the WAL's end, whoever wrote it.
* ``seconds_behind``: the stage has everything that was committed longer ago than that. 0 if it has all that the WAL
  holds. Based on commit times, including those of heartbeats, and on looks that found that a stage had everything.
* ``events_behind``: records between the sink's next offsets and the topics' ends, transaction markers included.
* ``state``: what the stage does with the output of the stage before it (``StageState``). Only the stage that hangs is
  ``stalled``; a stage that has everything of it is ``current``.
* ``since_ms``: since when it is in that state, by the observer's clock, in milliseconds since 1970. If it hangs: when
  it was last seen to move. None if unknown.
* ``reason`` and ``hint``: why, and the next step with the command to run. None if there is nothing to do.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from cdc.model.errors import LockstepError
from cdc.model.lsn import format_lsn
from cdc.model.times import time_text
from cdc.protocol.control_records import CaptureState, Gap
from cdc.stream.slot_watch import minutes_until_full
from jobs.consistency import KnownConsistency
from jobs.generations.status import JobState, JobStatus
from jobs.generations.view_state import ReportedView
from monitor.verification import Verification
from monitor.visible import Visible


class StageState(StrEnum):
    """``CURRENT``: it has all of the stage before it. ``BEHIND``: it lacks something, and moves or has just begun to.
    ``STALLED``: it lacks something and doesn't move. ``STARTING``: its process has begun, and prepares. ``BUILDING``:
    its first rows are being copied or loaded. ``PAUSED``: that is paused by order. ``STOPPED``, ``SILENT`` and
    ``ABSENT``: nobody works on it, as in ``jobs.generations.status.JobState``. ``UNKNOWN``: it couldn't be asked."""

    CURRENT = "current"
    BEHIND = "behind"
    STARTING = "starting"
    BUILDING = "building"
    PAUSED = "paused"
    ABSENT = "absent"
    SILENT = "silent"
    STALLED = "stalled"
    STOPPED = "stopped"
    UNKNOWN = "unknown"

    @property
    def needs_somebody(self) -> bool:
        """Whether it doesn't end by itself, and nobody has ordered it."""
        return self in (StageState.STOPPED, StageState.STALLED, StageState.SILENT, StageState.UNKNOWN)


_AT_WORK: Final = (JobState.RUNNING, JobState.STARTING)

_WORST_FIRST: Final = (
    StageState.STOPPED,
    StageState.STALLED,
    StageState.SILENT,
    StageState.UNKNOWN,
    StageState.ABSENT,
    StageState.PAUSED,
)


WAL_END: Final = "WAL end"
RECEIVED: Final = "received"
IN_KAFKA: Final = "in Kafka"
READ: Final = "read: "
APPLIED: Final = "applied: "
VISIBLE: Final = "visible: "
"""The names of a generation's stages are these, followed by its label."""


@dataclass(frozen=True, slots=True)
class SinkFacts:
    """What the progress of one generation of a sink says.

    ``watermark_lsn`` is 0 until something is known to be complete. ``records_behind`` counts the records between the
    sink's next offsets and the topics' ends, transaction markers included; ``records_held`` those among them that wait
    for held tables. ``job`` is its job's status, None if the sink couldn't be asked. At an earlier look
    it had everything committed before ``complete_ms``. ``has_begun``: something was applied to it, as far as is known.

    ``is_view``: it is the result of a query. ``view`` is what its job has reported of it, None without a report.
    ``joining`` are topics of tables that joined, of which the watermark isn't true yet. ``consistency`` is that of a
    consistent sink.

    ``read_lsn`` and ``read_commit_time_ms`` are the watermark of what its job has read, 0 if unknown. ``in_hand``
    counts the records that it has read and not applied, None if unknown. ``visible`` is None if queries find applied
    rows at once.
    """

    name: str
    generation: int
    is_live: bool
    watermark_lsn: int
    commit_time_ms: int
    records_behind: int | None
    rejected: int
    job: JobStatus | None = None
    complete_ms: int = 0
    records_held: int = 0
    has_begun: bool = True
    is_view: bool = False
    view: ReportedView | None = None
    joining: tuple[str, ...] = ()
    consistency: KnownConsistency | None = None
    read_lsn: int = 0
    read_commit_time_ms: int = 0
    in_hand: int | None = None
    visible: Visible | None = None

    @property
    def label(self) -> str:
        """The sink's name for the live generation; with the number for others."""
        return self.name if self.is_live else f"{self.name} g{self.generation}"


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """Positions of the source and of capture, all in its WAL. None if capture has never got that far.

    ``wal_status`` is the slot's in PostgreSQL's words, None without a slot. ``safe_wal_bytes`` is how much WAL can be
    written before the slot may be lost, None if the server sets no limit. ``wal_rate`` is in bytes a second, measured
    between two looks. ``gap`` is the newest one in capture's state. ``elsewhere`` says how this isn't the source that
    was published from, in phrases.

    ``walsender`` is what the server's process that sends WAL to capture waits for, in PostgreSQL's words: "" while it
    works, None if there is none. ``blocked_by`` names the holder of a lock that capture waits for, ``slot_waits_for``
    the owner of a transaction that a slot for a copy waits for.

    ``is_captured``: a capture of the slot is at work on its first copy or the stream. ``captured_silent_s`` is how long
    it has asked the source nothing, by the server's clock, None if unknown. ``reported_at`` changes with each status
    update from capture to the server, and so shows that it lives; None without a reader.

    ``complete_lsn`` is what a living capture has reported: everything that commits before it is in Kafka. It was read
    before ``published_lsn``. Everything committed before ``complete_ms`` lies before it. ``copied_from_lsn`` is where
    the stream will begin after a first copy that isn't complete. ``commit_interval_ms`` is the time between two commits
    of capture at low load, as of the newest progress record.
    """

    wal_end: int
    received_lsn: int | None
    published_lsn: int | None
    published_commit_time_ms: int | None
    slot_active: bool
    retained_bytes: int | None
    wal_status: str | None = "reserved"
    safe_wal_bytes: int | None = None
    wal_rate: float | None = None
    gap: Gap | None = None
    elsewhere: tuple[str, ...] = ()
    complete_lsn: int | None = None
    complete_ms: int = 0
    copied_from_lsn: int | None = None
    walsender: str | None = None
    blocked_by: str | None = None
    slot_waits_for: str | None = None
    is_captured: bool = False
    captured_silent_s: float | None = None
    reported_at: str | None = None
    commit_interval_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage; the module's docstring defines each figure. ``sink`` is the generation of an applied stage, None for
    all others, so that each generation comes once. ``of_sink`` is the generation of a stage beside it."""

    name: str
    lsn: int | None
    bytes_behind: int | None
    seconds_behind: float | None
    events_behind: int | None
    sink: SinkFacts | None = None
    state: StageState = StageState.UNKNOWN
    since_ms: int | None = None
    reason: str | None = None
    hint: str | None = None
    of_sink: SinkFacts | None = None

    @property
    def generation(self) -> SinkFacts | None:
        """The generation that it belongs to in any way; None for the stages of capture."""
        return self.sink or self.of_sink

    @property
    def sentence(self) -> str:
        """The state and the reason, with the next step on a line of its own."""
        since = "" if self.since_ms is None else f" since {time_text(self.since_ms)}"
        reason = "" if self.reason is None else f": {self.reason}"
        return f"{self.name}: {self.state.value}{since}{reason}" + ("" if self.hint is None else f"\n    {self.hint}")

    def to_json(self) -> dict[str, Any]:
        """The stage in the document of the report. The applied one also has what is known of the generation."""
        of = self.generation
        document: dict[str, Any] = {"stage": self.name, "lsn": None if self.lsn is None else format_lsn(self.lsn)}
        document |= {name: getattr(self, name) for name in ("bytes_behind", "seconds_behind", "events_behind")}
        document |= {"state": self.state.value}
        document |= {name: getattr(self, name) for name in ("since_ms", "reason", "hint")}
        if of is not None:
            document |= {"sink": of.name, "generation": of.generation, "live": of.is_live}
        if self.sink is not None:
            parts = {"job": self.sink.job, "view": self.sink.view, "consistent": self.sink.consistency}
            document |= {name: None if part is None else part.to_json() for name, part in parts.items()}
        return document


@dataclass(frozen=True, slots=True)
class LagReport:
    """All stages, in the order of the flow. ``retained_bytes`` is the WAL that the slot makes the server retain.

    ``broken`` says in sentences why capture can never go on. ``wal_status``, ``safe_wal_bytes`` and ``wal_rate`` are as
    in ``SourceFacts``. After ``minutes_until_full`` the slot is lost, if nobody reads it and WAL is written at that
    rate. ``gap`` is the newest gap: what never came through the slot.

    By the label of a generation: ``rejected`` counts every rejection ever; ``open_rejections`` counts the rejected rows
    that nothing has replaced yet, without the ``unreadable_dead_letters``; ``rebuild_needed`` names the settings of a
    live generation that differ from today's configuration; ``verified`` is a live generation's last comparison with the
    source.

    ``unanswered`` says, by a sink's name, why it couldn't be asked; its stages are unknown. ``paused_copies`` are
    tables with a paused copy: no sink with them gets further meanwhile. ``first_copy_paused``: the whole first copy is
    paused. ``first_copy_left``: it isn't complete, and nobody works on it. ``refused_rows`` counts the rows with an
    open rejection in the targets of extensions, by name. ``commit_interval_ms`` is as in ``SourceFacts``.
    """

    stages: tuple[Stage, ...]
    slot_active: bool | None
    retained_bytes: int | None
    rejected: Mapping[str, int]
    open_rejections: Mapping[str, int] = field(default_factory=dict)
    unreadable_dead_letters: int = 0
    refused_rows: Mapping[str, int] = field(default_factory=dict)
    rebuild_needed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unanswered: Mapping[str, LockstepError] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    wal_status: str | None = None
    safe_wal_bytes: int | None = None
    wal_rate: float | None = None
    minutes_until_full: float | None = None
    gap: Gap | None = None
    paused_copies: tuple[str, ...] = ()
    first_copy_paused: bool = False
    first_copy_left: bool = False
    silent_servers: Mapping[str, LockstepError] = field(default_factory=dict)
    verified: Mapping[str, Verification] = field(default_factory=dict)
    commit_interval_ms: int | None = None

    @property
    def worst(self) -> Stage | None:
        """The stage that needs somebody most, of several the first in the flow; None if all is well. A generation that
        isn't live needs nobody unless it has stopped."""
        stages = [
            stage
            for stage in self.stages
            if stage.state in _WORST_FIRST
            and (stage.state is not StageState.UNKNOWN or stage.reason is not None)
            and (stage.generation is None or stage.generation.is_live or stage.state is StageState.STOPPED)
        ]
        # If all stages of a generation are so, as without a job, the applied one says why.
        return min(stages, key=lambda stage: (_WORST_FIRST.index(stage.state), stage.of_sink is not None), default=None)

    @property
    def needs_somebody(self) -> bool:
        """Whether something doesn't end by itself, and nobody has ordered it."""
        is_bad = self.worst is not None and self.worst.state.needs_somebody
        has_ended = any(job.needs_somebody for job in self.idle.values())
        jobs = [stage.sink.job for stage in self.stages if stage.sink is not None and stage.sink.job is not None]
        lacks_tables = any(job.has_failed_tables for job in jobs)
        return bool(self.unanswered or self.broken) or self.first_copy_left or is_bad or has_ended or lacks_tables

    @property
    def views(self) -> dict[str, ReportedView]:
        """What jobs have reported of their views, by the label of a generation."""
        sinks = [stage.sink for stage in self.stages if stage.sink is not None]
        return {sink.label: sink.view for sink in sinks if sink.view is not None}

    @property
    def consistencies(self) -> dict[str, KnownConsistency]:
        """As of when the tables of consistent sinks are, by the label of a generation."""
        sinks = [stage.sink for stage in self.stages if stage.sink is not None]
        return {sink.label: sink.consistency for sink in sinks if sink.consistency is not None}

    @property
    def building_views(self) -> list[str]:
        """A sentence for each view whose state is being built."""
        return [
            f"{stage.sink.label}: {stage.reason}"
            for stage in self.stages
            if stage.sink is not None and stage.sink.is_view and stage.state is StageState.BUILDING and stage.reason
        ]

    @property
    def held_by_copies(self) -> list[str]:
        """A sentence for each paused copy."""
        first = "the first copy is paused, and the stream begins after it: `lockstep snapshot resume`"
        return [first] * self.first_copy_paused + [
            f"the copy of {name} is paused, and sinks with this table get no further: `lockstep snapshot resume {name}`"
            for name in self.paused_copies
        ]

    @property
    def idle(self) -> dict[str, JobStatus]:
        """The generations without a job, by label. If a generation isn't live, only an error counts."""
        jobs = [(stage.sink, stage.sink.job) for stage in self.stages if stage.sink is not None and stage.sink.job]
        return {
            sink.label: job
            for sink, job in jobs
            if job.state is JobState.STOPPED or (sink.is_live and job.state not in _AT_WORK)
        }

    def to_json(self) -> dict[str, Any]:
        """The document that ``lockstep lag --json`` prints; LSNs are text, as PostgreSQL writes them."""
        return {
            "stages": [stage.to_json() for stage in self.stages],
            "worst": None if self.worst is None else self.worst.name,
            "slot_active": self.slot_active,
            "retained_bytes": self.retained_bytes,
            "wal_status": self.wal_status,
            "safe_wal_bytes": self.safe_wal_bytes,
            "wal_bytes_per_s": self.wal_rate,
            "minutes_until_full": self.minutes_until_full,
            "commit_interval_ms": self.commit_interval_ms,
            "broken": list(self.broken),
            "paused_copies": list(self.paused_copies),
            "first_copy_paused": self.first_copy_paused,
            "first_copy_left": self.first_copy_left,
            "gap": None if self.gap is None else _gap_json(self.gap),
            "rejected": dict(self.rejected),
            "open_rejections": dict(self.open_rejections),
            "unreadable_dead_letters": self.unreadable_dead_letters,
            "refused_rows": dict(self.refused_rows),
            "rebuild_needed": {label: list(names) for label, names in self.rebuild_needed.items()},
            "unanswered": {name: error.message for name, error in self.unanswered.items()},
            "silent_servers": {name: error.message for name, error in self.silent_servers.items()},
            "verified": {label: each.to_json() for label, each in self.verified.items()},
        }


def report(source: SourceFacts, sinks: Sequence[SinkFacts], *, now_ms: int) -> LagReport:
    """Compare every position with the end of the WAL."""
    age_s = _age_s(source.published_commit_time_ms, source.complete_ms, now_ms)
    in_kafka = source.published_lsn
    if in_kafka is not None and source.complete_lsn is not None:
        in_kafka = max(in_kafka, source.complete_lsn)
    received = source.received_lsn
    if received is None or (in_kafka is not None and in_kafka > received):
        received = in_kafka  # what was published was received
    stages = [
        Stage(WAL_END, source.wal_end, 0, 0.0, None, state=StageState.CURRENT),
        _stage(RECEIVED, received, source.wal_end, age_s, None),
        _stage(IN_KAFKA, in_kafka, source.wal_end, age_s, None),
    ]
    for sink in sinks:
        is_known = sink.watermark_lsn > 0
        applied, complete_ms = sink.watermark_lsn, sink.complete_ms
        if has_all_of_kafka(source, sink):
            applied, complete_ms = max(applied, source.complete_lsn or 0), max(complete_ms, source.complete_ms)
        sink_age_s = _age_s(sink.commit_time_ms, complete_ms, now_ms) if is_known else None
        stage = _stage(
            f"{APPLIED}{sink.label}",
            applied if is_known else None,
            source.wal_end,
            sink_age_s,
            sink.records_behind,
            sink,
        )
        stages.append(_read_stage(stage, sink, source.wal_end, complete_ms, now_ms))
        stages.append(stage)
        if sink.visible is not None and sink.is_live:
            stages.append(_visible_stage(stage, sink, sink.visible, source.wal_end, now_ms))
    return LagReport(
        tuple(stages),
        source.slot_active,
        source.retained_bytes,
        {sink.label: sink.rejected for sink in sinks},
        broken=tuple(broken(source)),
        wal_status=source.wal_status,
        safe_wal_bytes=source.safe_wal_bytes,
        wal_rate=source.wal_rate,
        minutes_until_full=minutes_until_full(source.safe_wal_bytes, source.wal_rate),
        gap=source.gap,
        commit_interval_ms=source.commit_interval_ms,
    )


def _read_stage(applied: Stage, sink: SinkFacts, wal_end: int, complete_ms: int, now_ms: int) -> Stage:
    """Everything applied was read too."""
    events = None if applied.events_behind is None else max(0, applied.events_behind - (sink.in_hand or 0))
    stage = replace(applied, name=f"{READ}{sink.label}", events_behind=events, sink=None, of_sink=sink)
    if sink.read_lsn <= (applied.lsn or 0):
        return stage
    age_s = _age_s(sink.read_commit_time_ms, complete_ms, now_ms)
    behind = max(0, wal_end - sink.read_lsn)
    return replace(stage, lsn=sink.read_lsn, bytes_behind=behind, seconds_behind=0.0 if behind == 0 else age_s)


def _visible_stage(applied: Stage, sink: SinkFacts, visible: Visible, wal_end: int, now_ms: int) -> Stage:
    stage = replace(applied, name=f"{VISIBLE}{sink.label}", sink=None, of_sink=sink)
    if visible.is_all:
        return stage
    known = None not in (applied.events_behind, visible.unseen)
    events = (applied.events_behind or 0) + (visible.unseen or 0) if known else None
    if not visible.lsn:
        return replace(stage, lsn=None, bytes_behind=None, seconds_behind=None, events_behind=events)
    age_s, behind = _age_s(visible.commit_time_ms, 0, now_ms), max(0, wal_end - visible.lsn)
    return replace(stage, lsn=visible.lsn, bytes_behind=behind, seconds_behind=age_s, events_behind=events)


def elsewhere(state: CaptureState, *, system_id: str | None, database: str) -> tuple[str, ...]:
    """How a source isn't the one published from, in phrases. Pure. ``system_id`` is None if our role may not read
    it."""
    compared = (
        ("system identifier", state.system_id, system_id or state.system_id),
        ("database", state.database, database),
    )
    return tuple(f"{what} was {was}, is {now}" for what, was, now in compared if was != now)


def has_all_of_kafka(source: SourceFacts, sink: SinkFacts) -> bool:
    """Whether the sink has applied all that was in Kafka when capture was asked. Pure."""
    published = source.published_lsn
    if published is None or sink.joining:
        return False
    return 0 < published <= sink.watermark_lsn and sink.records_behind == 0


def _gap_json(gap: Gap) -> dict[str, Any]:
    return {
        "from_lsn": format_lsn(gap.from_lsn),
        "to_lsn": None if gap.is_open else format_lsn(gap.to_lsn),
        "noticed_ms": gap.noticed_ms,
        "reason": gap.reason,
    }


def broken(source: SourceFacts) -> Iterator[str]:
    """Why capture can never go on, in sentences. Pure."""
    published_lsn = source.published_lsn if source.published_lsn is not None else source.copied_from_lsn
    if published_lsn is None:
        return
    published = format_lsn(published_lsn)
    if source.elsewhere:  # its positions and its slots say nothing
        yield f"the source isn't the database that capture published from: {'; '.join(source.elsewhere)}"
        return
    if source.wal_end < published_lsn:
        yield (
            f"the source's WAL ends at {format_lsn(source.wal_end)}, but {published} was published: it was put back to"
            " an earlier moment, or it is another server"
        )
    if source.wal_status is None:
        yield f"the slot is gone: changes after {published} can't be read any more"
    elif source.wal_status == "lost":
        yield (
            "the slot is lost, since it held back too much WAL or was idle for too long:"
            f" changes after {published} can't be read any more"
        )


def _age_s(commit_time_ms: int | None, complete_ms: int, now_ms: int) -> float | None:
    return None if commit_time_ms is None else max(0, now_ms - max(commit_time_ms, complete_ms)) / 1000


def _stage(
    name: str, lsn: int | None, wal_end: int, age_s: float | None, events: int | None, sink: SinkFacts | None = None
) -> Stage:
    if lsn is None:
        return Stage(name, None, None, None, events, sink)
    behind = max(0, wal_end - lsn)
    return Stage(name, lsn, behind, 0.0 if behind == 0 else age_s, events, sink)
