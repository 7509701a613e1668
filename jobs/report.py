"""What a running job tells: values for whoever shows them, and a log for those who don't."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

from cdc.model.errors import LockstepError
from cdc.model.log_message import LogMessage
from cdc.model.lsn import format_lsn
from cdc.model.times import time_text
from views.counters import Counters
from views.figures import ViewFigures

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SinkStarted:
    """A sink's query runs. ``checkpoint`` is where its offsets are."""

    sink: str
    generation: int
    checkpoint: str


@dataclass(frozen=True, slots=True)
class KeepsMicroBatches:
    """Long batches were asked for, and this generation has none, for this reason."""

    sink: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class StatusReport:
    """A batch has been applied and its progress stored. ``rejected_total`` counts over the generation's life."""

    sink: str
    generation: int
    batch_id: int
    rows: int
    applied: int
    stale: int
    rejected: int
    rejected_total: int
    duration_ms: int
    newest_commit_ms: int
    watermark_lsn: int


@dataclass(frozen=True, slots=True)
class WatermarkRaised:
    """Between batches, more is known to be applied."""

    sink: str
    generation: int
    watermark_lsn: int
    commit_time_ms: int


@dataclass(frozen=True, slots=True)
class ViewReport:
    """What a view holds now, and ``done`` what it has done since the last report, which was seconds ago."""

    sink: str
    generation: int
    figures: ViewFigures
    done: Counters


@dataclass(frozen=True, slots=True)
class SinkWaiting:
    """A server doesn't answer; nothing is lost, the same work is tried again in ``retry_in_s``."""

    sink: str
    reason: str
    retry_in_s: float


SLOW_ANSWER_S: Final = 2.0
"""An answer to a sign of life takes milliseconds."""

BUSY_SHARE: Final = 0.5
"""Of the time that tasks wait for a processor: from here on a slow answer may be ours."""


@dataclass(frozen=True, slots=True)
class BatchGoesOn:
    """A batch takes longer than its rows do. ``answer_s`` is how long the sink's server took for its last answer to
    the job's sign of life, or has taken so far; ``wait_share`` how much of the last seconds this process's machine had
    tasks waiting for a processor, from 0 to 1, None where the kernel doesn't say.
    """

    sink: str
    generation: int
    batch_id: int
    elapsed_s: float
    answer_s: float = 0.0
    wait_share: float | None = None

    @property
    def why(self) -> str:
        """What is known of why, by what was measured alone."""
        if self.answer_s >= SLOW_ANSWER_S and (self.wait_share or 0.0) < BUSY_SHARE:
            return f"the sink's server hangs, or is slow: its last answer took {self.answer_s:.1f} s"
        if self.wait_share is not None and self.wait_share >= BUSY_SHARE:
            return f"this machine is busy: for {self.wait_share:.0%} of the last 10 s, work waited for a processor"
        return "the sink's server answers, and the batch is at work"


@dataclass(frozen=True, slots=True)
class SinkFailed:
    """This generation, or all of the sink (None), has stopped for good and needs somebody; the others go on."""

    sink: str
    generation: int | None
    error: LockstepError


@dataclass(frozen=True, slots=True)
class SinkStopped:
    """This generation has stopped because it was asked to, or because it is done."""

    sink: str
    generation: int


@dataclass(frozen=True, slots=True)
class TablesSetAside:
    """These tables of the sink aren't as all others from now on. Without ``sentences`` there are none any more.

    ``has_failed``: one of them can't be applied.
    """

    sink: str
    generation: int
    sentences: tuple[str, ...]
    has_failed: bool


@dataclass(frozen=True, slots=True)
class TablesChanged:
    """The sink has other tables from now on: ``joined`` are captured now; ``left`` no longer, and keep their rows."""

    sink: str
    generation: int
    joined: tuple[str, ...]
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DefinitionDiffers:
    """The live generation was built with other settings than today's; ``settings`` names those that differ."""

    sink: str
    generation: int
    settings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ColumnBackfillProgress:
    """Rows from before a table got these columns are given what the source shows in them; so far, or all (``is_over``).

    ``refused`` ones stay without, and ``reason`` is why the first of them does.
    """

    sink: str
    generation: int
    table: str
    columns: tuple[str, ...]
    rows: int
    refused: int
    reason: str
    is_over: bool


@dataclass(frozen=True, slots=True)
class UnreadableDeadLetters:
    """Dead letters of this sink, or of one that they don't name, can't be read: they stay, and nothing closes them.

    ``records`` counts them. ``first_offset``, in ``topic``, and ``reason`` are those of the oldest.
    """

    sink: str
    generation: int
    topic: str
    records: int
    first_offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class LacksRecord:
    """A view, or a consistent sink, ends without the newest events: no progress record says of them that they are
    whole transactions.

    It has everything up to ``watermark_lsn``. ``awaits_copy``: one of its tables is being copied, and until that is
    complete no record says so.
    """

    sink: str
    generation: int
    watermark_lsn: int
    awaits_copy: bool = False


@dataclass(frozen=True, slots=True)
class StreamReport:
    """A batch of a stream query is done. The counts are the batch's own, but for the rows that Spark keeps.

    ``watermark_ms`` is the event time up to which the next batch takes events as complete, None before there is one.
    """

    sink: str
    generation: int
    batch_id: int
    results: int
    late: int
    malformed: int
    refused: int
    state_rows: int
    watermark_ms: int | None


