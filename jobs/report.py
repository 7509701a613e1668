"""What a running job tells: values for whoever shows them, and a log for those who don't."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from cdc.model.errors import LockstepError
from cdc.model.lsn import format_lsn

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
class SinkWaiting:
    """A server doesn't answer; nothing is lost, the same work is tried again in ``retry_in_s``."""

    sink: str
    reason: str
    retry_in_s: float


@dataclass(frozen=True, slots=True)
class BatchGoesOn:
    """A batch takes longer than its rows do: a server hangs without refusing anything, or is slow."""

    sink: str
    generation: int
    batch_id: int
    elapsed_s: float


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


Report = (
    SinkStarted
    | KeepsMicroBatches
    | StatusReport
    | WatermarkRaised
    | SinkWaiting
    | BatchGoesOn
    | SinkFailed
    | SinkStopped
    | DefinitionDiffers
    | ColumnBackfillProgress
    | UnreadableDeadLetters
)
Reporter = Callable[[Report], None]
"""Called from the sinks' own threads; must be quick."""


def log_report(report: Report) -> None:
    """The reporter for a job that nobody watches: one line per report, no values of rows."""
    match report:
        case SinkStarted():
            logger.info(
                "sink started sink=%s generation=%d checkpoint=%s", report.sink, report.generation, report.checkpoint
            )
        case KeepsMicroBatches():
            logger.info(
                "sink keeps micro-batches sink=%s generation=%d reason=%s",
                report.sink,
                report.generation,
                report.reason,
            )
        case StatusReport():
            logger.info(
                "batch applied sink=%s generation=%d batch=%d rows=%d applied=%d stale=%d rejected=%d duration_ms=%d "
                "watermark=%s",
                report.sink,
                report.generation,
                report.batch_id,
                report.rows,
                report.applied,
                report.stale,
                report.rejected,
                report.duration_ms,
                format_lsn(report.watermark_lsn),
            )
        case WatermarkRaised():
            logger.debug("watermark raised sink=%s watermark=%s", report.sink, format_lsn(report.watermark_lsn))
        case SinkWaiting():
            logger.warning(
                "sink waits sink=%s reason=%s retry_in_s=%.1f", report.sink, report.reason, report.retry_in_s
            )
        case BatchGoesOn():
            logger.warning(
                "batch goes on sink=%s generation=%d batch=%d elapsed_s=%.0f: the sink's server hangs, or is slow",
                report.sink,
                report.generation,
                report.batch_id,
                report.elapsed_s,
            )
        case SinkFailed():
            generation = "all" if report.generation is None else str(report.generation)
            logger.error("sink failed sink=%s generation=%s error=%s", report.sink, generation, report.error)
        case SinkStopped():
            logger.info("sink stopped sink=%s generation=%d", report.sink, report.generation)
        case DefinitionDiffers():
            logger.warning(
                "sink was built with other settings sink=%s generation=%d differs_in=%s:"
                " `lockstep rebuild %s` builds it with today's",
                report.sink,
                report.generation,
                ",".join(report.settings),
                report.sink,
            )
        case ColumnBackfillProgress():
            logger.log(
                logging.WARNING if report.refused else logging.INFO,
                "rows get the values of new columns sink=%s generation=%d table=%s columns=%s rows=%d refused=%d"
                " reason=%s done=%s",
                report.sink,
                report.generation,
                report.table,
                ",".join(report.columns),
                report.rows,
                report.refused,
                report.reason or "none",
                report.is_over,
            )
        case UnreadableDeadLetters():
            logger.warning(
                "dead letters can't be read and stay as they are sink=%s generation=%d topic=%s records=%d "
                "first_offset=%d reason=%s: `lockstep rejections list %s` shows them",
                report.sink,
                report.generation,
                report.topic,
                report.records,
                report.first_offset,
                report.reason,
                report.sink,
            )
        case _:
            assert_never(report)
