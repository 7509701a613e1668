"""Runs the jobs of several sinks in one driver: one SparkSession, one query and one thread per sink and generation. It
looks up each sink's generations repeatedly: a generation that ``rebuild`` has finished joins, one to be dropped leaves.
A generation that is being built gets the job that its rebuild requests (``jobs.generations.build_request``)."""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import Any, Final

from pyspark.sql import SparkSession

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import Fenced, LockstepError, Unavailable
from cdc.model.event import JsonValue
from cdc.model.table import TableName
from jobs.asked_build import AskedBuild
from jobs.clock import now_ms
from jobs.ending_thread import LOOK_S, goes_on_after
from jobs.executor.result import Failure
from jobs.executor.task_input import OpenSink
from jobs.extension_jobs import JobBeside, RunningJob
from jobs.generations.build_request import BuildAnswer, BuildRequest, BuildState, load_request, save_answer
from jobs.generations.lease import is_running
from jobs.generations.record import (
    Generation,
    Phase,
    Record,
    begin_unless_begun,
    check_owner,
    list_generations,
    save_record,
    way_on,
)
from jobs.generations.starting import showing_start
from jobs.generations.view_state import remove_kept
from jobs.job_thread import JobThread
from jobs.query.captured_tables import Captured
from jobs.query.sink_plan import SinkPlan, goes_on
from jobs.report import (
    DefinitionDiffers,
    Report,
    Reporter,
    SinkFailed,
    SinkStarted,
    SinkWaiting,
    log_report,
)
from jobs.settings import SparkSettings
from jobs.spark.session import SparkEnded, has_jvm_ended, open_session, stop_session
from jobs.spark.warm_up import warm_up
from sinks.contract import OpenedSink
from sinks.registry import SinkSettings, definition, open_sink, with_definition
from sinks.sink_kernel import chosen_sink_kernel

_logger = logging.getLogger(__name__)

TAKEN_OVER: Final = 3
"""The exit code when another job has taken over a sink; see ``lockstep.console``."""

_LOOK_SETTLED_S: Final = 5.0
"""How often to look at a sink with one generation and a running job: nothing waits for a look."""

_LOOK_MAX_S: Final = 10.0
_TABLES_PER_S: Final = 200

_POLL_S: Final = 0.2

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Source:
    """What all jobs of a pipeline read, and with what. ``tables`` are the captured ones with a key, which a sink gets
    unless it names its own. ``append_only`` are the others, which it gets if it names them. ``captured`` returns the
    present ones, as in SinkPlan, so that running jobs pick up tables that join. None: the tables don't change."""

    pipeline: str
    kafka: KafkaSettings
    tables: Sequence[TableName]
    spark: SparkSettings
    append_only: Collection[TableName] = ()
    captured: Callable[[], Captured] | None = None

    def tables_of(self, settings: SinkSettings) -> list[TableName]:
        return Captured(self.tables, self.append_only).of(settings.tables)

    def plan(
        self,
        name: str,
        settings: SinkSettings,
        generation: int,
        *,
        once: bool = False,
        go_live: bool = True,
        bulk: bool = False,
        trimmed: bool = False,
        open_sink: OpenSink = open_sink,
    ) -> SinkPlan:
        return SinkPlan(
            name=name,
            settings=settings,
            generation=generation,
            pipeline=self.pipeline,
            kafka=self.kafka,
            tables=self.tables_of(settings),
            spark=self.spark,
            once=once,
            go_live=go_live,
            bulk=bulk,
            trimmed=trimmed,
            open=open_sink,
            captured=self.captured,
        )


def run_sinks(
    source: Source,
    sinks: Mapping[str, SinkSettings],
    *,
    beside: Sequence[JobBeside] = (),
    once: bool = False,
    report: Reporter = log_report,
    stop: threading.Event | None = None,
    open_sink: OpenSink = open_sink,
    opened: SparkSession | None = None,
) -> int:
    """Apply the log to these sinks until SIGTERM, SIGINT or ``stop``; with ``once``, up to its present end.

    The same holds for the jobs ``beside`` them and what those read. ``opened`` is a session to run in. Returns the exit
    code: 0, 1 if a job failed, or TAKEN_OVER; ``report`` gets the errors, and the other jobs go on. Raises
    LockstepError if Spark doesn't start, and SparkEnded.
    """
    stop = stop or threading.Event()
    all_settings = [*sinks.values(), *(job.settings for job in beside)]
    # A session that exists already takes no time to start.
    starting = {} if opened is not None else {name: partial(open_sink, name, each, 1) for name, each in sinks.items()}
    with (
        showing_start(starting) as signs,
        session(source, stop, all_settings, follows=not once, opened=opened) as spark_session,
    ):

        def forward(one: Report) -> None:
            if isinstance(one, SinkStarted | SinkWaiting | SinkFailed):
                signs.end(one.sink)
            report(one)

        group = Group(source, sinks, spark_session, once=once, stop=stop, report=forward, open_sink=open_sink)
        return group.run(beside)


