"""Shows the lag report on a terminal."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import repeat

from rich.console import Group
from rich.table import Table
from rich.text import Text

from cdc.model.lsn import format_lsn
from cdc.model.times import time_text
from cdc.stream.slot_watch import WARN_MINUTES
from jobs.generations.view_state import ReportedView
from monitor.lag import LagReport, Stage, StageState
from monitor.next_steps import rebuild_step
from monitor.units import readable_bytes
from monitor.verification import VerifyOutcome
from monitor.watching import Panel


def lag_table(lag: LagReport) -> Group:
    """A table of the stages, and below it a sentence for each sink that needs attention."""
    table = Table(title=None, expand=False, pad_edge=False)  # so that all columns fit into 80 characters
    for heading in ("stage", "state", "seconds\nbehind", "events\nbehind", "bytes\nbehind", "LSN"):
        table.add_column(heading, justify="left" if heading in ("stage", "state") else "right")
    for stage in lag.stages:
        table.add_row(
            stage.name,
            Text(stage.state.value, style="red" if stage.state.needs_somebody else ""),
            "-" if stage.seconds_behind is None else f"{stage.seconds_behind:.1f}",
            "-" if stage.events_behind is None else f"{stage.events_behind:,}",
            "-" if stage.bytes_behind is None else readable_bytes(stage.bytes_behind),
            "-" if stage.lsn is None else format_lsn(stage.lsn),
        )
    return Group(table, *(Text(remark.sentence, style=remark.style) for remark in remarks(lag)))


def panel_table(panel: Panel) -> Group:
    """A line for each of its rows, then the reasons of those that don't move."""
    table = Table(panel.kind, "state", *panel.columns, box=None)
    for row in panel.rows:
        table.add_row(row.name, row.state, *map(_figure, panel.columns, row.figures, repeat(panel.times)))
    reasons = (f"{row.name}: {row.reason}" + (row.step and f"\n    {row.step}") for row in panel.rows if row.reason)
    return Group(table, *map(Text, reasons))


def _figure(column: str, figure: int | None, times: Collection[str]) -> str:
    if figure is None:
        return "none yet"
    return time_text(figure) if column in times else f"{figure:,}"


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence about what needs attention. ``about`` is the same in each report, "" if a stage's state says it."""

    sentence: str
    style: str
    about: str = ""


def remarks(lag: LagReport) -> Iterator[Remark]:
    """All remarks, the most important first."""
    yield from _of_the_pipeline(lag)
    yield from _of_progress(lag)
    yield from _of_jobs(lag)
    yield from _of_contents(lag)
    yield from _of_rejections(lag)


def _of_the_pipeline(lag: LagReport) -> Iterator[Remark]:
    worst = lag.worst
    if worst is not None and _is_reported_nowhere_else(worst):
        yield Remark(worst.sentence, "red")
    for sentence in lag.broken:
        yield Remark(f"{sentence}: `lockstep doctor` says what to do", "red")
    if lag.gap is not None and lag.gap.is_open:
        yield Remark(f"gap: {lag.gap}", "red", "gap")
    if lag.safe_wal_bytes is not None and (lag.wal_status in ("extended", "unreserved") or _is_soon_full(lag)):
        minutes = "" if lag.minutes_until_full is None else f", which takes {lag.minutes_until_full:.0f} minutes"
        left = readable_bytes(max(0, lag.safe_wal_bytes))
        yield Remark(f"the slot is lost after {left} more of WAL{minutes}", "red", "the slot's WAL")
    if lag.commit_interval_ms is not None:
        yield Remark(f"capture commits every {lag.commit_interval_ms} ms", "dim")
    for sentence in lag.held_by_copies:
        yield Remark(sentence, "yellow", sentence)


def _of_progress(lag: LagReport) -> Iterator[Remark]:
    for stage in lag.stages:
        if stage.state is StageState.BEHIND and stage.reason is not None:
            yield Remark(f"{stage.name}: {stage.reason}", "yellow", f"{stage.name}: limited")
    for sentence in lag.building_views:
        yield Remark(sentence, "yellow", sentence.partition(":")[0] + ": building")
    for label, view in lag.views.items():
        if not view.is_building:
            yield Remark(f"{label}: {view_text(view)}", "dim", f"{label}: figures")
    for label, known in lag.consistencies.items():
        yield Remark(
            f"{label}: {known.text}", "dim" if known.of_tables.is_reached else "yellow", f"{label}: consistent"
        )


def _of_jobs(lag: LagReport) -> Iterator[Remark]:
    for name, error in lag.unanswered.items():
        yield Remark(f"{name} can't be asked: {error}", "red")
    for label, job in lag.idle.items():
        yield Remark(job.sentence(label) or "", "red" if job.needs_somebody else "yellow")
    for sink in (stage.sink for stage in lag.stages if stage.sink is not None):
        for table, held in [] if sink.job is None else sink.job.by_need:
            sentence = f"{sink.label}: {held.sentence(sink.name, str(table))}"
            yield Remark(sentence, "red" if held.has_failed else "yellow", sentence)


def _of_contents(lag: LagReport) -> Iterator[Remark]:
    for label, names in lag.rebuild_needed.items():
        yield Remark(
            f"{label}: rebuild needed, it was built with other {', '.join(names)}: {rebuild_step(label)}",
            "yellow",
            f"{label}: rebuild needed",
        )
    for label, verification in lag.verified.items():
        is_fine = verification.outcome is VerifyOutcome.EQUAL
        yield Remark(verification.sentence(label, sink=label), "dim" if is_fine else "red", f"{label}: comparison")


def _of_rejections(lag: LagReport) -> Iterator[Remark]:
    if lag.unreadable_dead_letters:
        yield Remark(
            f"{lag.unreadable_dead_letters:,} records of the dead-letter topic can't be read, and aren't counted:"
            " `lockstep rejections list` says why",
            "red",
            "dead letters that can't be read",
        )
    for label, count in lag.open_rejections.items():
        ever = lag.rejected.get(label, 0)
        if count:
            sentence = f"{label}: {count:,} rejections open, {ever:,} ever: `lockstep rejections list`"
            yield Remark(sentence, "red", f"{label}: rejections open")
        elif ever:
            yield Remark(f"{label}: no rejection open, {ever:,} ever", "dim")
    for name, count in lag.refused_rows.items():
        if count:
            sentence = f"{name}: {count:,} rejections open: `lockstep rejections list {name}`"
            yield Remark(sentence, "red", f"{name}: rejections open")


def view_text(view: ReportedView) -> str:
    """A view's size and the cost of a change, or the progress of its build, in one line."""
    figures = view.figures
    if figures.building is not None:
        return f"the view's state is being built: {figures.building.sentence}"
    return (
        f"{figures.rows:,} rows, state {figures.state_rows:,} rows in {readable_bytes(figures.state_bytes)};"
        f" a changed row of a table changes {figures.counters.amplification:.1f}"
    )


def _is_reported_nowhere_else(stage: Stage) -> bool:
    """Jobs that have ended, and sinks that can't be asked, have sentences of their own."""
    if stage.sink is None:
        return stage.state in (StageState.STALLED, StageState.SILENT, StageState.UNKNOWN)
    return stage.state is StageState.STALLED


def _is_soon_full(lag: LagReport) -> bool:
    return lag.minutes_until_full is not None and lag.minutes_until_full < WARN_MINUTES
