"""Writes the live generation again, in its place: every row of the log, and nothing that isn't the source's."""

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Final

import orjson

from cdc.kafka.topic_names import table_topic
from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.event import JsonValue, Position, RowEvent, TableEvents
from cdc.model.table import TableName
from cdc.model.tag import Tag
from jobs.dead_letters.store import DeadLetters
from jobs.generations.columns import load_columns, save_columns
from jobs.generations.lease import is_running
from jobs.generations.record import Phase, Record, check_owner, list_generations, save_record
from jobs.query.start_position import begin_at_start_position, leave_equal_tags, load_start_position
from lockstep.config import Config
from lockstep.generations import check_nothing_aside, config_now, sink_tables_now, take
from lockstep.rebuild.build_inputs import BuildInputs, check_complete, read_inputs
from lockstep.rebuild.generation_build import Build, RebuildContext, check_not_trimmed, open_generation, topic_ids_read
from lockstep.rebuild.inputs_watch import InputsWatch, cause_in_inputs
from lockstep.rebuild.outcome import InputsChanged, Rebuilt
from lockstep.verify.report import Kind, VerifyReport
from sinks.contract import Batch, CoordinationRecords, Generations, OpenedSink, Progress, Sink, TableVersions
from sinks.registry import SinkSettings, definition, history_tables, with_definition
from sinks.wrappers.projection import parse_column
from sinks.wrappers.retrying import Retries, retrying

_REMOVAL_S: Final = 60.0
"""How long readers may keep a table of the destination from being removed."""


def begin_in_place(config: Config, name: str, settings: SinkSettings, say: Callable[[str], None]) -> tuple[int, Record]:
    """The live generation, from its log's beginning again, which nobody else applies to from now on.

    Raises LockstepError when there is none or when a job doesn't let go of it, ConfigurationError for settings that it
    can't get in place.
    """
    with open_generation(name, settings, 1) as opened:
        opened.generations.migrate()
        live = next((generation for generation in list_generations(opened) if generation.is_live), None)
    if live is None or live.phase not in (Phase.READY, Phase.REPLAYING):
        raise LockstepError(
            f"sink {name!r} has no live generation that could be written again",
            hint=f"`lockstep rebuild {name}` builds one",
        )
    wanted_definition = definition(settings)
    record = live.record or Record(config.pipeline.name, wanted_definition)
    check_owner(name, live.number, record, config.pipeline.name)
    with open_generation(name, settings, live.number) as opened:
        check_in_place(settings, with_definition(settings, record.definition))
        tables = config.sink_tables(settings)
        check_nothing_aside(opened.records, name, live.number, tables, live=None, to="written again")
        is_begun = (
            record.phase is Phase.REPLAYING and load_start_position(opened.records, live.number).overwrite_equal_tags
        )
        built_with = [with_definition(settings, each) for each in (record.definition, *record.written_with)]
        check_left_tables(name, settings, built_with, _left_with_rows(config, settings, opened.generations))
        if is_begun and definition(with_definition(settings, record.definition)) == wanted_definition:
            say(f"going on with generation {live.number}")
        else:
            say(f"taking generation {live.number} over: readers see old and new rows side by side until it is done")
            take(opened, live.number, record, Phase.REPLAYING)
            begin_at_start_position(opened.records, live.number, None, overwrite_equal_tags=True)
            record = replace(_to_be_written_with(record, wanted_definition), phase=Phase.REPLAYING)
            save_record(opened.records, live.number, record)
        if is_running(opened.records, live.number):
            raise LockstepError(
                f"a job still applies to generation {live.number}", hint="try again when its batch is done"
            )
    return live.number, record


def check_in_place(settings: SinkSettings, built_with: SinkSettings) -> None:
    """Raises ConfigurationError for settings that a generation can't get in place. Pure."""
    if settings.view is not None:
        raise ConfigurationError(
            "the rows of a view aren't in the log, so they can't be written again from it",
            hint="build a generation beside: lockstep rebuild, without --in-place",
        )
    if settings.consistent:
        raise ConfigurationError(
            "readers of a consistent sink would see old and new rows side by side until it is done",
            hint="build a generation beside: lockstep rebuild, without --in-place",
        )
    now, built_definition = definition(settings), definition(built_with)
    problems = [
        f"{name}: rows would be stored in another place or form, beside those that are there"
        for name in sorted(settings.PLACING)
        if now[name] != built_definition[name]
    ]
    if now.get("history") or built_definition.get("history"):
        problems += [
            f"{name}: versions that the log doesn't have any more would show what is to be hidden"
            for name in ("exclude", "mask")
            if now[name] != built_definition[name]
        ]
    if problems:
        raise ConfigurationError(
            "these settings can't be changed in place",
            problems=problems,
            hint="build a generation beside: lockstep rebuild, without --in-place",
        )


