"""``lockstep rebuild``: the next generation of a sink from the log's beginning, beside the live one, compared and switched.

What has been reached is kept in the destination: the record of the generation that is being built, its progress, and Spark's
checkpoint. So a build that was interrupted goes on when the command is run again. A lock in the source keeps a second one out, and
goes with the process that holds it.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Final

import orjson
import psycopg
from pyspark.sql import SparkSession

from cdc.model.errors import ConfigurationError, LockstepError, PositionMismatch, Unavailable
from cdc.model.event import Position, RowEvent, TableEvents
from cdc.model.table import TableName
from cdc.model.tag import Tag
from cdc.postgres.connection import connect, connection_error
from jobs.dead_letters.store import DeadLetters
from jobs.driver import JobThread, Source, session, tables_of
from jobs.generations.record import (
    Phase,
    Record,
    begin_generation,
    behind,
    check_owner,
    is_running,
    list_generations,
    load_record,
    save_record,
    switch,
)
from jobs.offsets import Offsets
from jobs.query.column_backfill import load_columns, save_columns
from jobs.query.start_position import begin_at_start_position, end_replay, load_start_position
from jobs.report import BatchGoesOn, Report, Reporter, SinkFailed, SinkStarted, SinkWaiting, StatusReport, log_report
from lockstep.apply import spark_settings
from lockstep.config import Config
from lockstep.generations import log_ends, remove, settings_of, take
from lockstep.rebuild.build_inputs import (
    BuildInputs,
    check_complete,
    load_basis,
    lost_beginnings,
    made_anew,
    misfit,
    read_basis,
    save_basis,
    topics_made_anew,
    topics_trimmed,
    way_out,
)
from lockstep.verify.options import VerifyOptions
from lockstep.verify.progress import Step
from lockstep.verify.report import Kind, VerifyReport
from lockstep.verify.verify import verify
from sinks.contract import Batch, OpenedSink, Progress, TableVersions
from sinks.registry import SinkSettings, definition, history_tables, open_sink, with_definition
from sinks.wrappers.retrying import Retries, retrying

_LOOK_S: Final = 0.5

_BASIS_LOOK_S: Final = 5.0
"""How often it is looked whether topics and tables are still those that the build was begun with."""

_LONG_LOG: Final = 1_000_000
"""From so many offsets on, a compiler that takes its time is worth it; a shorter log is read before it is done."""

_NEW_BEGINNINGS_MAX: Final = 3
"""How often one command begins anew because a table has changed."""

_REMOVAL_S: Final = 60.0
"""How long readers may keep a table of the destination from being removed."""


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build is: ``read`` of ``total`` offsets of the log, and the events applied by this process."""

    generation: int
    read: int
    total: int
    events: int
    finished: bool


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What came out. ``switched_from`` is what readers saw before, where they see this generation now.

    ``explained`` are the settings that shape its rows otherwise than those of the live one. ``loaded`` records were read from the
    log's beginning in ``load_s`` seconds by this process, and compared in ``compare_s``.
    """

    generation: int
    report: VerifyReport
    switched_from: int | None
    is_live: bool
    explained: tuple[str, ...]
    loaded: int
    load_s: float
    compare_s: float


@dataclass(frozen=True, slots=True)
class Observer:
    """Who wants to know: ``say`` gets sentences, ``progress`` and ``compared`` numbers, ``report`` what jobs tell."""

    say: Callable[[str], None]
    progress: Callable[[BuildProgress], None]
    compared: Callable[[Step], None]
    report: Reporter = log_report


class Interrupted(Exception):
    """Asked to stop; the build goes on the next time."""


class _InputsChanged(Exception):
    """A table has changed so that the rows which were applied before can't be right any more. Says why."""


