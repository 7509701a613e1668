"""``lockstep generations`` and ``switch``: the builds of a sink's data, which one readers see, and dropping one."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from cdc.kafka.control_topics import read_state
from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.kafka.topic_names import table_topic
from cdc.machine_load import patient
from cdc.model.errors import LockstepError
from cdc.model.lsn import format_lsn
from cdc.model.table import TableName
from cdc.model.timeouts import OBEYED_S
from jobs.consistency import KnownConsistency, known_consistency
from jobs.dead_letters.store import DeadLetters
from jobs.generations.held_tables import HeldState, Wish, load_held_tables, load_orders
from jobs.generations.identities import load_identities, lost_of, lost_rows
from jobs.generations.lease import is_running
from jobs.generations.record import Generation, Phase, Record, check_owner, list_generations, save_record, way_on
from jobs.generations.status import JobState, JobStatus, job_statuses
from jobs.generations.switch import PREVIOUS, switch
from jobs.generations.view_state import ReportedView, load_view, remove_kept
from jobs.offsets import Offsets
from lockstep.captured_tables import captured_now
from lockstep.config import Config
from monitor.lag_table import view_text
from monitor.verification import Verification, load_verification
from sinks.contract import CoordinationRecords, OpenedSink, Progress
from sinks.registry import SinkSettings, definition, open_sink, with_definition
from sinks.wrappers.column_names import load_names


@dataclass(frozen=True, slots=True)
class Description:
    """A generation for people.

    ``differs`` is what a rebuild would change: settings that differ in today's configuration, and columns that the
    source has renamed since. ``job`` says whether a job applies to it, ``verification`` how its last comparison with
    the source ended, ``view`` what a view's job has reported, ``consistency`` of which time a consistent sink's tables
    are.
    """

    generation: Generation
    progress: Progress | None
    differs: tuple[str, ...]
    job: JobStatus
    verification: Verification | None = None
    view: ReportedView | None = None
    consistency: KnownConsistency | None = None

    @property
    def needs_somebody(self) -> bool:
        """Whether its job has stopped for good. If it isn't live, only an error counts."""
        return (
            self.job.state is JobState.STOPPED
            or self.job.has_failed_tables
            or (self.generation.is_live and self.job.needs_somebody)
        )

    def to_json(self) -> dict[str, Any]:
        progress = self.progress
        return {
            "generation": self.generation.number,
            "live": self.generation.is_live,
            "phase": self.generation.phase.value,
            "watermark": None if progress is None else format_lsn(progress.watermark_lsn),
            "commit_time_ms": None if progress is None else progress.commit_time_ms,
            "rejected": 0 if progress is None else progress.rejected,
            "differs_in": list(self.differs),
            "job": self.job.to_json(),
            "verified": None if self.verification is None else self.verification.to_json(),
            "view": None if self.view is None else self.view.to_json(),
            "consistent": None if self.consistency is None else self.consistency.to_json(),
        }


def settings_of(config: Config, name: str) -> SinkSettings:
    """A sink's settings. Raises ConfigurationError for an unknown name."""
    return config.chosen_sinks([name])[name]


def settings_of_generation(config: Config, name: str, generation: Generation) -> SinkSettings:
    """The settings that a generation was built with, with today's way to reach the server. Raises as
    ``settings_of``."""
    settings = settings_of(config, name)
    return settings if generation.record is None else with_definition(settings, generation.record.definition)


def describe(config: Config, name: str, *, epoch: Callable[[], int | None] | None = None) -> list[Description]:
    """All generations of a sink, oldest first. Raises as ``list_of``. ``epoch`` returns capture's epoch now, None if
    Kafka doesn't say. The default reads it."""
    settings = settings_of(config, name)
    descriptions, epoch = list[Description](), epoch or cache(partial(_epoch, config))
    generations = list_of(config, name)
    if not generations:
        return []
    jobs = _jobs(name, settings, [generation.number for generation in generations])
    for generation in generations:
        opened = open_sink(name, settings, generation.number)
        try:
            progress = opened.generations.load_progress()
            column_names = load_names(opened.records, generation.number)
            verification = load_verification(opened.records, generation.number)
            view = None if settings.view is None else load_view(opened.records, generation.number)
            held_tables = jobs[generation.number].held_tables
            consistency = known_consistency(
                opened.records, generation.number, progress, held_tables=held_tables, pipeline=config.pipeline.name
            )
            if verification is not None and verification.through_lsn:
                verification = verification.in_epoch(epoch())
        finally:
            opened.sink.close()
        built_with = settings_of_generation(config, name, generation)
        differs = [] if generation.record is None else generation.record.changed_settings(settings)
        differs += [] if column_names is None else column_names.outdated(built_with.renaming())
        job = jobs[generation.number]
        descriptions.append(Description(generation, progress, tuple(differs), job, verification, view, consistency))
    return descriptions


