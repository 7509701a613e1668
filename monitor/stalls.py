"""Which stages move and which hang: looks in, states out. Pure, clocks are arguments.

A stage hangs if it lacks something of the stage before it and doesn't move for ``STALLED_S``. The stages after it have
everything that there is to have, so only the one that hangs is named.

A large batch moves only at its end, so it gets time for its rows; but not if its job gives no sign of life, or waits
for a lock. A capture that gives signs of life and takes nothing is busy otherwise: it reads a whole topic, or waits for
a slot.
"""

from collections.abc import Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final

from jobs.generations.status import JobState, JobStatus
from monitor.lag import (
    APPLIED,
    IN_KAFKA,
    READ,
    RECEIVED,
    VISIBLE,
    WAL_END,
    LagReport,
    SinkFacts,
    SourceFacts,
    Stage,
    StageState,
)

STALLED_S: Final = 5.0
"""A stage that lacks something and doesn't move for so long hangs."""

CAPTURE_SILENT_S: Final = 30.0
"""A capture that reads no slot and asks the source nothing for so long hangs: at work it asks every ten seconds."""

CAPTURE_PREPARES_S: Final = 300.0
"""A capture that has begun and comes no closer to its slot for so long needs somebody. Before it reads the slot it may
read a whole topic, which takes minutes for a large one."""

LONG_SILENT_S: Final = 60.0
"""A process that was silent for less may be waiting for a processor, so the hint isn't to end it."""

_PACE_MAX_S: Final = 60.0
"""Longer intervals between moves don't set a pace: the stage hung meanwhile."""

_CURRENT_S: Final = 2.0
"""A stage that has everything committed longer ago than this is current: something is always on its way."""

_ROWS_PER_S: Final = 5000
_ROWS_MAX: Final = 300_000
"""A batch may take as long as its rows take at this rate, but no longer than so many rows."""

_STARTING_S: Final = 30.0
"""Extra time for a job's first batch, for which Spark and the sink's code are loaded."""

_FIRST_ROWS_S: Final = 600.0
"""How long the first rows of a generation may take. In a view, nothing is applied before its state is built."""

_STARTS: Final = "its driver has begun, and loads Spark and the sink's code"
_START: Final = "`lockstep run` or `lockstep capture` starts it"
_CAPTURE_AGAIN: Final = (
    "look into its log: where that has nothing new for minutes, end its process, and start `lockstep run` again;"
    " it goes on where it was"
)
_JOB_AGAIN: Final = (
    "look into the log of `lockstep apply`: where that has nothing new for minutes, end its process, and start"
    " `lockstep run` again; it goes on where it was"
)
_LOOK_AGAIN: Final = (
    "look again in a minute: a machine that is busy may keep it waiting; `lockstep doctor` looks at more"
)
_REFRESH: Final = (
    "see that refresh_interval of its indexes isn't off (`GET INDEX/_settings`): Lockstep sets it from"
    " refresh_interval_ms of the sink when its job starts"
)
_LOOK_AT_SERVERS: Final = "`lockstep doctor` looks at every server and says what to do"


@dataclass(frozen=True, slots=True)
class Look:
    """One look. ``at_s`` is on a monotonic clock, ``now_ms`` the time of day.

    ``signs`` has, by a stage's name, a value that changes whenever it moves. ``slot`` is the slot's name. ``copying``:
    a table of the pipeline waits for its copy. ``left_out`` has the labels of generations that leave out a part of the
    log on purpose. ``blocked`` says, by label, who holds the lock that the job waits for. ``refresh_s`` says, by a
    sink's name, after how many seconds its store should show what was applied. ``slowdown``: how many times as long as
    on an idle machine everything takes here now.
    """

    at_s: float
    now_ms: int
    source: SourceFacts
    signs: Mapping[str, Hashable]
    slot: str = ""
    copying: bool = False
    left_out: Set[str] = frozenset()
    blocked: Mapping[str, str] = field(default_factory=dict)
    refresh_s: Mapping[str, float] = field(default_factory=dict)
    silent_kafka: str | None = None
    slowdown: float = 1.0

    @property
    def stalled_s(self) -> float:
        """How long a stage may stand still before it hangs: on a busy machine everything takes longer."""
        return STALLED_S * self.slowdown


