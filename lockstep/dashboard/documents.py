"""Makes the API's documents from what is known of a pipeline. Pure: reports and facts in, documents out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from cdc.model.lsn import format_lsn
from cdc.model.table import TableName
from cdc.protocol.control_records import SchemaRecord
from jobs.dead_letters.limit import kind_of
from jobs.dead_letters.record import DeadLetter
from jobs.generations.held_tables import HeldTable
from lockstep.dashboard.model import (
    BuildState,
    CaptureState,
    Comparisons,
    Copies,
    CopyState,
    Document,
    Finding,
    Findings,
    GenerationState,
    Panel,
    PanelRow,
    PipelineState,
    Problem,
    RejectedExample,
    RejectionReason,
    Rejections,
    Schemas,
    SchemaVersion,
    SinkDetail,
    SinkState,
    SourceState,
    StageFigures,
    Tables,
    TableState,
    TopicsState,
    Verified,
    ViewBuilding,
    ViewState,
)
from monitor import watching
from monitor.lag import APPLIED, IN_KAFKA, READ, RECEIVED, VISIBLE, WAL_END, StageState
from monitor.next_steps import rebuild_step

_Document = TypeVar("_Document", bound=Document)

Known = Mapping[str, Any]
"""A document of ``lockstep lag --json``, or a piece of one."""

STANDS_STILL: Final = frozenset({"stopped", "stalled", "silent", "absent", "failed", "retrying", "unanswered"})
"""States of parts that don't go on, although nobody wanted that."""

_NOT_WELL: Final = STANDS_STILL | {"paused"}
_MOVES: Final = ("current", "behind")
_DOCTOR: Final = "`lockstep doctor` looks at every server and says what to do"


@dataclass(frozen=True, slots=True)
class Subject:
    """The pipeline. ``kinds`` are the sinks' types by their names. ``topics`` counts those of captured tables; None
    while nobody knows which tables the configuration's patterns match."""

    pipeline: str
    version: str
    server: str
    database: str | None
    slot: str
    topics: int | None
    kinds: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Rates:
    """Events a second over the last looks. ``sinks`` is by the label of a generation, ``topics`` by topic."""

    topics: Mapping[str, float] = field(default_factory=dict)
    sinks: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def published(self) -> float | None:
        return sum(self.topics.values()) if self.topics else None


def pipeline_state(
    subject: Subject,
    lag: Known,
    rates: Rates,
    *,
    sampled_ms: int,
    trouble: str | None = None,
    open_alerts: int = 0,
    panels: Sequence[watching.Panel] = (),
) -> PipelineState:
    """What every screen shows. ``lag`` is empty if no report came, and ``trouble`` says why."""
    stages = {stage["stage"]: stage for stage in lag.get("stages", ())}
    in_kafka = stages.get(IN_KAFKA, {})
    slot = (
        {} if "source" in lag.get("silent_servers", {}) else lag
    )  # then its figures are those of the last look that got through
    source = _picked(
        SourceState,
        slot,
        server=subject.server,
        database=subject.database,
        slot=subject.slot,
        wal_end=stages.get(WAL_END, {}).get("lsn"),
        confirmed_lsn=in_kafka.get("lsn"),
    )
    capture = _capture(stages.get(RECEIVED, {}), in_kafka, rates, lag.get("commit_interval_ms"))
    sinks = tuple(
        _sink(stage, _beside(stage, stages), lag, subject, rates) for stage in stages.values() if "job" in stage
    )
    return PipelineState(
        pipeline=subject.pipeline,
        version=subject.version,
        sampled_ms=sampled_ms,
        source=source,
        capture=capture,
        topics=TopicsState(count=subject.topics, events_per_s=rates.published),
        sinks=sinks,
        panels=tuple(map(_panel, panels)),
        other_rejections=sum(lag.get("refused_rows", {}).values()),
        problems=(*_problems(lag, capture, sinks, trouble), *_problems_of_panels(panels)),
        open_alerts=open_alerts,
    )


