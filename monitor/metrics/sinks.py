"""What jobs count: per batch, never per row."""

from abc import abstractmethod

from jobs.report import (
    BatchApplied,
    Report,
    Reporter,
    SinkFailed,
    SinkStarted,
    SinkStopped,
    SinkWaiting,
    ViewReport,
    WatermarkRaised,
)
from monitor.metrics.meters import Meters


class CountedReport(Report):
    """A report of an extension's job, which has metrics of the extension's own."""

    @abstractmethod
    def count(self, meters: Meters) -> None:
        """Called once for each report."""


def measured(report: Reporter, meters: Meters) -> Reporter:
    """The same reporter, which also counts."""
    running: set[tuple[str, int]] = set()

    def ended(sink: str, generation: int | None) -> None:
        for name, number in [at for at in running if at[0] == sink and generation in (None, at[1])]:
            running.discard((name, number))
            meters.set("lockstep_sink_running", 0, _labels(name, number))

    def counted(event: Report) -> None:
        match event:
            case SinkStarted():
                running.add((event.sink, event.generation))
                meters.set("lockstep_sink_running", 1, _labels(event.sink, event.generation))
            case BatchApplied():
                labels = _labels(event.sink, event.generation)
                meters.add("lockstep_sink_rows_read_total", event.rows, labels)
                meters.add("lockstep_sink_rows_applied_total", event.applied, labels)
                meters.add("lockstep_sink_rows_stale_total", event.stale, labels)
                meters.add("lockstep_sink_rows_rejected_total", event.rejected, labels)
                meters.observe("lockstep_sink_batch_seconds", event.duration_ms / 1000, labels)
                _set_watermark(meters, event)
            case WatermarkRaised():
                _set_watermark(meters, event)
            case ViewReport():
                _count_view(meters, event)
            case CountedReport():
                event.count(meters)
            case SinkWaiting():
                meters.add("lockstep_sink_waits_total", 1, {"sink": event.sink})
            case SinkFailed():
                meters.add("lockstep_sink_failures_total", 1, {"sink": event.sink})
                ended(event.sink, event.generation)
            case SinkStopped():
                ended(event.sink, event.generation)
            case _:
                pass  # not a figure
        report(event)

    return counted


def _labels(sink: str, generation: int) -> dict[str, str]:
    return {"sink": sink, "generation": str(generation)}


def _set_watermark(meters: Meters, event: BatchApplied | WatermarkRaised) -> None:
    labels = _labels(event.sink, event.generation)
    meters.set("lockstep_sink_watermark_lsn", event.watermark_lsn, labels)
    if event.commit_time_ms:
        meters.set("lockstep_sink_watermark_timestamp_seconds", event.commit_time_ms / 1000, labels)


def _count_view(meters: Meters, view: ViewReport) -> None:
    labels, figures, done = _labels(view.sink, view.generation), view.figures, view.done
    building = figures.building
    gauges = {
        "rows": figures.rows,
        "state_rows": figures.state_rows,
        "state_bytes": figures.state_bytes,
        "amplification": figures.counters.amplification,
        "building": 0 if building is None else 1,
        "built_ratio": 1 if building is None else building.done / (building.total or 1),
        "building_left_seconds": 0 if building is None else building.seconds_left or 0,
    }
    for name, value in gauges.items():
        meters.set(f"lockstep_view_{name}", value, labels)
    if building is None:
        meters.add("lockstep_view_steps_total", done.steps, labels)
        meters.add("lockstep_view_transactions_total", done.transactions, labels)
        meters.add("lockstep_view_changes_in_total", done.changes_in, labels)
        meters.add("lockstep_view_changes_out_total", done.changes_out, labels)