@dataclass(slots=True)
class _Seen:
    """``moved_s``: when the sign was last seen to change, or the stage to lack nothing.

    ``blocker`` has held a lock since then that the stage waited for; a job that gives up and tries again waits only at
    times. ``has_ended``: its job was seen not to run, or to be silent for long, and it hasn't moved since. ``pace_s``:
    the recent time from one move to the next while it lacked something.
    """

    sign: Hashable
    moved_s: float
    moved_ms: int
    blocker: str | None = None
    life: Hashable | None = None
    life_s: float = 0.0
    has_ended: bool = False
    pace_s: float = 0.0


class Stalls:
    """What was seen of each stage, by name."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._states: dict[str, tuple[StageState, int]] = {}
        # The progress of a capture that prepares to read its slot, and since when it is unchanged.
        self._prepares: tuple[Hashable, float] | None = None

    def judge(self, report: LagReport, look: Look) -> LagReport:
        """The report with the state of each stage, given this look too."""
        stages: list[Stage] = []
        of_sinks: dict[str, tuple[Stage, Stage | None]] = {}
        for stage in report.stages:
            if stage.sink is not None:
                of_sinks[stage.sink.label] = self._sink(stage, look, report)
        for stage in report.stages:
            if stage.sink is not None:
                judged, _ = of_sinks[stage.sink.label]
            elif stage.of_sink is not None:
                applied, hanging = of_sinks[stage.of_sink.label]
                if stage.name.startswith(VISIBLE):
                    judged = self._visible(stage, look, applied)
                else:
                    judged = _read(stage, applied, hanging)
            elif stage.name == RECEIVED:
                judged = self._received(stage, look, report)
            elif stage.name == IN_KAFKA:
                judged = self._in_kafka(stage, look, report, received=stages[-1])
            else:
                judged = replace(stage, state=StageState.CURRENT)
            stages.append(self._since(judged, look))
        return replace(report, stages=tuple(stages), first_copy_left=_is_left(stages, look))

    def _received(self, stage: Stage, look: Look, report: LagReport) -> Stage:
        if report.slot_active or not look.source.is_captured:
            self._prepares = None
        if report.broken:
            return _as(stage, StageState.STOPPED, reason=report.broken[0], hint="`lockstep doctor` says what to do")
        if not report.slot_active:
            return self._unread(stage, look, report)
        is_at_work = look.source.walsender == ""
        silent_s = self._silent_s(stage, look, look.source.reported_at)
        still_s = self._still(
            stage, look, lacks=bool(stage.bytes_behind) and not is_at_work, blocker=look.source.blocked_by
        )
        if still_s < look.stalled_s:
            return _moving(stage)
        blocker = self._seen[stage.name].blocker
        if blocker is not None:
            reason = f"capture waits for a lock at the source that is held by {blocker}"
            return _as(stage, StageState.STALLED, reason=reason, hint="end that transaction: capture goes on by itself")
        taken = f"WAL is written, and capture has taken nothing of it for {still_s:.0f} s"
        if look.source.reported_at is not None and silent_s < look.stalled_s:
            waits = f", until {look.source.slot_waits_for} ends its transaction" if look.source.slot_waits_for else ""
            reason = f"{taken}, but gives signs of life: it reads a whole topic, or waits for a slot{waits}"
            if look.silent_kafka is not None:
                reason = f"{taken}, but gives signs of life: it waits for Kafka"
            return _as(stage, StageState.BEHIND, reason=reason)
        reason = f"{taken}, and given no sign of life"
        if (still_s if look.source.reported_at is None else silent_s) < LONG_SILENT_S:
            return _as(stage, StageState.STALLED, reason=reason, hint=_LOOK_AGAIN)
        return _as(stage, StageState.STALLED, reason=f"{reason}: its process hangs", hint=_CAPTURE_AGAIN)

    def _unread(self, stage: Stage, look: Look, report: LagReport) -> Stage:
        """The stage when nobody reads the slot."""
        source, is_there = look.source, look.source.is_captured
        hung_since_ms = self._hung_since_ms(stage)
        self._still(stage, look, lacks=False)
        silent_s = (source.captured_silent_s or 0.0) if is_there else 0.0
        explained = _first(
            stage,
            (
                report.first_copy_paused,
                StageState.PAUSED,
                "the first copy is paused, and the stream begins after it",
                "`lockstep snapshot resume` has it go on",
            ),
            (
                silent_s >= CAPTURE_SILENT_S,
                StageState.SILENT,
                f"capture is there, doesn't read slot {look.slot}, and has asked the source nothing for"
                f" {silent_s:.0f} s: its process hangs",
                _CAPTURE_AGAIN,
            ),
            (
                is_there and look.silent_kafka is not None,
                StageState.UNKNOWN,
                f"capture is there and doesn't read slot {look.slot}: Kafka has what it is at work on",
                _LOOK_AT_SERVERS,
            ),
            (
                is_there and source.copied_from_lsn is not None,
                StageState.BUILDING,
                "the first copy isn't complete, and the stream begins after it",
                None,
            ),
        )
        if explained is not None:
            return explained
        if hung_since_ms is not None:
            reason = (
                f"capture hung, and no process reads slot {look.slot} since: PostgreSQL gave it up, or it was killed"
            )
            return replace(_as(stage, StageState.SILENT, reason=reason, hint=_CAPTURE_AGAIN), since_ms=hung_since_ms)
        if is_there:
            return self._preparing(stage, look)
        reason = f"no capture reads slot {look.slot}"
        if source.copied_from_lsn is not None:
            reason = "the first copy isn't complete, and no capture is at work on it"
        elif stage.lsn is None and look.silent_kafka is None:
            reason = "capture has never published anything"
        return _as(stage, StageState.ABSENT, reason=reason, hint=_START)

    def _preparing(self, stage: Stage, look: Look) -> Stage:
        """The stage of a capture that has begun. One that is started again and again comes no closer either."""
        source = look.source
        sign = source.wal_status, stage.lsn, source.slot_waits_for, source.blocked_by
        if self._prepares is None or self._prepares[0] != sign:
            self._prepares = sign, look.at_s
        still_s = look.at_s - self._prepares[1]
        if still_s < CAPTURE_PREPARES_S * look.slowdown:
            reason = f"capture has begun, and prepares to read slot {look.slot}"
            return _as(stage, StageState.STARTING, reason=reason)
        reason = f"capture has begun, and hasn't come to read slot {look.slot} for {still_s:.0f} s"
        return _as(stage, StageState.ABSENT, reason=reason, hint="its log says what it waits for, or why it ends")

    def _hung_since_ms(self, stage: Stage) -> int | None:
        """Since when the stage hung at the last look, or had hung when it lost its connection; else None. A capture
        that waits for a lock doesn't hang, and may have been told to stop."""
        state, since_ms = self._states.get(stage.name, (StageState.CURRENT, 0))
        seen = self._seen.get(stage.name)
        waits = seen is not None and seen.blocker is not None
        return since_ms if state is StageState.SILENT or (state is StageState.STALLED and not waits) else None

    def _in_kafka(self, stage: Stage, look: Look, report: LagReport, *, received: Stage) -> Stage:
        if look.silent_kafka is not None:
            self._still(stage, look, lacks=False)
            return _as(stage, StageState.UNKNOWN, reason=look.silent_kafka, hint=_LOOK_AT_SERVERS)
        is_held_up = received.state not in (StageState.CURRENT, StageState.BEHIND)
        lacks = None not in (stage.lsn, received.lsn) and (stage.lsn or 0) < (received.lsn or 0)
        still_s = self._still(stage, look, lacks=lacks and not is_held_up)
        if stage.lsn is None or (is_held_up and not lacks):
            state = StageState.BUILDING if received.state is StageState.BUILDING else StageState.CURRENT
            return _as(stage, state if report.slot_active or stage.lsn is not None else received.state)
        if still_s < look.stalled_s:
            return _moving(stage)
        reason = f"capture has received more, and committed nothing to Kafka for {still_s:.0f} s"
        return _as(stage, StageState.STALLED, reason=reason, hint=_LOOK_AT_SERVERS)

    def _sink(self, stage: Stage, look: Look, report: LagReport) -> tuple[Stage, Stage | None]:
        """The applied stage of a generation; and if only reading hangs, the stage that hangs."""
        judged = self._applied(stage, look, report)
        sink = stage.sink
        assert sink is not None
        seen = self._seen.get(stage.name)
        if judged.state is not StageState.STALLED or seen is None or seen.blocker is not None or sink.in_hand != 0:
            return judged, None
        # With nothing in hand, it has all of the stage that hangs.
        silent_s = self._silent_s(stage, look, None if sink.job is None else sink.job.last_sign_ms)
        still_s = look.at_s - seen.moved_s
        reason = _why_unread(still_s) if silent_s < look.stalled_s else (judged.reason, judged.hint)
        hanging = replace(
            _as(stage, StageState.STALLED, reason=reason[0], hint=reason[1]),
            since_ms=seen.moved_ms,
        )
        return _as(stage, StageState.CURRENT), hanging

    def _visible(self, stage: Stage, look: Look, applied: Stage) -> Stage:
        sink = stage.of_sink
        assert sink is not None
        if applied.state is StageState.UNKNOWN:
            return _as(stage, StageState.UNKNOWN)
        lacks = sink.visible is not None and not sink.visible.is_all
        still_s = self._still(stage, look, lacks=lacks)
        if not lacks:
            return _as(stage, StageState.CURRENT)
        refresh_s = look.refresh_s.get(sink.name, 0.0)
        if still_s < look.stalled_s + refresh_s:
            is_late = stage.seconds_behind is not None and stage.seconds_behind > _CURRENT_S + refresh_s
            return _as(stage, StageState.BEHIND if is_late else StageState.CURRENT)
        reason = f"no query finds the applied rows yet: the store hasn't shown anything new for {still_s:.0f} s"
        return _as(stage, StageState.STALLED, reason=reason, hint=_REFRESH)

    def _applied(self, stage: Stage, look: Look, report: LagReport) -> Stage:
        sink = stage.sink
        assert sink is not None
        if sink.name in report.unanswered:
            error = report.unanswered[sink.name]
            return _as(stage, StageState.UNKNOWN, reason=error.message, hint=error.hint or _LOOK_AT_SERVERS)
        job = sink.job
        if job is not None and job.state is not JobState.RUNNING:
            self._still(stage, look, lacks=False)
            self._seen[stage.name].has_ended = True
            return _ended(stage, job)
        in_kafka = next((other.lsn for other in report.stages if other.name == IN_KAFKA), None)
        silent_s = self._silent_s(stage, look, None if job is None else job.last_sign_ms)
        if sink.is_view and silent_s < look.stalled_s and (building := _building(sink)) is not None:
            reason, since_ms = building
            self._still(stage, look, lacks=False)
            return replace(_as(stage, StageState.BUILDING, reason=reason), since_ms=since_ms)
        # Nobody works on the rows of a table that is held.
        rows_left = max(0, (stage.events_behind or 0) - sink.records_held)
        has_rows_left = rows_left > 0 and sink.label not in look.left_out
        # A watermark alone may wait for a copy, or for older rows that get a new column.
        lacks = has_rows_left or (
            silent_s >= look.stalled_s and None not in (stage.lsn, in_kafka) and (stage.lsn or 0) < (in_kafka or 0)
        )
        still_s = self._still(stage, look, lacks=lacks, blocker=look.blocked.get(sink.label))
        seen = self._seen[stage.name]
        blocker = seen.blocker
        is_at_work = not (blocker or silent_s >= look.stalled_s)
        rows = min(rows_left, _ROWS_MAX)
        # The seen pace includes this machine's slowdown.
        starting_s = _STARTING_S * seen.has_ended * look.slowdown
        at_work_s = max(rows / _ROWS_PER_S * look.slowdown, 2 * seen.pace_s) + starting_s
        patience_s = look.stalled_s + (at_work_s if is_at_work else 0)
        if is_at_work and not sink.has_begun and lacks and still_s < _FIRST_ROWS_S:
            return _as(stage, StageState.BUILDING, reason="its first rows are being loaded")
        if still_s >= patience_s:
            reason, hint = _why(still_s, silent_s, blocker, is_silent=silent_s >= look.stalled_s)
            return _as(stage, StageState.STALLED, reason=reason, hint=hint)
        return _delivering(stage, look, report, has_rows_left=has_rows_left)

    def _still(self, stage: Stage, look: Look, *, lacks: bool, blocker: str | None = None) -> float:
        """How many seconds the stage has lacked something and not moved."""
        sign = look.signs.get(stage.name, stage.lsn)
        seen = self._seen.get(stage.name)
        if seen is None:
            seen = self._seen[stage.name] = _Seen(sign, look.at_s, look.now_ms)
        # A stage that hung, waited for a lock or was started again says nothing of how long moves take.
        if seen.sign != sign and lacks and seen.blocker is None and not seen.has_ended:
            took_s = look.at_s - seen.moved_s
            seen.pace_s = max(took_s if took_s <= _PACE_MAX_S else 0.0, seen.pace_s / 2)
        if seen.sign != sign or not lacks:
            seen.has_ended = seen.has_ended and seen.sign == sign
            seen.sign, seen.moved_s, seen.moved_ms, seen.blocker = sign, look.at_s, look.now_ms, None
        seen.blocker = blocker or seen.blocker
        return look.at_s - seen.moved_s

    def _silent_s(self, stage: Stage, look: Look, life: Hashable | None) -> float:
        """For how many seconds the last sign of life is the same; 0 without a sign. Its clock may differ from ours."""
        if life is None:
            return 0.0
        self._seen.setdefault(stage.name, _Seen(look.signs.get(stage.name, stage.lsn), look.at_s, look.now_ms))
        seen = self._seen[stage.name]
        if seen.life != life:
            seen.life, seen.life_s = life, look.at_s
        silent_s = look.at_s - seen.life_s
        # A job that is killed stops silently, and may be started again before it counts as silent.
        seen.has_ended |= silent_s >= look.stalled_s
        return silent_s

    def _since(self, stage: Stage, look: Look) -> Stage:
        """The stage with the time since when it is in its state."""
        if stage.state is StageState.CURRENT:
            self._states.pop(stage.name, None)
            return stage
        known = self._states.get(stage.name)
        if known is None or known[0] is not stage.state:
            since_ms = look.now_ms if stage.since_ms is None else stage.since_ms
            if stage.state is StageState.STALLED and stage.name in self._seen:
                since_ms = self._seen[stage.name].moved_ms
            known = self._states[stage.name] = stage.state, since_ms
        return stage if stage.since_ms is not None else replace(stage, since_ms=known[1])