def _capture(received: Known, in_kafka: Known, rates: Rates, commit_interval_ms: int | None) -> CaptureState:
    """What it has published. The state is that of the first of its two stages that doesn't move, else of the second."""
    judged = in_kafka if received.get("state") in _MOVES else received
    return _picked(
        CaptureState,
        in_kafka,
        **_judged(judged),
        events_per_s=rates.published,
        commit_interval_ms=commit_interval_ms,
    )


def _beside(stage: Known, stages: Mapping[str, Known]) -> tuple[Known, Known]:
    """The stages of what a generation's job has read, and of what queries find. Empty if there is none."""
    label = stage["stage"].removeprefix(APPLIED)
    return stages.get(f"{READ}{label}", {}), stages.get(f"{VISIBLE}{label}", {})


def _sink(stage: Known, beside: tuple[Known, Known], lag: Known, subject: Subject, rates: Rates) -> SinkState:
    """The figures are of the applied stage; the state is that of the stage that hangs, if another one does."""
    label = stage["stage"].removeprefix(APPLIED)
    read, visible = beside
    judged = next((each for each in beside if each.get("state") == StageState.STALLED.value), stage)
    is_unanswered = stage["sink"] in lag.get("unanswered", {})
    return _picked(
        SinkState,
        stage,
        name=stage["sink"],
        kind=subject.kinds.get(stage["sink"], ""),
        **_judged(judged) | ({"state": "unanswered"} if is_unanswered else {}),
        read=_stage_figures(read),
        visible=_stage_figures(visible),
        events_per_s=rates.sinks.get(label),
        open_rejections=lag.get("open_rejections", {}).get(label, 0),
        view=None if stage.get("view") is None else _view(stage["view"]),
    )


def _judged(stage: Known) -> dict[str, Any]:
    state = {"state": stage.get("state") or "unknown", "next_step": stage.get("hint")}
    return state | {name: stage.get(name) for name in ("since_ms", "reason")}


def _picked(kind: type[_Document], known: Known, /, **others: Any) -> _Document:
    """A document with the known fields of the same names, and others."""
    fields = {name: known[name] for name in kind.model_fields if name in known}
    return kind(**{**fields, **others})


def _stage_figures(stage: Known) -> StageFigures | None:
    return _picked(StageFigures, stage) if stage else None


def _panel(panel: watching.Panel) -> Panel:
    return Panel(
        name=panel.name,
        title=panel.title,
        kind=panel.kind,
        columns=panel.columns,
        times=tuple(sorted(panel.times)),
        rows=tuple(PanelRow(name=row.name, state=row.state, figures=tuple(row.figures)) for row in panel.rows),
    )


def _problems_of_panels(panels: Sequence[watching.Panel]) -> Iterator[Problem]:
    for panel in panels:
        for row in panel.rows:
            if row.is_reported:
                yield Problem(
                    where=f"{panel.kind} {row.name}",
                    state=row.state,
                    since_ms=row.since_ms,
                    reason=row.reason,
                    next_step=row.step or None,
                )


def _view(view: Known) -> ViewState:
    building = view["building"]
    return _picked(ViewState, view, building=None if building is None else _picked(ViewBuilding, building))


def label_of(sink: SinkState) -> str:
    """The label that the lag report uses for a generation."""
    return sink.name if sink.live else f"{sink.name} g{sink.generation}"


def _failed_tables(lag: Known) -> Iterator[tuple[str, list[Problem]]]:
    """The tables that a generation can't take, by its label: the others go on, and its watermark doesn't."""
    for stage in lag.get("stages", ()):
        job = stage.get("job") or {}
        problems = [
            Problem(
                where=f"{table} in {stage['stage'].removeprefix(APPLIED)}",
                state=held.state.value,
                since_ms=known["since_ms"],
                reason=held.why(table),
                next_step=held.next_step(stage["sink"], table),
            )
            for table, known in job.get("tables", {}).items()
            if (held := HeldTable.from_json(known)).has_failed
        ]
        if problems:
            yield stage["stage"].removeprefix(APPLIED), problems


