"""The documents of the dashboard's API.

Times are milliseconds since 1970. LSNs are text, as PostgreSQL writes them. Rates are per second, over the last few
seconds. Unknown figures are null, never 0.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Document(BaseModel):
    """What all documents share."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Refusal(Document):
    """Why a request was refused, and what to do about it."""

    message: str


# The pipeline, as it was sampled.


class SourceState(Document):
    """The source's server and the slot. ``wal_status`` is PostgreSQL's word for the slot, null without one.

    Everything that committed before ``confirmed_lsn`` is in Kafka. The slot may be lost after ``safe_wal_bytes`` more
    WAL, at the current rate in ``minutes_until_full``; both are null if the server sets no limit.
    """

    server: str
    database: str | None
    slot: str
    wal_status: str | None = None
    wal_end: str | None = None
    confirmed_lsn: str | None = None
    retained_bytes: int | None = None
    safe_wal_bytes: int | None = None
    wal_bytes_per_s: float | None = None
    minutes_until_full: float | None = None


class StageDocument(Document):
    """A stage of the lag report: ``state`` is one of the report's words, ``next_step`` what to do if it isn't well."""

    state: str
    since_ms: int | None = None
    reason: str | None = None
    next_step: str | None = None
    lsn: str | None = None
    seconds_behind: float | None = None
    bytes_behind: int | None = None
    events_per_s: float | None = None


class CaptureState(StageDocument):
    """What capture has published: the stage ``in Kafka``. ``state`` covers what it receives, too. At low load capture
    commits every ``commit_interval_ms``."""

    commit_interval_ms: int | None = None


class ViewBuilding(Document):
    """Progress of building a view's state: ``done`` of ``total`` events or rows of the step named by ``doing``."""

    doing: str
    done: int
    total: int
    per_s: float
    seconds_left: float | None = None


class ViewState(Document):
    """A view's figures. On average, one changed row of its tables changes ``amplification`` rows of its result."""

    rows: int
    state_rows: int
    state_bytes: int
    changes_in: int
    changes_out: int
    amplification: float
    rows_per_step: float
    transactions_per_step: float
    building: ViewBuilding | None = None


class StageFigures(Document):
    """The position of a stage other than the applied one."""

    state: str
    lsn: str | None = None
    seconds_behind: float | None = None
    bytes_behind: int | None = None
    events_behind: int | None = None


class SinkState(StageDocument):
    """A generation of a sink; readers see the ``live`` one. The figures are those of the applied rows.

    ``read`` is what the job has read from Kafka. ``visible`` is what queries find; null if they find applied rows at
    once. ``state`` covers both, too. ``view`` is the last report of a view's job.
    """

    name: str
    kind: str
    generation: int
    live: bool
    events_behind: int | None = None
    read: StageFigures | None = None
    visible: StageFigures | None = None
    open_rejections: int = 0
    view: ViewState | None = None


class PanelRow(Document):
    """A line of a panel, its figures in the order of the panel's columns."""

    name: str
    state: str
    figures: tuple[int | None, ...]


class Panel(Document):
    """What an extension runs. Columns listed in ``times`` are milliseconds since 1970."""

    name: str
    title: str
    kind: str
    columns: tuple[str, ...]
    times: tuple[str, ...]
    rows: tuple[PanelRow, ...]


class TopicsState(Document):
    """The topics of all captured tables together. ``events_per_s`` counts records and transaction markers. ``count`` is
    null while the tables that patterns match are unknown."""

    count: int | None
    events_per_s: float | None = None


class Problem(Document):
    """A problem, and what to do about it."""

    where: str
    state: str
    since_ms: int | None = None
    reason: str
    next_step: str | None = None


class PipelineState(Document):
    """The first screen, sent again with each sample. ``open_alerts`` counts the alerts that were open before it.
    ``other_rejections`` counts rows with an open rejection in the stores that extensions write to."""

    pipeline: str
    version: str
    sampled_ms: int
    source: SourceState
    capture: CaptureState
    topics: TopicsState
    sinks: tuple[SinkState, ...]
    panels: tuple[Panel, ...] = ()
    other_rejections: int = 0
    problems: tuple[Problem, ...]
    open_alerts: int


# Documents of single screens.


class Finding(Document):
    """A finding of doctor. ``sql`` mends it, if SQL can."""

    severity: str
    subject: str
    message: str
    sql: str | None = None


class Findings(Document):
    """The findings of doctor at ``checked_ms``."""

    checked_ms: int
    findings: tuple[Finding, ...]