def rebuild(
    config: Config,
    name: str,
    *,
    switch_over: bool,
    in_place: bool = False,
    trimmed: bool = False,
    stop: threading.Event,
    observer: Observer,
    opened: SparkSession | None = None,
) -> Rebuilt:
    """Build, catch up, compare, and switch when asked to. Raises Interrupted, LockstepError.

    ``in_place`` writes the live generation again instead. ``trimmed`` reads topics that have lost their beginning; the comparison
    tells whether that was harmless. ``opened`` is a session to run in; else one is started.
    """
    settings = settings_of(config, name)
    with _only_rebuild(config, name):
        source = Source(config.pipeline.name, config.kafka, config.source.keyed_names, spark_settings(config))
        number, record = (_begin_in_place if in_place else _begin)(config, name, settings, observer.say)
        if in_place:
            _check_nobody_applies(name, settings, number)
        is_long = sum(log_ends(config).values()) >= _LONG_LOG
        with session(source, stop, [settings], bulk=is_long, opened=opened) as spark:
            for beginning in count(1):
                target = open_sink(name, settings, number)
                try:
                    build = _Build(
                        config, source, name, settings, number, record, target, spark, stop, observer, trimmed
                    )
                    if in_place:
                        return build.replay()
                    return build.run(switch_over=switch_over)
                except _InputsChanged as why:
                    if beginning > _NEW_BEGINNINGS_MAX:
                        raise LockstepError(
                            f"generation {number} can't become right any more, nor could the {_NEW_BEGINNINGS_MAX} before it: {why}",
                            hint=f"`lockstep rebuild {name}` drops it and begins anew: run it when the tables stay as they are",
                        ) from None
                    observer.say(
                        f"generation {number} can't become right any more: {why}; dropping it and beginning anew"
                    )
                    _drop_half_built(config, name, target, number)
                except LockstepError as error:
                    if not in_place and not isinstance(error, PositionMismatch):  # that says itself how to begin anew
                        observer.say(
                            f"generation {number} stays as far as it is: run this again when the reason is mended, or begin anew"
                            f" after `lockstep generations {name} --drop {number}`"
                        )
                    raise
                finally:
                    target.sink.close()
                number, record = _begin(config, name, settings, observer.say)
        raise AssertionError("it begins anew, returns or raises")


def _check_nobody_applies(name: str, settings: SinkSettings, number: int) -> None:
    opened = open_sink(name, settings, number)
    try:
        if is_running(opened.records, number):
            raise LockstepError(f"a job applies to generation {number} still", hint="try again when its batch is done")
    finally:
        opened.sink.close()


def _drop_half_built(config: Config, name: str, opened: OpenedSink, number: int) -> None:
    """Drop what was being built. Raises LockstepError when readers see it, or may have seen it."""
    record = load_record(opened.records, number)
    if (
        record is None
        or record.phase is not Phase.BUILDING
        or record.shown
        or record.pipeline != config.pipeline.name
        or opened.generations.live() == number
    ):
        raise LockstepError(
            f"generation {number} of sink {name!r} isn't dropped: readers may have seen it",
            hint=f"if nobody needs it: lockstep generations {name} --drop {number}; then run this again",
        )
    remove(config, name, opened, number, record)


@contextmanager
def _only_rebuild(config: Config, name: str) -> Iterator[None]:
    """Hold the lock that one rebuild of a sink has. Raises LockstepError when another one runs."""
    lock = f"lockstep rebuild {config.pipeline.name} {name}"
    try:
        with connect(config.source, application="lockstep rebuild") as connection:
            row = connection.execute("select pg_try_advisory_lock(hashtextextended(%s, 0))", (lock,)).fetchone()
            if row is None or not row[0]:
                raise LockstepError(
                    f"sink {name!r} is being rebuilt already",
                    hint="wait for the other `lockstep rebuild`, or stop it: this one then goes on where it was",
                )
            yield
    except psycopg.OperationalError as error:
        raise connection_error(error) from error


def _begin(config: Config, name: str, settings: SinkSettings, say: Callable[[str], None]) -> tuple[int, Record]:
    """The generation to build: one that was begun with the same settings, else a new one."""
    opened = open_sink(name, settings, 1)
    try:
        wanted = definition(settings)
        for generation in list_generations(opened):
            record = generation.record
            if record is None or record.phase is not Phase.BUILDING:
                continue
            check_owner(name, generation.number, record, config.pipeline.name)
            if generation.is_live:
                say(f"generation {generation.number} was switched to by a rebuild that ended there: it is in use now")
                save_record(opened.records, generation.number, replace(record, phase=Phase.READY, loaded=True))
                continue
            if definition(with_definition(settings, record.definition)) == wanted:
                say(f"going on with generation {generation.number}")
                return generation.number, record
            if record.shown:
                say(
                    f"generation {generation.number} was begun with other settings, and readers may have seen it: it stays"
                )
                save_record(opened.records, generation.number, replace(record, phase=Phase.READY, loaded=True))
                continue
            say(f"generation {generation.number} was begun with other settings: dropping it")
            half_built = open_sink(name, settings, generation.number)
            try:
                _drop_half_built(config, name, half_built, generation.number)
            finally:
                half_built.sink.close()
        record = Record(
            config.pipeline.name,
            wanted,
            phase=Phase.BUILDING,
            loaded=False,
            created_at_ms=time.time_ns() // 1_000_000,
        )
        number = begin_generation(opened, record)
        live = opened.generations.live()
    finally:
        opened.sink.close()
    beside = "" if live is None else f" beside generation {live}, which readers go on to see"
    say(f"building generation {number}{beside}")
    return number, record