@contextmanager
def session(
    source: Source,
    stop: threading.Event,
    sinks: Collection[SinkSettings],
    *,
    bulk: bool = False,
    follows: bool = False,
    opened: SparkSession | None = None,
) -> Iterator[SparkSession]:
    """A SparkSession for jobs of these sinks until the block ends, in which SIGTERM, SIGINT and SIGHUP set ``stop``.

    ``opened`` is used as it is and stays open; the settings that ``open_session`` reads are ignored then. ``bulk``: see
    ``open_session``. ``follows``: jobs go on with what comes to the log. Raises LockstepError if Spark doesn't start,
    SparkEnded if its JVM ends within the block, and as ``chosen_sink_kernel``.
    """
    if opened is not None:
        with stopped_by_signals(stop):
            yield opened
        return
    _logger.info("rows are written to sinks by %s", chosen_sink_kernel())
    libraries = {library for settings in sinks for library in settings.libraries}
    started = open_session(
        source.spark,
        name=f"lockstep {source.pipeline}",
        bulk=bulk,
        libraries=libraries,
        more_tasks=more_tasks(source.spark, source.tables, sinks) if follows else 0,
    )
    warm_up(started)
    try:
        # After the session: PySpark installs a handler of its own for SIGINT.
        with stopped_by_signals(stop):
            yield started
    except Exception as error:
        if isinstance(error, SparkEnded) or not has_jvm_ended(started, error):
            raise
        raise SparkEnded from error
    finally:
        stop_session(started)


def more_tasks(spark: SparkSettings, tables: Sequence[TableName], sinks: Collection[SinkSettings]) -> int:
    """How many tasks of these sinks may go on all the time. Each shard of a view is one. Pure."""
    if not spark.is_local:
        return 0
    return sum(1 if each.view is None else each.view.tasks for each in sinks if goes_on(each, tables))


def look_every_s(tables: int, *, is_settled: bool = False) -> float:
    """How often to look up a sink's generations. ``is_settled``: it has only one, whose job runs. Pure."""
    return min(max(_LOOK_SETTLED_S if is_settled else LOOK_S, tables / _TABLES_PER_S), _LOOK_MAX_S)


@dataclass(slots=True)
class Member:
    """A sink: its jobs by generation, failed ones included."""

    name: str
    settings: SinkSettings
    opened: OpenedSink
    jobs: dict[int, JobThread] = field(default_factory=dict)
    building: list[Generation] = field(default_factory=list)
    """The generations to be built, as of the last look."""
    builds: dict[int, AskedBuild] = field(default_factory=dict)
    """Jobs that rebuilds have requested, by generation."""
    answered: set[str] = field(default_factory=set)
    """The runs of their requests, and of refused ones."""
    started: bool = False
    failure: LockstepError | None = None
    waiting: str = ""
    known: list[Generation] = field(default_factory=list)
    """The generations of the last look."""
    wanted: dict[int, SinkSettings] = field(default_factory=dict)
    """Those to apply to, as of then."""
    looked_at_s: float = -math.inf
    """When the last look ended, by the monotonic clock."""

    @property
    def is_settled(self) -> bool:
        """Whether it has one generation, and its job runs."""
        is_ours_alone = len(self.known) == 1 and not self.waiting and self.failure is None
        return is_ours_alone and len(self.jobs) == 1 and all(job.is_alive for job in self.jobs.values())


