"""Reports of a stream query's batches, for the log and metrics."""

from dataclasses import dataclass
from logging import INFO

from cdc.model.log_message import LogMessage
from cdc.model.times import time_text
from jobs.report import Message
from monitor.metrics.meters import Meters
from monitor.metrics.sinks import CountedReport

_COUNTED = ("results", "late", "malformed", "refused")


@dataclass(frozen=True, slots=True)
class StreamReport(CountedReport):
    """A batch of a stream query is done. The counts are the batch's own, except ``state_rows``. ``watermark_ms`` is the
    event time up to which the next batch takes events as complete; None before there is one.
    """

    generation: int
    batch_id: int
    results: int
    late: int
    malformed: int
    refused: int
    state_rows: int
    watermark_ms: int | None

    @property
    def message(self) -> Message:
        counts = {name: getattr(self, name) for name in (*_COUNTED, "state_rows")}
        facts = {"sink": self.sink, "generation": self.generation, "batch": self.batch_id, **counts}
        facts["watermark"] = time_text(self.watermark_ms)
        return INFO, LogMessage("stream query applied a batch", facts)

    def count(self, meters: Meters) -> None:
        labels = {"sink": self.sink, "generation": str(self.generation)}
        for name in _COUNTED:
            meters.add(f"lockstep_stream_query_{name}_total", getattr(self, name), labels)
        meters.set("lockstep_stream_query_state_rows", self.state_rows, labels)
        if self.watermark_ms is not None:
            meters.set("lockstep_stream_query_watermark_timestamp_seconds", self.watermark_ms / 1000, labels)