def _begin_in_place(
    config: Config, name: str, settings: SinkSettings, say: Callable[[str], None]
) -> tuple[int, Record]:
    """The live generation, which nobody else applies to from now on, to be read into from the log's beginning."""
    opened = open_sink(name, settings, 1)
    try:
        live = next((generation for generation in list_generations(opened) if generation.is_live), None)
    finally:
        opened.sink.close()
    if live is None or live.phase not in (Phase.READY, Phase.REPLAYING):
        raise LockstepError(
            f"sink {name!r} has no live generation that could be written again",
            hint=f"`lockstep rebuild {name}` builds one",
        )
    wanted = definition(settings)
    record = live.record or Record(config.pipeline.name, wanted)
    check_owner(name, live.number, record, config.pipeline.name)
    opened = open_sink(name, settings, live.number)
    try:
        check_in_place(settings, with_definition(settings, record.definition))
        is_begun = (
            record.phase is Phase.REPLAYING and load_start_position(opened.records, live.number).overwrite_equal_tags
        )
        if is_begun and definition(with_definition(settings, record.definition)) == wanted:
            say(f"going on with generation {live.number}")
            return live.number, record
        say(f"taking generation {live.number} over: readers see old and new rows side by side until it is done")
        take(opened, live.number, record, Phase.REPLAYING)
        begin_at_start_position(opened.records, live.number, None, overwrite_equal_tags=True)
        record = replace(record, definition=wanted, phase=Phase.REPLAYING)
        save_record(opened.records, live.number, record)
    finally:
        opened.sink.close()
    return live.number, record


def _next_tag(text: str) -> str:
    tag = Tag.parse(text)
    return str(replace(tag, seq=tag.seq + 1))


def check_in_place(settings: SinkSettings, built_with: SinkSettings) -> None:
    """Raise ConfigurationError for settings that a generation can't get in place. Pure."""
    now, before = definition(settings), definition(built_with)
    problems = [
        f"{name}: rows would stand in other places, or in another form, beside those that are there"
        for name in sorted(settings.PLACING)
        if now[name] != before[name]
    ]
    if now.get("history") or before.get("history"):
        problems += [
            f"{name}: versions that the log doesn't have any more would show what is to be hidden"
            for name in ("exclude", "mask")
            if now[name] != before[name]
        ]
    if problems:
        raise ConfigurationError(
            "these settings can't be changed in place",
            problems=problems,
            hint="build a generation beside: lockstep rebuild, without --in-place",
        )