class Group:
    """All sinks of a driver. Their generations come and go."""

    def __init__(
        self,
        source: Source,
        sinks: Mapping[str, SinkSettings],
        spark: SparkSession,
        *,
        once: bool,
        stop: threading.Event,
        report: Reporter,
        open_sink: OpenSink,
    ) -> None:
        self._source = source
        self._spark = spark
        self._once = once
        self._stop = stop
        self._report = report
        self._open = open_sink
        # Any generation's object can be asked for all of them.
        self.members = [Member(name, settings, open_sink(name, settings, 1)) for name, settings in sinks.items()]

    def run(self, beside: Sequence[JobBeside] = ()) -> int:
        """Run until everything is done or a stop is requested; returns the exit code. Reports a sink's error and goes
        on. Raises SparkEnded, since nothing can go on then."""
        others = [job.begin(self._spark, self._report) for job in beside]
        others_looked_at_s = time.monotonic()
        try:
            while not self._stop.is_set() and not has_jvm_ended(self._spark):
                if time.monotonic() - others_looked_at_s >= LOOK_S:
                    for each in others:
                        each.look()
                    others_looked_at_s = time.monotonic()
                for member in self.members:
                    every_s = look_every_s(len(self._source.tables), is_settled=member.is_settled)
                    if time.monotonic() - member.looked_at_s >= every_s:
                        self.look(member)
                        member.looked_at_s = time.monotonic()
                if all(map(self.is_over, self.members)) and all(each.is_over for each in others):
                    break
                self._stop.wait(_POLL_S)
        finally:
            self._end(others)
        if has_jvm_ended(self._spark):
            raise SparkEnded
        failures = [member.failure for member in self.members]
        failures += [job.failure for member in self.members for job in member.jobs.values()]
        failures += [each.failure for each in others]
        if any(isinstance(failure, Fenced) for failure in failures):
            return TAKEN_OVER
        return 1 if any(failures) else 0

    def _end(self, others: Sequence[RunningJob]) -> None:
        """Stop all at once, and wait for each."""
        jobs = [job for member in self.members for job in member.jobs.values()]
        builds = [build for member in self.members for build in member.builds.values()]
        for each in (*jobs, *builds):
            each.ask_to_stop()
        for other in others:
            other.ask_to_stop()
        for other in others:
            other.stop(for_good=self._stop.is_set())
        for job in jobs:
            job.stop()
            if job.newer is not None and self._stop.is_set():
                job.forget_takeover()
        for build in builds:
            build.stop()
        for member in self.members:
            member.opened.sink.close()

    def is_over(self, member: Member) -> bool:
        """Whether nothing of it runs, and nothing will before the next start."""
        if any(job.is_alive for job in member.jobs.values()) or any(build.is_alive for build in member.builds.values()):
            return False
        if member.failure is not None:
            return True
        if any(job.newer is not None and job.newer.ends_by_itself is not False for job in member.jobs.values()):
            return False
        return member.started and bool(member.jobs)

    def look(self, member: Member) -> None:
        """Start and stop jobs as the sink's generations require."""
        if self._once and member.started:
            return
        try:
            wanted_settings = self.wanted(member)
        except Unavailable as error:
            if member.waiting != error.message:
                self._report(SinkWaiting(member.name, error.message, LOOK_S))
            member.waiting = error.message
            return
        except LockstepError as error:
            if member.failure is None:
                member.failure = error
                self._report(SinkFailed(member.name, None, error))
            return
        member.waiting, member.failure = "", None
        for number, job in list(member.jobs.items()):
            if number not in wanted_settings:
                job.ask_to_stop()
            if not job.is_alive and self._is_done_with(member, number, is_wanted=number in wanted_settings):
                del member.jobs[number]
        self._look_at_builds(member)
        for number, settings in wanted_settings.items():
            # A finished build still has its job until its rebuild gives it up.
            if number not in member.jobs and number not in member.builds:
                plan = self._source.plan(member.name, settings, number, once=self._once, open_sink=self._open)
                member.jobs[number] = JobThread(plan, self._spark, report=self._report)
        member.started = True

    def _look_at_builds(self, member: Member) -> None:
        """Begin the jobs that rebuilds request, and forget those that have ended."""
        member.builds = {number: build for number, build in member.builds.items() if build.is_alive}
        for generation in member.building:
            number, record = generation.number, generation.record
            if self._once or record is None or number in member.builds or number in member.jobs:
                continue
            with suppress(LockstepError):  # if its store doesn't answer, the next look tells
                request = load_request(member.opened.records, number)
                if request is None or request.run in member.answered:
                    continue
                member.answered.add(request.run)
                try:
                    settings = with_definition(member.settings, record.definition)
                    check_owner(member.name, number, record, self._source.pipeline)
                    request.check_settings(settings)
                except LockstepError as error:
                    answer = BuildAnswer(request.run, BuildState.REFUSED, failure=Failure.of(error))
                    save_answer(member.opened.records, number, answer)
                else:
                    plan = self._plan_of(member.name, settings, number, request)
                    member.builds[number] = AskedBuild(plan, self._spark, request, report=self._report)

    def _plan_of(self, name: str, settings: SinkSettings, number: int, request: BuildRequest) -> SinkPlan:
        plan = self._source.plan(
            name,
            settings,
            number,
            go_live=False,
            trimmed=request.trimmed,
            open_sink=self._open,
        )
        return replace(plan, tables=list(request.tables))

    def _is_done_with(self, member: Member, number: int, *, is_wanted: bool) -> bool:
        """Whether another job may replace this one, which has ended."""
        job = member.jobs[number]
        if job.newer is not None:
            return not is_wanted or goes_on_after(
                member.name, job.newer, member.opened.records, number, report=self._report
            )
        return job.failure is None and (job.was_asked_to_stop or not is_wanted)

    def wanted(self, member: Member) -> dict[int, SinkSettings]:
        """The generations to apply to, each with the settings that it was built with."""
        found = list_generations(member.opened)
        if member.is_settled and found == member.known:
            return member.wanted  # reading the settings of a record takes longer than the look
        today = definition(member.settings)
        generations = [generation for generation in found if not self._was_given_up(member, generation, today)]
        if not generations:
            record = Record(self._source.pipeline, today, created_at_ms=now_ms())
            number = begin_unless_begun(member.opened, record)
            if number is not None:
                return {number: member.settings}
            generations = list_generations(member.opened)  # another `apply`, or a `rebuild`, was quicker
        member.known = generations
        member.building = [generation for generation in generations if generation.phase is Phase.BUILDING]
        wanted_settings: dict[int, SinkSettings] = {}
        for generation in generations:
            if generation.phase is not Phase.READY and not self._was_left_live(member, generation):
                continue
            record = generation.record or Record(self._source.pipeline, today)
            if generation.record is None:
                save_record(member.opened.records, generation.number, record)
            check_owner(member.name, generation.number, record, self._source.pipeline)
            wanted_settings[generation.number] = with_definition(member.settings, record.definition)
            changed = record.changed_settings(member.settings) if generation.is_live else []
            if changed and generation.number not in member.jobs:
                self._report(DefinitionDiffers(member.name, generation.number, tuple(changed)))
        if self._once and not wanted_settings:
            newest = generations[-1]
            raise LockstepError(
                f"sink {member.name!r} has no generation that is ready",
                hint=f"generation {newest.number} is {newest.phase.value}:"
                f" {way_on(newest.phase, member.name, newest.number)}",
            )
        member.wanted = wanted_settings
        return wanted_settings

    def _was_given_up(self, member: Member, generation: Generation, today: Mapping[str, JsonValue]) -> bool:
        """Remove a generation that was begun with other settings, and to which nothing was ever applied. Most likely
        those settings were refused, and are corrected by now. A new generation is begun then, since another process may
        be at work under the old number with the old settings."""
        number, record = generation.number, generation.record
        if record is None or generation.phase is not Phase.READY or generation.is_live or number in member.jobs:
            return False
        if record.pipeline != self._source.pipeline or record.definition == today:
            return False
        # The old settings say where its rows would be.
        opened = self._open(member.name, with_definition(member.settings, record.definition), number)
        try:
            if opened.generations.load_progress() is not None or is_running(opened.records, number):
                return False
            save_record(opened.records, number, replace(record, phase=Phase.RETIRED))
            source = self._source
            if record.definition.get("view") is not None:
                remove_kept(source.spark, source.kafka, pipeline=source.pipeline, sink=member.name, generation=number)
            opened.generations.drop()
        finally:
            opened.sink.close()
        return True

    def _was_left_live(self, member: Member, generation: Generation) -> bool:
        """Whether a rebuild died after it had switched readers to its generation, and before it handed that over."""
        if generation.phase is not Phase.BUILDING or not generation.is_live:
            return False
        if generation.number in member.builds:
            return False
        return generation.number in member.jobs or not is_running(member.opened.records, generation.number)


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM, SIGINT and SIGHUP set ``stop`` instead of ending the process. Only works in the main thread. An ignored
    SIGHUP, as under nohup, stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def request(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    heard = [number for number in _STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    handlers: dict[signal.Signals, Any] = {number: signal.signal(number, request) for number in heard}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