def _problems(lag: Known, capture: CaptureState, sinks: Sequence[SinkState], trouble: str | None) -> Iterator[Problem]:
    """What isn't well. The most serious comes first."""
    if trouble is not None:
        yield Problem(where="pipeline", state="unanswered", reason=trouble, next_step=_DOCTOR)
    for server, why in lag.get("silent_servers", {}).items():
        yield Problem(where=server, state="unanswered", reason=why, next_step=_DOCTOR)
    if capture.state in _NOT_WELL:
        yield _problem("capture", capture)
    failed = {label: tuple(tables) for label, tables in _failed_tables(lag)}
    for sink in sinks:
        label = label_of(sink)
        yield from failed.get(label, ())
        is_reported = sink.state == "paused" and label in failed  # its reason is the table that has failed
        if sink.state in _NOT_WELL and (sink.live or sink.state == "stopped") and not is_reported:
            yield _problem(label, sink)
    asked = {sink.name for sink in sinks}
    for name, why in lag.get("unanswered", {}).items():
        if name not in asked:
            yield Problem(where=name, state="unanswered", reason=why, next_step=_DOCTOR)
    for label, names in lag.get("rebuild_needed", {}).items():
        why = f"the configuration has changed since it was built: {', '.join(names)}"
        yield Problem(where=label, state="outdated", reason=why, next_step=rebuild_step(label))
    for label, count in (lag.get("open_rejections", {}) | lag.get("refused_rows", {})).items():
        if count:
            step = f"`lockstep rejections list {label.split()[0]}` shows them"
            yield Problem(where=label, state="rejected", reason=f"open rejections: {count}", next_step=step)
    if lag.get("first_copy_paused"):
        why = "the first copy is paused, and the stream begins after it"
        yield Problem(where="first copy", state="paused", reason=why, next_step="`lockstep snapshot resume`")
    for table in lag.get("paused_copies", ()):
        why = "its copy is paused, and sinks with this table get no further"
        yield Problem(where=table, state="paused", reason=why, next_step=f"`lockstep snapshot resume {table}`")


def _problem(where: str, stage: CaptureState | SinkState) -> Problem:
    reason = stage.reason or f"it is {stage.state}"
    return Problem(
        where=where, state=stage.state, since_ms=stage.since_ms, reason=reason, next_step=stage.next_step or _DOCTOR
    )


def findings(listed: Iterable[Known], *, checked_ms: int) -> Findings:
    """From what ``lockstep doctor --json`` prints. A fix is SQL if it ends like a statement."""
    found = []
    for one in listed:
        why, fix = one.get("why") or "", one.get("fix") or ""
        is_sql = fix.rstrip().endswith(";") and not fix[:1].isupper()
        message = ". ".join(text.rstrip(".") for text in (one["what"], why, "" if is_sql else fix) if text)
        found.append(
            Finding(
                severity=one["severity"], subject=one.get("subject") or "", message=message, sql=fix if is_sql else None
            )
        )
    return Findings(checked_ms=checked_ms, findings=tuple(found))


def tables(
    topics: Mapping[TableName, str],
    rates: Rates,
    stages: Mapping[str, str],
    partitions: Mapping[str, int],
    records: Iterable[SchemaRecord],
) -> Tables:
    """All captured tables. ``stages`` has the stage of each table's copy, ``partitions`` the counts by topic."""
    shapes: dict[TableName, list[SchemaRecord]] = {}
    for record in records:
        shapes.setdefault(record.table.name, []).append(record)
    return Tables(
        tables=tuple(
            TableState(
                table=str(name),
                topic=topic,
                state="streaming" if stages.get(str(name)) == "copied" else stages.get(str(name), "unknown"),
                key=tuple(shapes[name][-1].table.key) if name in shapes else (),
                partitions=partitions.get(topic),
                events_per_s=rates.topics.get(topic),
                schema_id=len(shapes.get(name, ())) or None,
            )
            for name, topic in topics.items()
        )
    )


