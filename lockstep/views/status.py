"""``lockstep views list`` and ``explain``: the views, what each holds, and what its operators store now."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from cdc.model.errors import LockstepError
from cdc.model.lsn import format_lsn
from cdc.model.table import Table, TableName
from cdc.model.times import time_text
from jobs.generations.status import JobState
from jobs.generations.view_state import state_directory
from jobs.query.view_plan import planned_view
from lockstep.captured_tables import recorded_shapes
from lockstep.config import Config
from lockstep.generations import Description, describe, settings_of_generation
from monitor.lag_table import view_text
from sinks.view_settings import ViewSettings
from views.failures import Refused
from views.figures import ViewFigures
from views.operators.stored_entries import Kept, kept_by_operators, kept_together
from views.plan import ViewPlan
from views.shard import Shard, Sharding, shards
from views.state.contract import UnusableState
from views.state.file import WatchedState
from views.view import identity, stored_position


class ViewState(StrEnum):
    """``BUILDING``: its state is being built, and its sink gets nothing meanwhile. ``READY``: it is kept up to date.

    ``WAITING``: a table that it reads isn't captured. ``STOPPED``, ``STARTING``, ``SILENT`` and ``ABSENT``: no job
    keeps it up to date, as in ``jobs.generations.status.JobState``. ``UNKNOWN``: its store couldn't be asked.
    """

    BUILDING = "building"
    READY = "ready"
    WAITING = "waiting"
    STOPPED = "stopped"
    STARTING = "starting"
    SILENT = "silent"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """One generation of a view, in the store of the section ``sink``. ``number`` is None if nothing of the view exists
    yet, or if nobody knows.

    ``since_ms`` is since when it is in its state, None if nobody knows. ``reason`` and ``hint`` say why it isn't kept.
    ``figures`` are None if its state isn't on this machine and its job has reported none.
    """

    settings: ViewSettings
    sink: str
    number: int | None
    is_live: bool
    state: ViewState
    since_ms: int | None = None
    reason: str | None = None
    hint: str | None = None
    lsn: int | None = None
    figures: ViewFigures | None = None

    @property
    def label(self) -> str:
        """The view's name, with the number of a generation that isn't live."""
        name = self.settings.name
        return name if self.is_live or self.number is None else f"{name} g{self.number}"

    @property
    def needs_somebody(self) -> bool:
        """Whether it isn't kept although nobody wanted that. If it isn't live, only an error counts."""
        if self.state is ViewState.STOPPED:
            return True
        return self.is_live and self.state in (ViewState.SILENT, ViewState.UNKNOWN)

    def to_json(self) -> dict[str, Any]:
        return {
            "view": self.settings.name,
            "sink": self.sink,
            "key": list(self.settings.key),
            "tasks": self.settings.tasks,
            "generation": self.number,
            "live": self.is_live,
            "state": self.state.value,
            "since_ms": self.since_ms,
            "reason": self.reason,
            "hint": self.hint,
            "lsn": None if self.lsn is None else format_lsn(self.lsn),
            "figures": None if self.figures is None else self.figures.to_json(),
        }

    @property
    def sentence(self) -> str | None:
        """Why it doesn't exist or isn't kept, with the next step on a line of its own; None if it is ready."""
        if self.state is ViewState.READY:
            return None
        since = "" if self.since_ms is None else f" since {time_text(self.since_ms)}"
        reason = "" if self.reason is None else f": {self.reason}"
        return f"{self.label}: {self.state.value}{since}{reason}" + ("" if self.hint is None else f"\n    {self.hint}")


def views_now(config: Config) -> Iterator[ViewStatus]:
    """All generations of all views, the live one of each first. A silent store shows in its views' state."""
    for name in config.views:
        yield from view_now(config, name)


def view_now(config: Config, name: str) -> list[ViewStatus]:
    """The generations of a view, the live one first. Raises ConfigurationError for an unknown name."""
    uncaptured = config.uncaptured_tables(config.sinks[name]) if name in config.views else ()
    return [waiting_for(status, uncaptured) for status in _statuses(config, name)]


def waiting_for(status: ViewStatus, uncaptured: Sequence[TableName]) -> ViewStatus:
    """The status of a view that reads these uncaptured tables. Pure. An error of its job, and a store that doesn't
    answer, take precedence."""
    if not uncaptured or status.state in (ViewState.STOPPED, ViewState.SILENT, ViewState.UNKNOWN):
        return status
    return replace(
        status,
        state=ViewState.WAITING,
        since_ms=None,
        reason=f"it reads {', '.join(map(str, uncaptured))}, which isn't captured",
        hint="`lockstep doctor` says what is missing; once it is captured, the view goes on by itself",
    )


def _statuses(config: Config, name: str) -> list[ViewStatus]:
    """The same, regardless of what is captured."""
    view, sink = _settings_of(config, name), config.sinks[name].lender
    try:
        descriptions = describe(config, name)
    except LockstepError as error:
        return [ViewStatus(view, sink, None, True, ViewState.UNKNOWN, reason=error.message, hint=error.hint)]
    if not descriptions:
        hint = "`lockstep run` or `lockstep apply` builds it"
        return [ViewStatus(view, sink, None, True, ViewState.ABSENT, reason="nothing of it is there yet", hint=hint)]
    descriptions.sort(key=lambda of: not of.generation.is_live)
    return [_status(config, of, _built_with(config, view, of), is_only=len(descriptions) == 1) for of in descriptions]


