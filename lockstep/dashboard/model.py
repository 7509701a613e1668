"""The documents of the dashboard's API.

Times are milliseconds since 1970. LSNs are text, as PostgreSQL writes them. Rates are by second, over the last seconds.
What nobody knows is null, never 0.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Document(BaseModel):
    """What all documents share."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Refusal(Document):
    """Why something wasn't answered or done, and what to do about it."""

    message: str


# The pipeline, as it was sampled.


class SourceState(Document):
    """The source's server and the slot. ``wal_status`` is PostgreSQL's word for the slot, null where there is none.

    What commits before ``confirmed_lsn`` is in Kafka: the slot needn't keep it. ``safe_wal_bytes`` can be written
    before the slot may be lost, null where the server sets no limit. At the rate of now that takes
    ``minutes_until_full``.
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
    """A stage of the lag report: ``state`` is one of its words, ``next_step`` what to do where it isn't well."""

    state: str
    since_ms: int | None = None
    reason: str | None = None
    next_step: str | None = None
    lsn: str | None = None
    seconds_behind: float | None = None
    bytes_behind: int | None = None
    events_per_s: float | None = None


class CaptureState(StageDocument):
    """What capture has published, the stage ``in Kafka``; ``state`` is also of what it receives.

    At low load it commits every ``commit_interval_ms``.
    """

    commit_interval_ms: int | None = None


class ViewBuilding(Document):
    """How far the building of a view's state is: ``done`` of ``total`` events or rows of what it is ``doing``."""

    doing: str
    done: int
    total: int
    per_s: float
    seconds_left: float | None = None


class ViewState(Document):
    """What a view holds. A changed row of its tables changes ``amplification`` rows of its result, on average."""

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
    """How far a stage beside the applied one is."""

    state: str
    lsn: str | None = None
    seconds_behind: float | None = None
    bytes_behind: int | None = None
    events_behind: int | None = None


class SinkState(StageDocument):
    """A generation of a sink. Readers see the one that is ``live``. Of a view, ``view`` is what its job told last.

    Its figures are those of what is applied. ``read`` is what its job has read of Kafka, ``visible`` what queries find:
    null where they find at once what is applied. ``state`` is also of these.
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
    """A line of a panel. Its figures are in the order of the panel's columns."""

    name: str
    state: str
    figures: tuple[int | None, ...]


class Panel(Document):
    """What an extension runs. Figures of the columns in ``times`` are milliseconds since 1970."""

    name: str
    title: str
    kind: str
    columns: tuple[str, ...]
    times: tuple[str, ...]
    rows: tuple[PanelRow, ...]


class TopicsState(Document):
    """The topics of all captured tables together; ``events_per_s`` counts records, markers of transactions included.

    ``count`` isn't known while nobody could say which tables patterns take in.
    """

    count: int | None
    events_per_s: float | None = None


class Problem(Document):
    """Something that isn't well, and what to do about it."""

    where: str
    state: str
    since_ms: int | None = None
    reason: str
    next_step: str | None = None


class PipelineState(Document):
    """All that the first screen shows. It is sent again with each sample. ``open_alerts`` are those before it.

    ``other_rejections`` counts the rows with an open rejection of what extensions write to.
    """

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


# What is asked for by one screen.


class Finding(Document):
    """One of doctor's. ``sql`` is what mends it, where SQL does."""

    severity: str
    subject: str
    message: str
    sql: str | None = None


class Findings(Document):
    """What doctor found at ``checked_ms``."""

    checked_ms: int
    findings: tuple[Finding, ...]


class TableState(Document):
    """A captured table and its topic. ``schema_id`` counts the shapes that the log knows of it."""

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
    """A shape that a table had from an LSN on. ``change`` says what is different from the one before."""

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
    """A sink with its last hour: pairs of a time (seconds since 1970) and the seconds that it was behind."""

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
    """The row as it is at the source, null where there is none; ``lsn`` is where the WAL ended when it was read."""

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
    """What a generation of a sink holds under a key."""

    sink: str
    state: str
    tag: str | None = None
    row: dict[str, Any] | None = None


class FollowedKey(Document):
    """What became of one row. ``verdict`` is a sentence that says what is wrong and why."""

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
    """The open rejections by their reasons, most first."""

    reasons: tuple[RejectionReason, ...]


class Verified(Document):
    """The last comparison of a whole sink, whoever asked for it. It was last found equal ``verified_through`` there.

    ``but_for`` is what that doesn't say, in words.
    """

    sink: str
    state: str
    ended_ms: int
    differing: int
    error: str | None = None
    verified_through: str | None = None
    verified_through_ms: int | None = None
    but_for: tuple[str, ...] = ()


class Comparisons(Document):
    """What each sink keeps of its last comparison."""

    sinks: tuple[Verified, ...]


class ToWaitFor(Document):
    """``lsn`` is one from after the commit. Without ``sinks``, all are waited for."""

    lsn: str = Field(max_length=20)
    sinks: tuple[str, ...] = Field(default=(), max_length=100)
    timeout_s: float = Field(default=10.0, ge=0, le=600, allow_inf_nan=False)


class Waited(Document):
    """``reached``: readers of all these sinks see it. ``late`` says why, by the name of each sink that they don't."""

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
    """Something that happened: ``kind`` is state or alert."""

    time_ms: int
    kind: str
    message: str


class Alerts(Document):
    """The open conditions, and what happened since the server started, newest first."""

    open: tuple[OpenCondition, ...]
    log: tuple[LogEntry, ...]


class TailEvent(Document):
    """An event as it came to its topic, without its row. ``time_ms`` is when it was published."""

    table: str
    op: str
    key: str
    tag: str | None = None
    partition: int
    offset: int
    time_ms: int | None = None


class Health(Document):
    """Whether the pipeline is looked at, and every part of it goes on."""

    ready: bool
    message: str
