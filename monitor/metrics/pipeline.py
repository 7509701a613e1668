"""The lag report as metrics: gauges that are complete at each look. Pure."""

from typing import Final

from monitor.lag import LagReport, Stage, StageState
from monitor.metrics.definitions import Part
from monitor.metrics.meters import Gauges

_OWN_STATES: Final = (StageState.CURRENT, StageState.BEHIND, StageState.STALLED)


def gauges_of(report: LagReport, *, now_s: float) -> Gauges:
    """The metrics of a report that was made at ``now_s``, in seconds since 1970. Figures of a silent server are left
    out: they are old, or were never known. If Kafka is silent, those of the source and the sinks are there."""
    gauges = Gauges(Part.DASHBOARD)
    is_asked = "source" not in report.silent_servers
    is_whole = not report.silent_servers
    for stage in report.stages:
        labels = _labels(stage)
        gauges.set("lockstep_stage_behind_bytes", stage.bytes_behind, *labels)
        gauges.set("lockstep_stage_behind_seconds", stage.seconds_behind, *labels)
        gauges.set("lockstep_stage_behind_events", stage.events_behind, *labels)
        if stage.of_sink is not None and stage.state not in (*_OWN_STATES, StageState.UNKNOWN):
            continue  # it has the state of the applied stage beside it, which is enough
        for state in [stage.state] if stage.state is StageState.UNKNOWN else StageState:
            gauges.set("lockstep_stage_state", float(stage.state is state), *labels, state.value)
        sink = stage.sink
        if is_asked and sink is not None:
            generation = str(sink.generation)
            if sink.label in report.open_rejections:
                gauges.set("lockstep_open_rejections", report.open_rejections[sink.label], sink.name, generation)
            if sink.job is not None:
                failed = sum(held.has_failed for held in sink.job.held_tables.values())
                gauges.set("lockstep_failed_tables", failed, sink.name, generation)
            if sink.name not in report.unanswered:
                is_needed = float(sink.label in report.rebuild_needed)
                gauges.set("lockstep_rebuild_needed", is_needed, sink.name, generation)
    if is_asked:
        for name in dict.fromkeys(stage.sink.name for stage in report.stages if stage.sink is not None):
            gauges.set("lockstep_sink_answers", float(name not in report.unanswered), name)
        minutes = report.minutes_until_full
        gauges.set("lockstep_slot_active", None if report.slot_active is None else float(report.slot_active))
        gauges.set("lockstep_slot_retained_bytes", report.retained_bytes)
        gauges.set("lockstep_slot_safe_bytes", report.safe_wal_bytes)
        gauges.set("lockstep_slot_full_seconds", None if minutes is None else minutes * 60)
        gauges.set("lockstep_wal_bytes_per_second", report.wal_rate)
    if is_whole:
        for name, count in report.refused_rows.items():
            gauges.set("lockstep_open_rejections", count, name, "")
        gauges.set("lockstep_paused_copies", len(report.paused_copies) + report.first_copy_paused)
        gauges.set("lockstep_broken", float(bool(report.broken)))
    gauges.set("lockstep_look_timestamp_seconds", now_s)
    return gauges


def _labels(stage: Stage) -> tuple[str, str, str]:
    name = stage.name.partition(":")[0]
    sink = stage.generation
    return (name, "", "") if sink is None else (name, sink.name, str(sink.generation))