def _figures(config: Config, of: Description, name: str) -> ViewFigures | None:
    """The figures of the state's file if it is on this machine and not older, else those that the job has reported."""
    reported = None if of.view is None else of.view.figures
    directory = state_directory(config.spark, pipeline=config.pipeline.name, sink=name, generation=of.generation.number)
    try:
        with closing(WatchedState(directory)) as watched:
            position = watched.read(stored_position)
            is_reported_newer = reported is not None and (reported.building is not None or reported.lsn > position.lsn)
            return reported if is_reported_newer else ViewFigures.of(position, watched.size())
    except LockstepError:
        return reported  # it isn't here, or not ours to read


def _settings_of(config: Config, name: str) -> ViewSettings:
    view = config.views.get(name)
    if view is None:
        raise config.not_found("view", name)
    return view


def _built_with(config: Config, today: ViewSettings, of: Description) -> ViewSettings:
    built = settings_of_generation(config, today.name, of.generation).view
    return today if built is None else built


def _status(config: Config, of: Description, view: ViewSettings, *, is_only: bool) -> ViewStatus:
    number = of.generation.number
    figures = _figures(config, of, view.name)
    lsn = of.progress.watermark_lsn if of.progress is not None and of.progress.watermark_lsn else None
    is_building = lsn is None if of.view is None else of.view.is_building
    state, since_ms, reason, hint = ViewState.READY, of.job.since_ms, of.job.reason, of.job.hint
    start = of.job.start
    match of.job.state:
        case JobState.STOPPED:
            state, hint = ViewState.STOPPED, start if hint is None else f"{hint}; then {of.job.start_again}"
        case JobState.SILENT:
            state, reason, hint = ViewState.SILENT, "its job ended without a word, or hangs", start
        case JobState.STARTING:
            state, reason, hint = ViewState.STARTING, "its job is starting", None
        case JobState.ABSENT:
            state, reason, hint = ViewState.ABSENT, "no job keeps it", start
        case _:
            since_ms = None if of.view is None else of.view.since_ms
            state = ViewState.BUILDING if is_building else ViewState.READY
            if is_building:
                reason = "it begins" if of.view is None else view_text(of.view)
    # A view's only generation goes by its name, even before readers see it.
    is_live = of.generation.is_live or is_only
    return ViewStatus(
        view, config.sinks[view.name].lender, number, is_live, state, since_ms, reason, hint, lsn, figures
    )


@dataclass(frozen=True, slots=True)
class Explained:
    """The plan of one generation of a view, and what each operator stores now, by its place among ``plan.nodes``.

    Without a state on this machine ``kept`` is None, and ``why`` says why. For a divided view, it is what all shards
    store together.
    """

    status: ViewStatus
    plan: ViewPlan
    kept: Mapping[int, Kept] | None
    why: str | None = None
    sharding: Sharding | None = None


def explain(config: Config, name: str, generation: int | None = None) -> Explained:
    """The live generation of a view, or another one. Reads all of its state, if that is on this machine.

    Raises ConfigurationError for an unknown name, Unavailable if Kafka doesn't answer, and LockstepError if the
    generation doesn't exist, or the query can't be kept.
    """
    statuses = view_now(config, name)
    status = next((of for of in statuses if generation in (None, of.number)), None)
    if status is None:
        numbers = ", ".join(str(of.number) for of in statuses if of.number is not None) or "none"
        raise LockstepError(f"view {name!r} has no generation {generation}", hint=f"it has: {numbers}")
    tables = recorded_shapes(config.as_pipeline())
    try:
        planned = planned_view(status.settings, tables)
    except Refused as refused:
        reasons = "; ".join(map(str, refused.refusals))
        raise LockstepError(
            f"view {name!r} can't be kept: {reasons}",
            hint="`lockstep doctor` says it of every view, with the remedies; a table that capture hasn't published yet"
            " isn't known",
        ) from None
    plan, sharding = planned.plan, planned.sharding
    if status.number is None:
        return Explained(status, plan, None, "nothing of it is there yet", sharding)
    directory = state_directory(config.spark, pipeline=config.pipeline.name, sink=name, generation=status.number)
    own: list[Shard | None] = [None] if sharding is None else [*shards(sharding, status.settings.tasks)]
    try:
        each = [_kept(directory if shard is None else directory / shard.name, plan, tables, shard) for shard in own]
    except UnusableState as error:
        return Explained(status, plan, None, error.message, sharding)
    return Explained(status, plan, kept_together(each), None, sharding)


def _kept(
    directory: Path, plan: ViewPlan, tables: Mapping[TableName, Table], shard: Shard | None
) -> Mapping[int, Kept]:
    """Raises UnusableState."""
    with closing(WatchedState(directory)) as watched:
        if watched.identity != identity(plan, tables, shard):
            raise UnusableState(f"the state in {directory} belongs to another query, or to columns of other types")
        return kept_by_operators(plan.root, watched.entries())