Report = (
    SinkStarted
    | KeepsMicroBatches
    | StatusReport
    | WatermarkRaised
    | ViewReport
    | SinkWaiting
    | BatchGoesOn
    | SinkFailed
    | SinkStopped
    | TablesSetAside
    | TablesChanged
    | DefinitionDiffers
    | ColumnBackfillProgress
    | UnreadableDeadLetters
    | LacksRecord
    | StreamReport
)
Reporter = Callable[[Report], None]
"""Called from the sinks' own threads; must be quick."""


def log_report(report: Report) -> None:
    """The reporter for a job that nobody watches: one message per report, no values of rows."""
    level, message = _message(report)
    logger.log(level, message)


def _message(report: Report) -> tuple[int, LogMessage]:
    match report:
        case SinkStarted():
            return logging.INFO, LogMessage(
                "sink started",
                {"sink": report.sink, "generation": report.generation, "checkpoint": report.checkpoint},
            )
        case KeepsMicroBatches():
            return logging.INFO, LogMessage(
                "sink keeps micro-batches",
                {"sink": report.sink, "generation": report.generation, "reason": report.reason},
            )
        case StatusReport():
            return logging.INFO, LogMessage(
                "batch applied",
                {
                    "sink": report.sink,
                    "generation": report.generation,
                    "batch": report.batch_id,
                    "rows": report.rows,
                    "applied": report.applied,
                    "stale": report.stale,
                    "rejected": report.rejected,
                    "duration_ms": report.duration_ms,
                    "watermark": format_lsn(report.watermark_lsn),
                },
            )
        case WatermarkRaised():
            return logging.DEBUG, LogMessage(
                "watermark raised", {"sink": report.sink, "watermark": format_lsn(report.watermark_lsn)}
            )
        case ViewReport():
            building = report.figures.building
            return logging.DEBUG if building is None else logging.INFO, LogMessage(
                "view is kept" if building is None else "view is being built",
                {
                    "sink": report.sink,
                    "generation": report.generation,
                    "rows": report.figures.rows,
                    "state_bytes": report.figures.state_bytes,
                    "steps": report.done.steps,
                }
                if building is None
                else {"sink": report.sink, "generation": report.generation, "progress": building.sentence},
            )
        case SinkWaiting():
            return logging.WARNING, LogMessage(
                "sink waits",
                {"sink": report.sink, "reason": report.reason, "retry_in_s": round(report.retry_in_s, 1)},
            )
        case BatchGoesOn():
            return logging.WARNING, LogMessage(
                "batch goes on",
                {
                    "sink": report.sink,
                    "generation": report.generation,
                    "batch": report.batch_id,
                    "elapsed_s": round(report.elapsed_s),
                },
                report.why,
            )
        case SinkFailed():
            return logging.ERROR, LogMessage(
                "sink failed",
                {
                    "sink": report.sink,
                    "generation": "all" if report.generation is None else report.generation,
                    "error": str(report.error),
                },
            )
        case SinkStopped():
            return logging.INFO, LogMessage("sink stopped", {"sink": report.sink, "generation": report.generation})
        case TablesSetAside():
            return logging.WARNING if report.sentences else logging.INFO, LogMessage(
                "tables are set aside" if report.sentences else "no table is set aside any more",
                {"sink": report.sink, "generation": report.generation},
                "\n".join(report.sentences),
            )
        case TablesChanged():
            changes = {"joined": report.joined, "left": report.left}
            return logging.INFO, LogMessage(
                "the sink has other tables",
                {
                    "sink": report.sink,
                    "generation": report.generation,
                    **{what: tables for what, tables in changes.items() if tables},
                },
                "the rows of those that left stay as they are" if report.left else "",
            )
        case DefinitionDiffers():
            return logging.WARNING, LogMessage(
                "sink was built with other settings",
                {"sink": report.sink, "generation": report.generation, "differs_in": report.settings},
                f"`lockstep rebuild {report.sink}` builds it with today's",
            )
        case ColumnBackfillProgress():
            return logging.WARNING if report.refused else logging.INFO, LogMessage(
                "rows get the values of new columns",
                {
                    "sink": report.sink,
                    "generation": report.generation,
                    "table": report.table,
                    "columns": report.columns,
                    "rows": report.rows,
                    "refused": report.refused,
                    "reason": report.reason or "none",
                    "done": report.is_over,
                },
            )
        case UnreadableDeadLetters():
            return logging.WARNING, LogMessage(
                "dead letters can't be read and stay as they are",
                {
                    "sink": report.sink,
                    "generation": report.generation,
                    "topic": report.topic,
                    "records": report.records,
                    "first_offset": report.first_offset,
                    "reason": report.reason,
                },
                f"`lockstep rejections list {report.sink}` shows them",
            )
        case LacksRecord():
            return logging.WARNING, LogMessage(
                "sink lacks the newest transactions",
                {
                    "sink": report.sink,
                    "generation": report.generation,
                    "watermark": format_lsn(report.watermark_lsn),
                    "reason": (
                        "one of its tables is being copied, and they come when that copy is complete"
                        if report.awaits_copy
                        else "no progress record says that they are complete"
                    ),
                },
                "let capture run, which writes one: `lockstep run` or `lockstep capture`",
            )
        case StreamReport():
            return logging.INFO, LogMessage(
                "stream query applied a batch",
                {
                    "sink": report.sink,
                    "generation": report.generation,
                    "batch": report.batch_id,
                    "results": report.results,
                    "late": report.late,
                    "malformed": report.malformed,
                    "refused": report.refused,
                    "state_rows": report.state_rows,
                    "watermark": time_text(report.watermark_ms),
                },
            )
        case _:
            assert_never(report)