def _to_be_written_with(record: Record, wanted: Mapping[str, JsonValue]) -> Record:
    """The record of a replay that begins: it remembers what rows are written with until then. Pure."""
    earlier = list(record.written_with)
    if record.definition != wanted and record.definition not in earlier:
        earlier.append(record.definition)
    return replace(record, definition=wanted, written_with=tuple(earlier))


def _left_with_rows(config: Config, settings: SinkSettings, generations: Generations) -> list[TableName]:
    """The tables that capture was started without and that the generation has read. Raises as ``load_progress``."""
    progress = generations.load_progress()
    read = set() if progress is None else {topic for topic, _ in progress.next_offsets}
    return [table for table in config.left_by_capture(settings) if table_topic(config.pipeline.name, table) in read]


def check_left_tables(
    name: str, settings: SinkSettings, built_with: Collection[SinkSettings], left: Collection[TableName]
) -> None:
    """Raises ConfigurationError for settings of tables that aren't captured any more. Pure.

    Their rows stay, and aren't written again: what is to be hidden would stay readable, and the generation's record
    would say that it is hidden. They may have been written ``built_with`` any of these settings.
    """
    problems = []
    for table in left:
        now, befores = _projecting(settings, table), [_projecting(each, table) for each in built_with]
        problems += [
            f"{setting}: {table} isn't captured any more, so its rows would stay as they are"
            for setting in sorted({*now, *chain.from_iterable(befores)})
            if any(now.get(setting) != before.get(setting) for before in befores)
        ]
    if problems:
        raise ConfigurationError(
            "these settings can't be changed in place",
            problems=problems,
            hint=f"`lockstep rebuild {name} --switch` builds a generation without these rows. To keep them, start"
            " capture with the table again, then run this again",
        )


def _projecting(settings: SinkSettings, table: TableName) -> dict[str, dict[object, object]]:
    """What settings say of a table's rows and columns, by the setting; those that say nothing aren't in it."""
    columns: dict[str, Iterable[str] | Mapping[str, object]] = {
        "exclude": settings.exclude,
        "rename": settings.rename,
        "mask": settings.mask,
        "computed": settings.computed,
    }
    found: dict[str, dict[object, object]] = {}
    for setting, entries in columns.items():
        values = entries if isinstance(entries, Mapping) else dict.fromkeys(entries)
        of_table = {parse_column(text): value for text, value in values.items() if parse_column(text)[0] == table}
        if of_table:
            found[setting] = dict(of_table)
    conditions = [condition for text, condition in settings.where.items() if TableName.parse(text) == table]
    return found | ({"where": {table: conditions}} if conditions else {})


def rebuild_in_place(context: RebuildContext, number: int, record: Record) -> Rebuilt:
    """Write every row of the live generation again, and remove those that aren't the source's.

    Raises Interrupted, and LockstepError when it fails. Whoever applies has the generation back then, unless it was
    interrupted: rows of old and new settings are side by side in it.
    """
    with (
        open_generation(context.name, context.settings, number) as opened,
        _given_back(context, number, record, opened.records),
    ):
        watch = _watch_topics(context, opened.generations)
        try:
            build = Build(context, number, opened, watch)
            report = _write_again(context, build, opened.sink)
            _remove_tables_that_left(context, number, opened)
        except LockstepError as failure:
            cause_in_inputs(failure, watch, lambda: _check_not_trimmed(context))
            raise
    return build.result(report, is_live=True)


@contextmanager
def _given_back(context: RebuildContext, number: int, record: Record, records: CoordinationRecords) -> Iterator[None]:
    """Readers see this generation, so it is kept up to date again whether the replay ends well or fails."""

    def give_back(given: Record) -> None:
        leave_equal_tags(records, number)
        save_record(records, number, replace(given, phase=Phase.READY))

    try:
        yield
    except LockstepError:
        try:
            give_back(record)
        except LockstepError:
            context.observer.say(
                f"generation {number} couldn't be given back: nobody applies to what readers see until"
                f" `lockstep rebuild {context.name} --in-place` has ended"
            )
        raise
    give_back(replace(record, written_with=()))


def _watch_topics(context: RebuildContext, generations: Generations) -> InputsWatch:
    """See whether the log has everything. Every row is written again, so tables may change, but topics may not."""
    now = read_inputs(context.config, context.tables)
    ids_read = topic_ids_read(context.config, context.tables, generations)
    watch = InputsWatch(
        context.config,
        context.tables,
        BuildInputs({**now.topic_ids, **ids_read}, {}),
        again=[f"lockstep rebuild {context.name}"],
    )
    watch.check(now)
    check_complete(now, context.tables)
    return watch


def _check_not_trimmed(context: RebuildContext) -> None:
    check_not_trimmed(context, None, commands=[f"lockstep rebuild {context.name} --in-place --trimmed"])


