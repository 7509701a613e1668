"""The one definition of each metric: Prometheus, the docs and the dashboard read this table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """A ``COUNTER`` only grows, a ``GAUGE`` is set, a ``HISTOGRAM`` gets durations."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Part(StrEnum):
    """The process that has the metric."""

    CAPTURE = "capture"
    APPLY = "apply"
    DASHBOARD = "dashboard"


@dataclass(frozen=True, slots=True)
class Definition:
    """``name`` is the one that Prometheus shows. ``unit`` is what it counts in, "" for a position or a fact."""

    name: str
    kind: Kind
    part: Part
    unit: str
    help: str
    labels: tuple[str, ...] = ()


SECONDS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of a histogram's buckets, in seconds."""

_SINK: Final = ("sink", "generation")
_STAGE: Final = ("stage", *_SINK)


def _capture(name: str, kind: Kind, unit: str, meaning: str, *labels: str) -> Definition:
    return Definition(f"lockstep_capture_{name}", kind, Part.CAPTURE, unit, meaning, labels)


def _apply(name: str, kind: Kind, unit: str, meaning: str, labels: Sequence[str] = _SINK) -> Definition:
    return Definition(f"lockstep_sink_{name}", kind, Part.APPLY, unit, meaning, tuple(labels))


def _view(name: str, kind: Kind, unit: str, meaning: str) -> Definition:
    return Definition(f"lockstep_view_{name}", kind, Part.APPLY, unit, meaning, _SINK)


def dashboard_gauge(name: str, unit: str, meaning: str, labels: Sequence[str] = ()) -> Definition:
    """A gauge of the process that looks at the pipeline."""
    return Definition(f"lockstep_{name}", Kind.GAUGE, Part.DASHBOARD, unit, meaning, tuple(labels))


_ALL: Final = (
    _capture("records_published_total", Kind.COUNTER, "1", "Records that Kafka has committed, of copies too.", "topic"),
    _capture("commits_total", Kind.COUNTER, "1", "Kafka transactions that were committed."),
    _capture("commit_seconds", Kind.HISTOGRAM, "s", "How long the commit of a Kafka transaction took."),
    _capture("commit_interval_seconds", Kind.GAUGE, "s", "Time between two commits at low load; it follows Kafka."),
    _capture("published_lsn", Kind.GAUGE, "", "Up to where everything is in Kafka, as a number."),
    _capture(
        "published_commit_timestamp_seconds",
        Kind.GAUGE,
        "s",
        "Commit time of the newest transaction that is in Kafka.",
    ),
    _capture("restarts_total", Kind.COUNTER, "1", "Times that capture began again, since a server wasn't available."),
    _capture("copied_rows_total", Kind.COUNTER, "1", "Rows that copies of tables have published.", "table"),
    _capture("copied_bytes_total", Kind.COUNTER, "By", "Bytes of rows that copies have published.", "table"),
    _capture("values_bytes", Kind.GAUGE, "By", "Disk that the store of large values takes."),
    _apply("rows_read_total", Kind.COUNTER, "1", "Records of the log that batches had."),
    _apply("rows_applied_total", Kind.COUNTER, "1", "Rows that the sink took."),
    _apply("rows_stale_total", Kind.COUNTER, "1", "Rows that the sink has in the same or a newer version."),
    _apply("rows_rejected_total", Kind.COUNTER, "1", "Rows that the sink refused for good."),
    _apply("batch_seconds", Kind.HISTOGRAM, "s", "How long a batch took, until its progress was stored."),
    _apply("watermark_lsn", Kind.GAUGE, "", "Up to where everything is applied, as a number."),
    _apply("watermark_timestamp_seconds", Kind.GAUGE, "s", "Commit time of the watermark."),
    _apply("running", Kind.GAUGE, "", "1 while the job runs, 0 after it has ended."),
    _apply("failures_total", Kind.COUNTER, "1", "Jobs that have stopped and need an operator.", ("sink",)),
    _apply("waits_total", Kind.COUNTER, "1", "Times that a server didn't answer and was tried again.", ("sink",)),
    _view("rows", Kind.GAUGE, "1", "Rows of the view's result."),
    _view("state_rows", Kind.GAUGE, "1", "Entries of the view's state."),
    _view("state_bytes", Kind.GAUGE, "By", "Disk that the view's state takes."),
    _view("steps_total", Kind.COUNTER, "1", "Steps that were taken."),
    _view("transactions_total", Kind.COUNTER, "1", "Transactions that steps took in."),
    _view("changes_in_total", Kind.COUNTER, "1", "Changed rows of tables that steps took in."),
    _view("changes_out_total", Kind.COUNTER, "1", "Changed rows of the result."),
    _view("amplification", Kind.GAUGE, "1", "Rows of the result that change with one of a table."),
    _view("building", Kind.GAUGE, "", "1 while the view's state is being built, else 0."),
    _view("built_ratio", Kind.GAUGE, "1", "Share of the present step of the building that is done, of 1."),
    _view("building_left_seconds", Kind.GAUGE, "s", "Time left of the present step of the building."),
    dashboard_gauge("stage_behind_bytes", "By", "WAL between the stage and the WAL's end.", _STAGE),
    dashboard_gauge("stage_behind_seconds", "s", "The stage has all that was committed longer ago.", _STAGE),
    dashboard_gauge("stage_behind_events", "1", "Records that the stage lacks, of those in Kafka.", _STAGE),
    dashboard_gauge("stage_state", "", "1 for its state, 0 for the others; unknown stands alone.", (*_STAGE, "state")),
    dashboard_gauge("slot_active", "", "1 while a process reads the slot."),
    dashboard_gauge("slot_retained_bytes", "By", "WAL that the slot makes the server keep."),
    dashboard_gauge("slot_safe_bytes", "By", "WAL that can be written before the slot may be lost."),
    dashboard_gauge("slot_full_seconds", "s", "Time until the slot is lost, at the present rate and without a reader."),
    dashboard_gauge("wal_bytes_per_second", "By/s", "WAL that the source writes."),
    dashboard_gauge("open_rejections", "1", "Rejected rows that nothing has replaced.", _SINK),
    dashboard_gauge("failed_tables", "1", "Tables that can't be applied; the sink goes on without them.", _SINK),
    dashboard_gauge("rebuild_needed", "", "1 where today's settings differ from those it was built with.", _SINK),
    dashboard_gauge("sink_answers", "", "1 where the sink could be asked, else 0.", ("sink",)),
    dashboard_gauge("paused_copies", "1", "Copies of tables that are paused."),
    dashboard_gauge("broken", "", "1 where capture can't ever go on."),
    dashboard_gauge("condition", "", "1 for each condition that is open.", ("condition", "subject", "severity")),
    dashboard_gauge("look_timestamp_seconds", "s", "When the pipeline was last looked at; not there if it can't be."),
)

DEFINITIONS: Final[Mapping[str, Definition]] = {definition.name: definition for definition in _ALL}
"""By name, in the order of the documentation."""