class _Build:
    """One process's work on a generation."""

    def __init__(
        self,
        config: Config,
        source: Source,
        name: str,
        settings: SinkSettings,
        number: int,
        record: Record,
        opened: OpenedSink,
        spark: SparkSession,
        stop: threading.Event,
        observer: Observer,
        trimmed: bool,
    ) -> None:
        self._trimmed = trimmed
        self._is_in_place = record.phase is Phase.REPLAYING
        self._tables = tables_of(name, settings.tables, config.source.keyed_names)
        self._basis: BuildInputs
        self._look_at = 0.0
        self._config = config
        self._source = source
        self._name = name
        self._settings = settings
        self._number = number
        self._record = record
        self._opened = opened
        self._spark = spark
        self._stop = stop
        self._observer = observer
        self._events = 0
        self._load_began: float | None = None
        self._loaded = 0
        self._load_s = self._compare_s = 0.0

    def run(self, *, switch_over: bool) -> Rebuilt:
        """Build the generation. Raises _InputsChanged when it can't end in what the source has by now."""
        self._stand_on(load_basis(self._opened.records, self._number))
        try:
            return self._run(switch_over=switch_over)
        except LockstepError as error:
            self._diagnose(error)
            raise

    def _run(self, *, switch_over: bool) -> Rebuilt:
        if not self._record.loaded:
            self._load()
        job = self._start(once=False, bulk=False)
        try:
            self._catch_up(job)
            report = self._compare(job)
            self._look_at_basis()
            explained = self._explain()
            live = self._opened.generations.live()
            if not report.is_equal:
                if live is not None and any(table.count(Kind.MISSING) for table in report.tables):
                    self._explain_missing(live)
                return self._result(report, None, live == self._number, explained)
            before = None
            if switch_over or live is None:
                self._record = replace(self._record, shown=True)
                save_record(self._opened.records, self._number, self._record)
                # Still applied to by our job: it must not fall behind before readers see it.
                before = switch(
                    partial(open_sink, self._name, self._settings),
                    self._number,
                    log_ends=partial(log_ends, self._config),
                )
        finally:
            job.stop()
        # From now on a running `lockstep apply` keeps it up to date.
        save_record(self._opened.records, self._number, replace(self._record, phase=Phase.READY, loaded=True))
        return self._result(report, before, switch_over or live is None, explained)

    def replay(self) -> Rebuilt:
        """Write every row of the live generation again, and remove those that aren't the source's."""
        try:
            self._stand_on(None)
            report = self._replayed()
            self._remove_tables_that_left()
        except LockstepError as error:
            try:
                self._give_back()
            except LockstepError:
                self._observer.say(
                    f"generation {self._number} couldn't be given back: nobody applies to what readers see until"
                    f" `lockstep rebuild {self._name} --in-place` has ended"
                )
            self._diagnose(error)
            raise
        self._give_back()
        return self._result(report, None, True, ())

    def _stand_on(self, begun: BuildInputs | None) -> None:
        """See what is to be read, before anything is. ``begun`` is how it was when an earlier process began.

        Raises LockstepError where topics lack rows, _InputsChanged where tables have changed since.
        """
        if begun is not None and begun.topic_ids.keys() != set(self._tables):
            raise _InputsChanged("it was begun with other tables")
        now = read_basis(self._config, self._tables)
        self._basis = begun or replace(now, topic_ids={**now.topic_ids, **self._ids_read(self._opened)})
        self._check_basis(now)
        check_complete(now, self._tables)
        if begun is None and not self._is_in_place:
            save_basis(self._opened.records, self._number, now)
        self._look_at = time.monotonic() + _BASIS_LOOK_S
        if not self._trimmed and not self._is_in_place:
            self._check_not_trimmed(has_read=begun is not None)

    def _ids_read(self, opened: OpenedSink) -> dict[TableName, str]:
        """The ids of the topics that a generation has read."""
        progress = opened.generations.load_progress()
        topics = self._config.topics()
        ids = {} if progress is None else progress.topic_ids
        return {name: ids[topics[name]] for name in self._tables if topics[name] in ids}

    def _look_at_basis(self) -> None:
        """See whether topics and tables are still the same. Raises as ``_check_basis``, and Unavailable."""
        self._check_basis(read_basis(self._config, self._tables))

    def _look_now_and_then(self) -> None:
        """The same, not more often than is worth it. What can't be asked now is asked later."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _BASIS_LOOK_S
            with suppress(Unavailable):
                self._look_at_basis()

    def _check_basis(self, now: BuildInputs) -> None:
        lost = made_anew(self._basis, now)
        if lost:
            raise topics_made_anew(
                self._config, lost, commands=[*self._drop_command(), f"lockstep rebuild {self._name}"]
            )
        why = misfit(self._basis, now)
        if why is not None and not self._is_in_place:
            raise _InputsChanged(why)

    def _check_not_trimmed(self, *, has_read: bool) -> None:
        progress = None if self._is_in_place else self._loaded_progress()
        lost = lost_beginnings(self._config, self._tables, {} if progress is None else progress.next_offsets)
        if lost:
            again = f"lockstep rebuild {self._name} {'--in-place ' if self._is_in_place else ''}--trimmed"
            raise topics_trimmed(self._config, lost, commands=[*(self._drop_command() if has_read else []), again])

    def _drop_command(self) -> list[str]:
        """What comes first when this is to begin anew."""
        return [] if self._is_in_place else [f"lockstep generations {self._name} --drop {self._number}"]

    def _diagnose(self, error: LockstepError) -> None:
        """Raise what says more than this failure, if something does."""
        with suppress(Unavailable):
            if not isinstance(error, Unavailable):
                self._look_at_basis()
            if isinstance(error, PositionMismatch):
                self._check_not_trimmed(has_read=True)

    def _remove_tables_that_left(self) -> None:
        """Remove what today's settings don't produce. Not before the end: until then they could have been taken back."""
        retries = Retries(
            sleep=time.sleep,
            monotonic=time.monotonic,
            random=random.random,
            on_wait=lambda waiting: self._observer.say(f"waiting: {waiting.reason}"),
            give_up_after_s=_REMOVAL_S,
        )
        opened = retrying(self._opened, retries)
        kept = {self._config.topics()[name] for name in self._tables}
        progress = opened.generations.load_progress()
        left = {topic for topic, _ in progress.next_offsets} - kept if progress is not None else set()
        if progress is not None and left:
            # First: who reads such a topic again one day must not believe that its rows are here.
            opened.sink.claim()
            opened.generations.save_progress(
                replace(
                    progress,
                    next_offsets={at: offset for at, offset in progress.next_offsets.items() if at[0] in kept},
                    skipped={at: offset for at, offset in progress.skipped.items() if at[0] in kept},
                )
            )
            DeadLetters(
                self._config.kafka.client(), self._config.pipeline.name, sink=self._name, generation=self._number
            ).close_all(left)
        gone = opened.generations.keep_only(self._tables)
        columns = load_columns(opened.records, self._number)
        if columns is not None:
            save_columns(opened.records, self._number, columns.only(self._tables))
        if gone:
            self._observer.say(f"removed tables that this sink doesn't have any more: {', '.join(map(str, gone))}")

    def _replayed(self) -> VerifyReport:
        self._read_to_end(bulk=False)
        job = self._start(once=False, bulk=False)
        try:
            self._catch_up(job)
            report = self._compare(job)
            if any(table.count(Kind.EXTRA) for table in report.tables):
                job.stop()  # where there is a fence, one writer has it
                self._remove_extra_rows(report)
                job = self._start(once=False, bulk=False)
                report = self._compare(job)
            return report
        finally:
            job.stop()

    def _give_back(self) -> None:
        """Readers see this generation, so it is kept up to date again however the replay has ended."""
        end_replay(self._opened.records, self._number)
        save_record(self._opened.records, self._number, replace(self._record, phase=Phase.READY))

    def _remove_extra_rows(self, report: VerifyReport) -> None:
        """Rows that neither the log nor the source has: what other code, or a hand, has put there."""
        deletes = [
            RowEvent(table.table, orjson.loads(row.key), row.sink_tag, None, Position("", 0, 0))
            for table in report.tables
            for row in table.differences
            # One with a note is a second copy of a row that is right: a delete of its key would take the right one.
            if row.kind is Kind.EXTRA and row.sink_tag is not None and not row.note
        ]
        self._observer.say(f"removing {len(deletes)} rows that the source doesn't have")
        versions = []
        for name in history_tables(self._settings, {delete.table for delete in deletes}):
            # Behind the version that is there, which is a true one: what was lost is the deletion.
            of_table = [replace(delete, tag=_next_tag(delete.tag)) for delete in deletes if delete.table == name]
            events, now_ms = TableEvents.of(name, of_table), time.time_ns() // 1_000_000
            versions.append(TableVersions(events, ["d"] * len(of_table), [now_ms] * len(of_table)))
        self._opened.sink.apply(
            Batch(deletes, fence=self._opened.sink.claim(), overwrite_equal_tags=True, versions=versions)
        )

    def _result(
        self, report: VerifyReport, switched_from: int | None, is_live: bool, explained: tuple[str, ...]
    ) -> Rebuilt:
        return Rebuilt(
            self._number,
            report,
            switched_from,
            is_live,
            explained,
            self._loaded,
            self._load_s,
            self._compare_s,
        )

    def _load(self) -> None:
        """Apply what the log holds now, in the destination's fastest way."""
        self._read_to_end(bulk=True)
        self._observer.say("finishing the load")
        self._opened.generations.end_bulk()
        if self._load_began is not None:
            self._loaded, self._load_s = self._events, time.monotonic() - self._load_began
        self._record = replace(self._record, loaded=True)
        save_record(self._opened.records, self._number, self._record)

    def _read_to_end(self, *, bulk: bool) -> None:
        """Apply what the log holds now, from where this reading was. ``bulk`` only while nobody reads the generation."""
        ends = log_ends(self._config)
        job = self._start(once=True, bulk=bulk)
        try:
            while job.is_alive:
                self._check(job)
                self._tell(ends, finished=False)
        finally:
            job.stop()
        if job.failure is not None:
            raise job.failure
        self._tell(ends, finished=True)

    def _catch_up(self, job: JobThread) -> None:
        """Apply what was published meanwhile, until what is lacking is what came in the last moment."""
        ends = log_ends(self._config)
        while True:
            self._check(job)
            lacking = behind(self._loaded_progress(), ends)
            self._tell(ends, finished=not lacking)
            if not lacking:
                return

    def _compare(self, job: JobThread) -> VerifyReport:
        self._observer.say("comparing with the source")
        options = VerifyOptions(sink=self._name, generation=self._number, settings=self._settings)

        def stopping() -> bool:
            self._look_now_and_then()
            return self._stop.is_set() or not job.is_alive

        began = time.monotonic()
        try:
            return verify(
                self._config, options, say=self._observer.say, progress=self._observer.compared, stopping=stopping
            )
        except LockstepError:
            self._check(job)  # why the job ended says more than that the comparison was stopped
            raise
        finally:
            self._compare_s = time.monotonic() - began

    def _explain(self) -> tuple[str, ...]:
        """What readers will find otherwise than in the live generation, by what it was built with."""
        live = self._opened.generations.live()
        record = None if live is None or live == self._number else load_record(self._opened.records, live)
        if record is None:
            return ()
        now, before = definition(self._settings), definition(with_definition(self._settings, record.definition))
        return tuple(
            f"{setting} was {before[setting]!r} and is {now[setting]!r}"
            for setting in sorted(now)
            if now[setting] != before[setting]
        )

    def _explain_missing(self, live: int) -> None:
        """Tell of topics that were made anew before this build began, which the live generation has known otherwise."""
        opened = open_sink(self._name, self._settings, live)
        try:
            read = self._ids_read(opened)
        finally:
            opened.sink.close()
        lost = made_anew(BuildInputs(read, {}), self._basis)
        if lost:
            topics = ", ".join(self._config.topics()[name] for name in lost)
            self._observer.say(
                f"topic {topics} isn't the one that generation {live} has read: it lacks the rows that weren't written since"
                f" it was created anew; {way_out(lost, [f'lockstep rebuild {self._name}'])}"
            )

    def _start(self, *, once: bool, bulk: bool) -> JobThread:
        plan = self._source.plan(
            self._name, self._settings, self._number, once=once, go_live=False, bulk=bulk, trimmed=self._trimmed
        )
        return JobThread(plan, self._spark, report=self._report)

    def _report(self, report: Report) -> None:
        match report:
            case SinkStarted():
                self._load_began = self._load_began or time.monotonic()  # not Spark's own start
                self._observer.report(report)
            case StatusReport():
                self._events += report.rows
            case SinkFailed() | BatchGoesOn():
                pass  # the one is raised where the job is waited for, the other is to be seen at the progress
            case SinkWaiting():
                self._observer.say(f"waiting: {report.reason}")
            case _:
                self._observer.report(report)

    def _check(self, job: JobThread) -> None:
        """Wait a moment. Raises what the job failed with, Interrupted, or why this build can't be right any more."""
        job.wait(_LOOK_S)
        if self._stop.is_set():
            raise Interrupted
        if not job.is_alive and job.failure is not None:
            raise job.failure
        self._look_now_and_then()

    def _tell(self, ends: Offsets, *, finished: bool) -> None:
        total = sum(ends.values())
        read = total - behind(self._loaded_progress(), ends)
        self._observer.progress(BuildProgress(self._number, read, total, self._events, finished))

    def _loaded_progress(self) -> Progress | None:
        try:
            return self._opened.generations.load_progress()
        except Unavailable:
            return None