class TableState(Document):
    """A captured table and its topic. ``schema_id`` numbers the table's shapes in the log."""

    table: str
    topic: str
    state: str
    key: tuple[str, ...]
    partitions: int | None = None
    events_per_s: float | None = None
    schema_id: int | None = None


class Tables(Document):
    """All captured tables."""

    tables: tuple[TableState, ...]


class SchemaVersion(Document):
    """A shape that a table had from ``lsn`` on. ``change`` says how it differs from the shape before."""

    schema_id: int
    lsn: str
    columns: int
    change: str


class Schemas(Document):
    """The shapes that a table had, oldest first."""

    table: str
    versions: tuple[SchemaVersion, ...]


class GenerationState(Document):
    """A build of a sink's data."""

    generation: int
    live: bool
    state: str
    lsn: str | None = None


class SinkDetail(Document):
    """A sink, with its lag over the last hour: pairs of a time (seconds since 1970) and seconds behind."""

    name: str
    lag: tuple[tuple[int, float | None], ...]
    generations: tuple[GenerationState, ...]


class CopyState(Document):
    """The copy of a table; see ``lockstep snapshot status``."""

    table: str
    state: str
    rows: int
    rows_estimated: int | None = None
    bytes: int | None = None


class BuildState(Document):
    """A generation that is being built. ``events`` of ``events_total`` are applied."""

    sink: str
    generation: int
    state: str
    events: int | None = None
    events_total: int | None = None


class Copies(Document):
    """Copies of tables and builds of generations."""

    rows_per_s: float | None = None
    bytes_per_s: float | None = None
    seconds_left: float | None = None
    held: str | None = None
    copies: tuple[CopyState, ...]
    builds: tuple[BuildState, ...]


class SourceRow(Document):
    """The row at the source, null if there is none. ``lsn`` is the end of the WAL at the time of reading."""

    row: dict[str, Any] | None = None
    lsn: str | None = None


class KeyEvent(Document):
    """An event of a key on its topic, without its row."""

    op: str
    tag: str
    time_ms: int | None = None
    offset: int
    partition: int


class SinkRow(Document):
    """The row of one key in a generation of a sink."""

    sink: str
    state: str
    tag: str | None = None
    row: dict[str, Any] | None = None


class FollowedKey(Document):
    """One row at the source, on its topic and in every sink. ``verdict`` says what is wrong and why."""

    table: str
    key: str
    verdict: str
    is_right: bool
    source: SourceRow
    events: tuple[KeyEvent, ...]
    sinks: tuple[SinkRow, ...]


class RejectedExample(Document):
    """One of several rejected events."""

    id: str
    table: str
    key: str
    tag: str


class RejectionReason(Document):
    """Open rejections of a sink that have the same reason."""

    sink: str
    reason: str
    count: int
    first_ms: int
    last_ms: int
    example: RejectedExample


class Rejections(Document):
    """The open rejections by reason, the most frequent reason first."""

    reasons: tuple[RejectionReason, ...]


class Verified(Document):
    """The last comparison of a whole sink. The sink was last found equal up to ``verified_through``. ``but_for`` lists
    in words what the comparison doesn't cover."""

    sink: str
    state: str
    ended_ms: int
    differing: int
    error: str | None = None
    verified_through: str | None = None
    verified_through_ms: int | None = None
    but_for: tuple[str, ...] = ()


class Comparisons(Document):
    """The last comparison of each sink."""

    sinks: tuple[Verified, ...]


class ToWaitFor(Document):
    """``lsn`` is any LSN after the commit. Without ``sinks``, the request waits for all of them."""

    lsn: str = Field(max_length=20)
    sinks: tuple[str, ...] = Field(default=(), max_length=100)
    timeout_s: float = Field(default=10.0, ge=0, le=600, allow_inf_nan=False)


class Waited(Document):
    """``reached``: readers of all these sinks see the commit. ``late`` has the reason for each other sink."""

    reached: bool
    lsn: str
    late: dict[str, str]


class OpenCondition(Document):
    """A condition that holds now."""

    condition: str
    where: str
    since_ms: int | None = None
    message: str


class LogEntry(Document):
    """A change in the past: ``kind`` is state or alert."""

    time_ms: int
    kind: str
    message: str


class Alerts(Document):
    """The open conditions, and the changes since the server started, newest first."""

    open: tuple[OpenCondition, ...]
    log: tuple[LogEntry, ...]


class TailEvent(Document):
    """An event on its topic, without its row. ``time_ms`` is the time of publication."""

    table: str
    op: str
    key: str
    tag: str | None = None
    partition: int
    offset: int
    time_ms: int | None = None


class Health(Document):
    """Whether the last look at the pipeline is fresh, and every part of it goes on."""

    ready: bool
    message: str