def _write_again(context: RebuildContext, build: Build, sink: Sink) -> VerifyReport:
    """Apply the whole log, compare, and remove what neither the log nor the source has."""
    _unchanged(build.read_to_end())
    job = build.start()
    try:
        _unchanged(build.catch_up(job))
        report = _report(build.compare(job))
        if any(table.count(Kind.EXTRA) for table in report.tables):
            job.stop()  # where there is a fence, one writer has it
            _remove_extra_rows(context, sink, report)
            job = build.start()
            report = _report(build.compare(job))
        return report
    finally:
        job.stop()


def _unchanged(changed: InputsChanged | None) -> None:
    assert changed is None, "shapes aren't watched in place"


def _report(outcome: VerifyReport | InputsChanged) -> VerifyReport:
    assert isinstance(outcome, VerifyReport), "shapes aren't watched in place"
    return outcome


def _remove_extra_rows(context: RebuildContext, sink: Sink, report: VerifyReport) -> None:
    """Rows that neither the log nor the source has: what other code, or a hand, has put there."""
    deletes = deletes_of_extra_rows(report, append_only=context.config.source.append_only)
    context.observer.say(f"removing {len(deletes)} rows that the source doesn't have")
    versions = []
    for name in history_tables(context.settings, {delete.table for delete in deletes}):
        # After the version that is there, which is a true one: what was lost is the deletion.
        later = [replace(delete, tag=_next_tag(delete.tag)) for delete in deletes if delete.table == name]
        events, now_ms = TableEvents.of(name, later), time.time_ns() // 1_000_000
        versions.append(TableVersions(events, ["d"] * len(later), [now_ms] * len(later)))
    sink.apply(Batch(deletes, fence=sink.claim(), overwrite_equal_tags=True, versions=versions))


def deletes_of_extra_rows(report: VerifyReport, *, append_only: Collection[TableName]) -> list[RowEvent]:
    """What takes the rows away that a comparison found to be too many. Pure.

    Not those of append-only tables: their topic loses its beginning with time, also while it is compared.
    """
    return [
        RowEvent(table.table, orjson.loads(row.key), row.sink_tag, None, Position("", 0, 0))
        for table in report.tables
        if table.table not in append_only
        for row in table.differences
        # One with a note is a second copy of a row that is right: a delete of its key would take the right one.
        if row.kind is Kind.EXTRA and row.sink_tag is not None and not row.note
    ]


def _next_tag(text: str) -> str:
    tag = Tag.parse(text)
    return str(replace(tag, seq=tag.seq + 1))


def _remove_tables_that_left(context: RebuildContext, number: int, opened: OpenedSink) -> None:
    """Remove what today's settings don't produce. Not before the end: until then they could have been taken back."""
    retries = Retries(
        sleep=time.sleep,
        monotonic=time.monotonic,
        random=random.random,
        on_wait=lambda waiting: context.observer.say(f"waiting: {waiting.reason}"),
        give_up_after_s=_REMOVAL_S,
    )
    destination = retrying(opened, retries)
    config, settings = context.config, context.settings
    # Some may have been taken up since the build began, and some may have left. Those that only capture leaves out
    # aren't to be given up.
    now = config_now(config)
    tables = [*now.sink_tables(settings), *now.left_by_capture(settings), *sink_tables_now(config, settings)]
    kept_topics = {table_topic(context.config.pipeline.name, table) for table in tables}
    progress = destination.generations.load_progress()
    dropped_topics = {topic for topic, _ in progress.next_offsets} - kept_topics if progress is not None else set()
    if progress is not None and dropped_topics:
        # First: who reads such a topic again one day must not believe that its rows are here.
        destination.sink.claim()
        destination.generations.save_progress(_only_of(progress, kept_topics))
        pipeline = context.config.pipeline.name
        DeadLetters(context.config.kafka.client(), pipeline, sink=context.name, generation=number).close_all(
            dropped_topics
        )
    removed = destination.generations.keep_only(tables)
    columns = load_columns(destination.records, number)
    if columns is not None:
        save_columns(destination.records, number, columns.only(tables))
    if removed:
        names = ", ".join(map(str, removed))
        context.observer.say(f"removed tables that this sink doesn't have any more: {names}")


def _only_of(progress: Progress, topics: set[str]) -> Progress:
    """The progress without what it says of other topics."""
    return replace(
        progress,
        next_offsets={at: offset for at, offset in progress.next_offsets.items() if at[0] in topics},
        skipped={at: offset for at, offset in progress.skipped.items() if at[0] in topics},
        topic_ids={topic: topic_id for topic, topic_id in progress.topic_ids.items() if topic in topics},
        left_at_ms={topic: at_ms for topic, at_ms in progress.left_at_ms.items() if topic in topics},
        shards=(),  # each of a view's is then known to be where the view is
    )