def unreachable(last: LagReport | None, sinks: Iterable[str], error_text: str, *, now_ms: int) -> tuple[Stage, ...]:
    """The stages when the source couldn't be asked: nothing is known of any. Pure. Every one of ``sinks`` has its
    stages, even if nobody has ever answered."""
    stages = () if last is None else last.stages
    if not stages:
        facts = [SinkFacts(name, 1, True, 0, 0, None, 0) for name in sinks]
        stages = (
            *(Stage(name, None, None, None, None) for name in (WAL_END, RECEIVED, IN_KAFKA)),
            *(
                stage
                for sink in facts
                for stage in (
                    Stage(f"{READ}{sink.label}", None, None, None, None, of_sink=sink),
                    Stage(f"{APPLIED}{sink.label}", None, None, None, None, sink),
                )
            ),
        )
    blamed = stages[0]
    since_ms = blamed.since_ms if blamed.state is StageState.UNKNOWN and blamed.since_ms else now_ms
    unknown = Stage("", None, None, None, None, since_ms=since_ms, reason=error_text, hint=_LOOK_AT_SERVERS)
    return tuple(replace(unknown, name=stage.name, sink=stage.sink, of_sink=stage.of_sink) for stage in stages)


def _building(sink: SinkFacts) -> tuple[str, int | None] | None:
    """The progress of the build of a view's state, and since when; None after it. Nothing is applied before its end."""
    view = sink.view
    if view is not None and view.figures.building is not None:
        return f"the view's state is being built: {view.figures.building.sentence}", view.since_ms
    if view is None and not sink.watermark_lsn:
        return "the view's state is to be built", None
    return None