def schemas(name: TableName, records: Iterable[SchemaRecord]) -> Schemas:
    """The shapes that a table has had, numbered from 1, and what changed from each to the next."""
    versions: list[SchemaVersion] = []
    before: SchemaRecord | None = None
    for record in (record for record in records if record.table.name == name):
        versions.append(
            SchemaVersion(
                schema_id=len(versions) + 1,
                lsn=format_lsn(record.from_lsn),
                columns=len(record.table.columns),
                change=_change(before, record),
            )
        )
        before = record
    return Schemas(table=str(name), versions=tuple(versions))


def _change(before: SchemaRecord | None, record: SchemaRecord) -> str:
    if before is None:
        return "first seen"
    old, new = ({column.name for column in one.table.columns} for one in (before, record))
    parts = [
        f"{word}: {', '.join(sorted(names))}" for word, names in (("added", new - old), ("gone", old - new)) if names
    ]
    return "; ".join(parts) or "types, key or replica identity"


def sink_detail(name: str, state: PipelineState, lag: Sequence[tuple[int, float | None]]) -> SinkDetail:
    """A sink with its last hour and its generations, newest first."""
    own = sorted((sink for sink in state.sinks if sink.name == name), key=lambda sink: -sink.generation)
    return SinkDetail(
        name=name,
        lag=tuple(lag),
        generations=tuple(
            GenerationState(generation=sink.generation, live=sink.live, state=sink.state, lsn=sink.lsn) for sink in own
        ),
    )


def copies(report: Known, state: PipelineState, ends: Mapping[str, int]) -> Copies:
    """From what ``lockstep snapshot status --json`` prints. ``ends`` counts the records on each sink's topics."""
    retained = report.get("wal_retained_bytes")
    is_copying = any(table["stage"] != "copied" for table in report["tables"])
    held = f"{retained / 2**20:,.0f} MiB of WAL are held" if is_copying and retained is not None else None
    return _picked(
        Copies,
        report,
        held=held,
        copies=tuple(_picked(CopyState, table, state=table["stage"]) for table in report["tables"]),
        builds=tuple(
            BuildState(
                sink=sink.name,
                generation=sink.generation,
                state=sink.state,
                events=_applied(sink, ends),
                events_total=ends.get(sink.name),
            )
            for sink in state.sinks
            if not sink.live
        ),
    )


def _applied(sink: SinkState, ends: Mapping[str, int]) -> int | None:
    total = ends.get(sink.name)
    return None if total is None or sink.events_behind is None else max(0, total - sink.events_behind)


def rejections(dead_letters: Iterable[DeadLetter], named: Mapping[str, TableName]) -> Rejections:
    """Open rejections by sink and kind of reason, with the newest of each as an example: its key, no other value."""
    groups: dict[tuple[str, str], list[DeadLetter]] = {}
    for dead_letter in dead_letters:
        groups.setdefault((dead_letter.sink, kind_of(dead_letter.reason)), []).append(dead_letter)
    reasons = []
    for (sink, kind), members in groups.items():
        newest = max(members, key=lambda one: one.rejected_at_ms)
        at = newest.position
        reasons.append(
            RejectionReason(
                sink=sink,
                reason=kind,
                count=len(members),
                first_ms=min(one.rejected_at_ms for one in members),
                last_ms=newest.rejected_at_ms,
                example=RejectedExample(
                    id=f"{at.partition}-{at.offset}",
                    table=str(named.get(at.topic, at.topic)),
                    key=newest.key.decode(errors="replace"),
                    tag=newest.tag,
                ),
            )
        )
    return Rejections(reasons=tuple(sorted(reasons, key=lambda one: -one.count)))


def verified(lag: Known) -> Comparisons:
    """Each sink's last comparison, as the sink stores it."""
    return Comparisons(
        sinks=tuple(
            _picked(Verified, one, sink=label, state=one["outcome"]) for label, one in lag.get("verified", {}).items()
        )
    )
