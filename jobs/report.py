"""The reports of a running job: values for a display, and log messages where nobody watches."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Final

from cdc.model.errors import LockstepError
from cdc.model.log_message import Fact, LogMessage
from cdc.model.lsn import format_lsn
from views.counters import Counters
from views.figures import ViewFigures

logger = logging.getLogger(__name__)

Message = tuple[int, LogMessage]
"""The level and the log message of a report."""


@dataclass(frozen=True, slots=True)
class Report(ABC):
    """A job's report about its sink."""

    sink: str

    @property
    @abstractmethod
    def message(self) -> Message: ...


@dataclass(frozen=True, slots=True)
class _OfGeneration(Report):
    generation: int

    def _facts(self, *names: str, **more: Fact) -> dict[str, Fact]:
        """The sink, the generation, these fields of the report, and ``more``."""
        return {name: getattr(self, name) for name in ("sink", "generation", *names)} | more


@dataclass(frozen=True, slots=True)
class SinkStarted(_OfGeneration):
    """A sink's query runs."""

    @property
    def message(self) -> Message:
        return INFO, LogMessage("sink started", self._facts())


@dataclass(frozen=True, slots=True)
class BatchApplied(_OfGeneration):
    """A batch, or the next part of a long one, was applied and its progress stored."""

    batch_id: int
    rows: int
    """Records that were read."""
    applied: int
    stale: int
    """``applied`` and ``stale`` are those of ``sinks.contract.Outcome``."""
    rejected: int
    duration_ms: int
    watermark_lsn: int
    commit_time_ms: int
    """Of the watermark, in milliseconds since 1970; 0 if unknown."""

    @property
    def message(self) -> Message:
        facts = {name: getattr(self, name) for name in ("rows", "applied", "stale", "rejected", "duration_ms")}
        watermark = format_lsn(self.watermark_lsn)
        return INFO, LogMessage("batch applied", self._facts(batch=self.batch_id, **facts, watermark=watermark))


@dataclass(frozen=True, slots=True)
class WatermarkRaised(_OfGeneration):
    """Between batches, more is known to be applied."""

    watermark_lsn: int
    commit_time_ms: int

    @property
    def message(self) -> Message:
        facts = {"sink": self.sink, "watermark": format_lsn(self.watermark_lsn)}
        return DEBUG, LogMessage("watermark raised", facts)


@dataclass(frozen=True, slots=True)
class ViewReport(_OfGeneration):
    """A view's present figures, and what it has ``done`` since the last report, which was seconds ago."""

    figures: ViewFigures
    done: Counters

    @property
    def message(self) -> Message:
        if self.figures.building is not None:
            facts = self._facts(progress=self.figures.building.sentence)
            return INFO, LogMessage("view is being built", facts)
        figures = self.figures
        facts = self._facts(rows=figures.rows, state_bytes=figures.state_bytes, steps=self.done.steps)
        return DEBUG, LogMessage("view is kept", facts)


@dataclass(frozen=True, slots=True)
class SinkWaiting(Report):
    """A server doesn't answer; nothing is lost, and the same work is tried again in ``retry_in_s``."""

    reason: str
    retry_in_s: float

    @property
    def message(self) -> Message:
        retry_in_s = round(self.retry_in_s, 1)
        return WARNING, LogMessage("sink waits", {"sink": self.sink, "reason": self.reason, "retry_in_s": retry_in_s})


SLOW_ANSWER_S: Final = 2.0
"""The answer to a heartbeat normally takes milliseconds."""

BUSY_SHARE: Final = 0.5
"""The share of time in which tasks wait for a processor from which a slow answer may be this machine's fault."""


@dataclass(frozen=True, slots=True)
class BatchGoesOn(_OfGeneration):
    """A batch takes longer than its rows should. ``answer_s`` is how long the sink's server took for its last answer to
    the job's heartbeat, or has taken so far. ``wait_share`` is the share, 0 to 1, of the last seconds in which tasks on
    this machine waited for a processor; None if the kernel doesn't say. ``refusal`` is why the server didn't take that
    heartbeat; None if it did."""

    batch_id: int
    elapsed_s: float
    answer_s: float = 0.0
    wait_share: float | None = None
    refusal: str | None = None

    @property
    def why(self) -> str:
        """What is known of the reason, from measurements only."""
        if self.refusal is not None:
            return f"the batch waits for the sink's server: {self.refusal}"
        if self.answer_s >= SLOW_ANSWER_S and (self.wait_share or 0.0) < BUSY_SHARE:
            return f"the sink's server hangs, or is slow: its last answer took {self.answer_s:.1f} s"
        if self.wait_share is not None and self.wait_share >= BUSY_SHARE:
            return f"this machine is busy: for {self.wait_share:.0%} of the last 10 s, work waited for a processor"
        return "the sink's server answers, and the batch is at work"

    @property
    def message(self) -> Message:
        facts = self._facts(batch=self.batch_id, elapsed_s=round(self.elapsed_s))
        return WARNING, LogMessage("batch goes on", facts, self.why)