def _epoch(config: Config) -> int | None:
    """Capture's epoch now; a sink's progress learns of a new one later. None if Kafka doesn't say."""
    try:
        state = read_state(config.kafka.client(), config.pipeline.name, config.slot)
    except LockstepError:
        return None
    return 0 if state is None else state.epoch


def _jobs(name: str, settings: SinkSettings, numbers: Collection[int]) -> Mapping[int, JobStatus]:
    opened = open_sink(name, settings, 1)
    try:
        return job_statuses(opened.records, numbers, now_ms=time.time_ns() // 1_000_000, sink=name)
    finally:
        opened.sink.close()


def generations_table(name: str, descriptions: list[Description]) -> Group:
    """For people: the generations of this sink, and below them why a job doesn't run."""
    table = Table()
    for heading in ("generation", "readers", "phase", "job", "applied up to", "rejected", "rebuild needed for"):
        table.add_column(heading)
    for description in descriptions:
        watermark = "-" if description.progress is None else format_lsn(description.progress.watermark_lsn)
        table.add_row(
            str(description.generation.number),
            "live" if description.generation.is_live else "",
            description.generation.phase.value,
            description.job.state.value,
            watermark,
            str(0 if description.progress is None else description.progress.rejected),
            ", ".join(description.differs),
        )
    if not descriptions:
        return Group(Text(f"{name} has no generation yet: `lockstep apply {name}` or `lockstep run` builds the first"))
    return Group(table, *(text for description in descriptions for text in _remarks(name, description)))


def _remarks(name: str, of: Description) -> Iterator[Text]:
    """What the table doesn't say of a generation."""
    label = f"generation {of.generation.number} of {name}"
    if of.view is not None:
        yield Text(f"{label}: {view_text(of.view)}", style="dim")
    if of.consistency is not None:
        yield Text(f"{label}: {of.consistency.text}", style="dim")
    if of.verification is not None:
        number = None if of.generation.is_live else of.generation.number
        yield Text(of.verification.sentence(label, sink=name, generation=number), style="dim")
    style = "red" if of.needs_somebody else "yellow"
    yield from (Text(f"{label}: {text}", style=style) for text in of.job.held_sentences(name))
    sentence = of.job.sentence(label)
    if sentence is not None and (of.needs_somebody or of.generation.is_live):
        yield Text(sentence, style=style)


def find(config: Config, name: str, number: int) -> Generation:
    """One generation. Raises LockstepError if it doesn't exist."""
    generations = list_of(config, name)
    for generation in generations:
        if generation.number == number:
            return generation
    numbers = ", ".join(str(generation.number) for generation in generations) or "none"
    raise LockstepError(f"sink {name!r} has no generation {number}", hint=f"it has: {numbers}")


def switch_to(
    config: Config, name: str, *, number: int | None, back: bool, say: Callable[[str], None] = lambda _: None
) -> tuple[int | None, int]:
    """Make a generation live: ``number``, else with ``back`` the one before the last switch, else the newest.

    Returns which was live before, and which is now. ``say`` gets what it waits for. Raises LockstepError if there is
    none, if it is still being built, or if it doesn't catch up.
    """
    settings = settings_of(config, name)
    opened = open_sink(name, settings, 1)
    try:
        if number is None:
            number = _previous(opened, name) if back else _newest(opened, name)
        generation = find(config, name, number)
        if generation.record is not None:
            check_owner(name, number, generation.record, config.pipeline.name)
        if generation.phase is not Phase.READY:
            raise LockstepError(
                f"generation {number} of sink {name!r} is {generation.phase.value}, not ready",
                hint=way_on(generation.phase, name, number),
            )
        built_with = settings_of_generation(config, name, generation)
        wanted = sink_tables_now(config, built_with)
        live = opened.generations.live()
        check_none_held(opened.records, name, number, wanted, live=live)
        # Both lack these, so the switch needn't wait for them.
        held = load_held_tables(opened.records, number).keys()
        _check_nothing_lost(name, settings, number, None if built_with.view is not None else set(wanted) - held)
        ends = partial(log_ends_now, config, built_with, without=held)
        live_before = switch(partial(open_sink, name, settings), number, log_ends=ends, say=say)
    finally:
        opened.sink.close()
    return live_before, number


def check_none_held(
    records: CoordinationRecords, name: str, number: int, tables: Collection[TableName], *, live: int | None
) -> None:
    """Raise LockstepError if a generation lacks changes of one of these ``tables``, which is held.

    ``tables`` are those that it should have; orders for other tables don't matter. A table that was also taken out of
    the ``live`` generation doesn't matter.
    """
    held_tables, orders = load_held_tables(records, number), load_orders(records, number)
    live_held_tables = {} if live is None or live == number else load_held_tables(records, live)
    ordered = {table for table, order in orders.items() if order.wish is not Wish.APPLY}
    for table in sorted((ordered | held_tables.keys()).intersection(tables)):
        states = [each[table].state for each in (held_tables, live_held_tables) if table in each]
        if states == [HeldState.OUT, HeldState.OUT]:
            continue
        sentence = held_tables[table].sentence(name, str(table)) if table in held_tables else f"{table} is to be held"
        raise LockstepError(
            f"generation {number} of sink {name!r} can't be switched to: {sentence}",
            hint=f"`lockstep resume {name} {table}`, and try again once it has caught up",
        )


def _check_nothing_lost(name: str, settings: SinkSettings, number: int, tables: Collection[TableName] | None) -> None:
    """Raise LockstepError if somebody has removed one of these ``tables`` from a generation; None means any table. Its
    job reports that as well, but may not have looked yet, or may not run."""
    opened = open_sink(name, settings, number)
    try:
        known = load_identities(opened.records, number)
        lost = lost_of(opened, {table: known[table] for table in known if tables is None or table in tables})
    finally:
        opened.sink.close()
    errors = list(lost_rows(name, lost).values())
    if errors:
        what = "; ".join(error.message for error in errors)
        raise LockstepError(f"generation {number} of sink {name!r} can't be switched to: {what}", hint=errors[0].hint)


def drop(config: Config, name: str, number: int, *, agreed: Callable[[str], bool]) -> bool:
    """Stop applying to a generation and remove it, if ``agreed`` says so; else returns False, with nothing changed.
    Raises LockstepError if it doesn't exist, is live, or a job goes on with it."""
    settings = settings_of(config, name)
    generation = find(config, name, number)
    record = generation.record or Record(config.pipeline.name, definition(settings))
    check_owner(name, number, record, config.pipeline.name)
    opened = open_sink(name, settings, number)
    try:
        if generation.is_live:
            raise LockstepError(
                f"generation {number} of sink {name!r} is live", hint=f"`lockstep switch {name}` to another one first"
            )
        if not agreed(f"remove generation {number} of {name} with all of its data?"):
            return False
        remove(config, name, opened, number, record)
        return True
    finally:
        opened.sink.close()


def remove(config: Config, name: str, opened: OpenedSink, number: int, record: Record) -> None:
    """Stop applying to a generation for good, and remove it. ``opened`` is bound to it. Raises as ``take`` and
    ``Generations.drop``."""
    take(opened, number, record, Phase.RETIRED)
    if opened.generations.live() == number:
        save_record(opened.records, number, record)
        raise LockstepError(f"generation {number} of sink {name!r} has just been made live", hint="nothing was removed")
    DeadLetters(config.kafka.client(), config.pipeline.name, sink=name, generation=number).close_generation()
    # Before the generation: once it isn't listed any more, nobody finds what is left of it.
    if record.definition.get("view") is not None:
        remove_kept(config.spark, config.kafka, pipeline=config.pipeline.name, sink=name, generation=number)
    opened.generations.drop()


def take(opened: OpenedSink, number: int, record: Record, phase: Phase) -> None:
    """Make the job that applies to a generation stop. If it doesn't, restores the record and raises LockstepError."""
    save_record(opened.records, number, replace(record, phase=phase))
    try:
        _wait_until_nobody_applies(opened, number)
    except BaseException:  # Ctrl-C as well: readers may see it, and nobody would apply to it
        with suppress(LockstepError):
            save_record(opened.records, number, record)
        raise


def _wait_until_nobody_applies(opened: OpenedSink, number: int) -> None:
    deadline = time.monotonic() + patient(OBEYED_S)
    while is_running(opened.records, number):
        if time.monotonic() > deadline:
            raise LockstepError(
                f"a job still applies to generation {number}", hint="stop the `lockstep rebuild` that builds it first"
            )


def log_ends(config: Config, tables: Iterable[TableName]) -> Offsets:
    """Where these tables' topics end now. Raises Unavailable if Kafka doesn't answer, and if it doesn't list one of the
    topics."""
    cluster = TopicAdmin(config.kafka.client())
    topics = config.topics_of(tables)
    return cluster.end_offsets(partitions_of(topics, cluster.partition_counts(topics)))


def log_ends_now(config: Config, settings: SinkSettings, *, without: Collection[TableName] = ()) -> Offsets:
    """Where the topics of all tables end that a sink with these settings has now, except ``without``. Raises as
    ``captured_now`` as well."""
    cluster = TopicAdmin(config.kafka.client())
    tables = [table for table in sink_tables_now(config, settings) if table not in without]
    topics = [table_topic(config.pipeline.name, table) for table in tables]
    return cluster.end_offsets(partitions_of(topics, cluster.partition_counts(topics)))


def sink_tables_now(config: Config, settings: SinkSettings) -> list[TableName]:
    """The tables that a sink with these settings has now, including those that only a newer configuration names. Jobs
    take these up all the same, and go on without those that capture was started without. Raises as ``captured_now``."""
    captured = captured_now(config.as_pipeline())
    # A table that this configuration doesn't know as append-only would look like one with a key.
    append_only = config.source.append_only.intersection(captured.append_only)
    known = config.capturing(config.source.only([*captured.keyed, *append_only]))
    return list(dict.fromkeys([*known.sink_tables(settings), *captured.of(settings.tables)]))


def config_now(config: Config) -> Config:
    """The configuration with the tables that are captured now; without tables that it names but capture was started
    without. Raises as ``captured_now``."""
    captured = captured_now(config.as_pipeline())
    return config.capturing(config.source.only([*captured.keyed, *captured.append_only]))


def require_captured(config: Config, name: str, settings: SinkSettings) -> None:
    """Raise LockstepError if nothing can be built: no table of a sink is captured, or not all tables of a view are."""
    hint = (
        f"start capture with a configuration that takes it in; `lockstep doctor` shows what is missing. Then run"
        f" `lockstep rebuild {name}` again"
    )
    lacking = config.uncaptured_tables(settings)
    if settings.view is not None and lacking:
        raise LockstepError(f"view {name!r} reads {lacking[0]}, which isn't captured", hint=hint)
    if not config.sink_tables(settings):
        what = f"it names {', '.join(map(str, lacking))}" if lacking else "all have left"
        raise LockstepError(f"sink {name!r} has no table that is captured: {what}", hint=hint)


def list_of(config: Config, name: str) -> list[Generation]:
    """All generations of a sink, oldest first. Raises ConfigurationError for an unknown name, Unavailable if the
    destination doesn't answer, and LockstepError if it refuses."""
    opened = open_sink(name, settings_of(config, name), 1)
    try:
        return list_generations(opened)
    finally:
        opened.sink.close()


def _previous(opened: OpenedSink, name: str) -> int:
    previous = opened.records.load(PREVIOUS)
    if previous is None or int(previous) not in opened.generations.numbers():
        raise LockstepError(
            f"sink {name!r} has no generation to go back to",
            hint="it was never switched, or the generation before was dropped",
        )
    return int(previous)


def _newest(opened: OpenedSink, name: str) -> int:
    live = opened.generations.live()
    newer = [generation.number for generation in list_generations(opened) if generation.number > (live or 0)]
    if not newer:
        raise LockstepError(
            f"sink {name!r} has no generation newer than the live one",
            hint=f"`lockstep rebuild {name}` builds one; `lockstep switch {name} --back` returns to the one before",
        )
    return newer[-1]