def _is_left(stages: Iterable[Stage], look: Look) -> bool:
    """Whether a first copy isn't complete, and nobody works on it or has paused it."""
    is_absent = any(stage.name == RECEIVED and stage.state is StageState.ABSENT for stage in stages)
    return is_absent and look.source.copied_from_lsn is not None


def _as(stage: Stage, state: StageState, *, reason: str | None = None, hint: str | None = None) -> Stage:
    return replace(stage, state=state, since_ms=None, reason=reason, hint=hint)


def _first(stage: Stage, *rules: tuple[object, StageState, str, str | None]) -> Stage | None:
    """The stage by the first rule that holds: condition, state, reason and hint."""
    for holds, state, reason, hint in rules:
        if holds:
            return _as(stage, state, reason=reason, hint=hint)
    return None


def _delivering(stage: Stage, look: Look, report: LagReport, *, has_rows_left: bool) -> Stage:
    """The stage when the generation's job is at work."""
    sink = stage.sink
    assert sink is not None
    for table, held in [] if sink.job is None else sink.job.by_need:
        if held.holds_watermark or held.has_failed:
            step = held.next_step(sink.name, str(table))
            paused = _as(stage, StageState.PAUSED, reason=held.why(str(table)), hint=step)
            return replace(paused, since_ms=held.since_ms)
    are_copies_paused = bool(report.paused_copies or report.first_copy_paused)
    explained = _first(
        stage,
        (look.silent_kafka is not None, StageState.UNKNOWN, look.silent_kafka or "", _LOOK_AT_SERVERS),
        (are_copies_paused and not has_rows_left, StageState.PAUSED, next(iter(report.held_by_copies), ""), None),
        (look.copying and not are_copies_paused, StageState.BUILDING, "a table of the pipeline is being copied", None),
        (
            stage.lsn is None and not has_rows_left,
            StageState.BUILDING,
            "nothing is known to be complete yet",
            None,
        ),
        (sink.joining, StageState.BUILDING, f"it hasn't read all of {', '.join(sink.joining)} yet", None),
    )
    if explained is not None:
        return explained
    return _moving(stage)