@dataclass(frozen=True, slots=True)
class SinkFailed(Report):
    """This generation, or all of the sink (None), has stopped for good and needs somebody; the others go on."""

    generation: int | None
    error: LockstepError

    @property
    def message(self) -> Message:
        generation = "all" if self.generation is None else self.generation
        facts = {"sink": self.sink, "generation": generation, "error": str(self.error)}
        return ERROR, LogMessage("sink failed", facts)


@dataclass(frozen=True, slots=True)
class SinkStopped(_OfGeneration):
    """This generation has stopped because it was asked to, or because it is done."""

    @property
    def message(self) -> Message:
        return INFO, LogMessage("sink stopped", self._facts())


@dataclass(frozen=True, slots=True)
class TablesHeld(_OfGeneration):
    """The tables that are held from now on, a sentence for each; none if ``sentences`` is empty. ``has_failed``:
    one of them can't be applied."""

    sentences: tuple[str, ...]
    has_failed: bool

    @property
    def message(self) -> Message:
        if not self.sentences:
            return INFO, LogMessage("no table is held any more", self._facts())
        return WARNING, LogMessage("tables are held", self._facts(), "\n".join(self.sentences))


@dataclass(frozen=True, slots=True)
class TablesChanged(_OfGeneration):
    """The sink's tables have changed: ``joined`` are captured now; ``left`` no longer, and their rows stay."""

    joined: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def message(self) -> Message:
        changes = [name for name in ("joined", "left") if getattr(self, name)]
        explanation = "the rows of those that left stay as they are" if self.left else ""
        return INFO, LogMessage("the sink has other tables", self._facts(*changes), explanation)


@dataclass(frozen=True, slots=True)
class DefinitionDiffers(_OfGeneration):
    """The live generation was built with other settings than today's; ``settings`` names those that differ."""

    settings: tuple[str, ...]

    @property
    def message(self) -> Message:
        explanation = f"`lockstep rebuild {self.sink}` builds it with today's"
        facts = self._facts(differs_in=self.settings)
        return WARNING, LogMessage("sink was built with other settings", facts, explanation)


@dataclass(frozen=True, slots=True)
class ColumnBackfillProgress(_OfGeneration):
    """Older rows get the source's values of these new columns; so far, or all (``is_over``). ``refused`` rows stay
    without, and ``reason`` is that of the first one."""

    table: str
    columns: tuple[str, ...]
    rows: int
    refused: int
    reason: str
    is_over: bool

    @property
    def message(self) -> Message:
        facts = self._facts("table", "columns", "rows", "refused", reason=self.reason or "none", done=self.is_over)
        return WARNING if self.refused else INFO, LogMessage("rows get the values of new columns", facts)


@dataclass(frozen=True, slots=True)
class UnreadableDeadLetters(_OfGeneration):
    """Dead letters of this sink, or without a readable sink, can't be read: they stay, and nothing closes them.
    ``records`` counts them. ``first_offset`` in ``topic``, and ``reason``, are those of the oldest."""

    topic: str
    records: int
    first_offset: int
    reason: str

    @property
    def message(self) -> Message:
        return WARNING, LogMessage(
            "dead letters can't be read and stay as they are",
            self._facts("topic", "records", "first_offset", "reason"),
            f"`lockstep rejections list {self.sink}` shows them",
        )


@dataclass(frozen=True, slots=True)
class LacksRecord(_OfGeneration):
    """A view, or a consistent sink, ends without the newest events: no progress record shows that they are whole
    transactions. It has everything up to ``watermark_lsn``. ``awaits_copy``: one of its tables is being copied, and
    there is no such record until that is complete."""

    watermark_lsn: int
    awaits_copy: bool = False

    @property
    def message(self) -> Message:
        reason = "no progress record says that they are complete"
        if self.awaits_copy:
            reason = "one of its tables is being copied, and they come when that copy is complete"
        return WARNING, LogMessage(
            "sink lacks the newest transactions",
            self._facts(watermark=format_lsn(self.watermark_lsn), reason=reason),
            "let capture run, which writes one: `lockstep run` or `lockstep capture`",
        )


Reporter = Callable[[Report], None]
"""Called from the sinks' own threads; must be quick."""


def log_report(report: Report) -> None:
    """The reporter for a job that nobody watches: one log message per report, without values of rows."""
    logger.log(*report.message)