def _moving(stage: Stage) -> Stage:
    is_current = stage.seconds_behind is not None and stage.seconds_behind <= _CURRENT_S
    is_complete = stage.events_behind in (None, 0) and stage.bytes_behind == 0
    return _as(stage, StageState.CURRENT if is_current or is_complete else StageState.BEHIND)


def _read(stage: Stage, applied: Stage, hanging: Stage | None) -> Stage:
    """The stage of what was read, given the judged applied stage. If that one has a reason, it alone says it."""
    if hanging is not None:
        return replace(stage, state=hanging.state, since_ms=hanging.since_ms, reason=hanging.reason, hint=hanging.hint)
    match applied.state:
        case StageState.CURRENT | StageState.BEHIND:
            return _moving(stage)
        case StageState.STALLED:
            return _as(stage, StageState.CURRENT)
        case _:
            return replace(stage, state=applied.state, since_ms=applied.since_ms)


def _ended(stage: Stage, job: JobStatus) -> Stage:
    match job.state:
        case JobState.STOPPED:
            hint = job.start if job.hint is None else f"{job.hint}; then {job.start_again}"
            return replace(stage, state=StageState.STOPPED, since_ms=job.since_ms, reason=job.reason, hint=hint)
        case JobState.STARTING:
            return replace(stage, state=StageState.STARTING, since_ms=job.since_ms, reason=_STARTS)
        case JobState.SILENT:
            reason, state = "its job ended without a word, or hangs", StageState.SILENT
        case _:
            reason, state = "no job applies to it", StageState.ABSENT
    return replace(stage, state=state, since_ms=job.since_ms, reason=reason, hint=job.start)


def _why(still_s: float, silent_s: float, blocker: str | None, *, is_silent: bool) -> tuple[str, str]:
    if blocker is not None:
        return (
            f"its job waits for a lock in the store that is held by {blocker}",
            "end that transaction: the job goes on by itself",
        )
    if is_silent:
        reason = f"its job has given no sign of life for {silent_s:.0f} s"
        if silent_s < LONG_SILENT_S:
            return reason, _LOOK_AGAIN
        return f"{reason}: its process hangs, or was killed", _JOB_AGAIN
    return (
        f"its job lives, and has applied none of Kafka's records for {still_s:.0f} s: the store or a Python worker"
        " hangs",
        "`lockstep doctor` looks at every server; the log of `lockstep apply` says what its batch waits for",
    )


def _why_unread(still_s: float) -> tuple[str, str]:
    return (
        f"its job lives, and has read none of Kafka's records for {still_s:.0f} s: Spark begins no batch, or a Python"
        " worker hangs",
        "the log of `lockstep apply` says what its batch waits for; where it says nothing new for minutes, end the"
        " process, and start `lockstep run` again: it goes on where it was",
    )
