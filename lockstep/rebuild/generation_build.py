"""One generation that is being built: the log is applied to it, and it is compared with the source."""

import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, Self

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from jobs.driver import Source
from jobs.generations.switch import missing_records
from jobs.offsets import Offsets
from jobs.report import BatchApplied, BatchGoesOn, Report, SinkFailed, SinkStarted, SinkWaiting
from lockstep.config import Config
from lockstep.generations import config_now, log_ends, require_captured
from lockstep.rebuild.build_inputs import trimmed_partitions, trimmed_topics_error
from lockstep.rebuild.driver_job import BuildJob, StartJob
from lockstep.rebuild.inputs_watch import InputsWatch
from lockstep.rebuild.outcome import BuildProgress, InputsChanged, Interrupted, Observer, Rebuilt
from lockstep.verify.options import VerifyOptions
from lockstep.verify.report import VerifyReport
from lockstep.verify.verify import verify
from sinks.contract import Generations, OpenedSink, Progress
from sinks.registry import SinkSettings, open_sink

_LOOK_S: Final = 0.5

CAPTURED_S: Final = 5.0
"""How often to look whether a build's tables are still captured."""


@dataclass(frozen=True, slots=True)
class RebuildContext:
    """One ``lockstep rebuild``: its sink, its inputs and its means. ``start_job`` starts its jobs.

    ``trimmed`` also reads topics that have lost their beginning. With ``loads``, a first job loads the log's present
    content in the destination's fastest way; otherwise the job that goes on reads that as well.
    """

    config: Config
    source: Source
    name: str
    settings: SinkSettings
    start_job: StartJob
    stop: threading.Event
    observer: Observer
    trimmed: bool
    loads: bool

    @property
    def tables(self) -> list[TableName]:
        return self.source.tables_of(self.settings)

    def of_tables(self, tables: Collection[TableName]) -> Self:
        """The same, as if only these were captured. A job takes up the others once it has loaded these."""
        source, known = self.source, self.config.source
        return replace(
            self,
            config=self.config.capturing(known.only(name for name in known.table_names if name in tables)),
            source=replace(
                source,
                tables=[name for name in source.tables if name in tables],
                append_only=[name for name in source.append_only if name in tables],
            ),
        )


class Build:
    """Applies the log to one generation of a sink. ``opened`` is bound to it, ``watch`` looks at its inputs.

    Every long method returns InputsChanged as soon as the build can't become right any more. It raises Interrupted if a
    stop is asked for, and the LockstepError with which a job has failed.
    """

    def __init__(self, context: RebuildContext, number: int, opened: OpenedSink, watch: InputsWatch) -> None:
        self._context = context
        self._number = number
        self._opened = opened
        self._watch = watch
        self._events = 0
        self._load_began: float | None = None
        self._loaded = 0
        self._load_s = self._compare_s = 0.0

    def start(self, *, bulk: bool = False) -> BuildJob:
        """A job that applies the log to the generation, including tables captured since the build began. With ``bulk``:
        up to the log's present end, and only the build's tables."""
        context = self._context
        plan = context.source.plan(
            context.name,
            context.settings,
            self._number,
            once=bulk,
            go_live=False,
            bulk=bulk,
            trimmed=context.trimmed,
        )
        return context.start_job(plan, report=self._report)

    def load(self) -> InputsChanged | None:
        """Apply the log's present content in the destination's fastest way: nobody reads the generation yet. Without a
        load, ends an interrupted one. Raises what the job failed with."""
        if self._context.loads:
            changed = self._read_to_end()
            if changed is not None:
                return changed
            self._context.observer.say("finishing the load")
        if self._opened.bulk is not None:
            self._opened.bulk.end_bulk()
        self._has_read()
        return None

    def _has_read(self) -> None:
        if self._load_began is not None and not self._loaded:
            self._loaded, self._load_s = self._events, time.monotonic() - self._load_began

    def _read_to_end(self) -> InputsChanged | None:
        ends = log_ends(self._context.config, self._context.tables)
        job = self.start(bulk=True)
        try:
            while job.is_alive:
                changed = self._wait_a_moment(job)
                if changed is not None:
                    return changed
                self._report_progress(ends, finished=False)
        finally:
            job.stop()
        if job.failure is not None:
            raise job.failure
        self._report_progress(ends, finished=True)
        return None

    def catch_up(self, job: BuildJob) -> InputsChanged | None:
        """Apply what was published meanwhile, until only the last moment's records are missing. The job stops reading a
        table that has left capture, so nothing of it is waited for."""
        config = self._config_now()
        ends = log_ends(config, config.sink_tables(self._context.settings))
        looked_at = time.monotonic()
        while True:
            changed = self._wait_a_moment(job)
            if changed is not None:
                return changed
            if not job.is_alive:  # its request was lost, as when a store was put back
                raise LockstepError(
                    f"the job of generation {self._number} has ended before it had read all",
                    hint=f"run `lockstep rebuild {self._context.name}` again: it goes on, or begins again",
                )
            if time.monotonic() - looked_at >= CAPTURED_S:
                looked_at = time.monotonic()
                with suppress(Unavailable):
                    config = self._config_now()
                    topics = config.topics_of(config.sink_tables(self._context.settings))
                    ends = {at: end for at, end in ends.items() if at[0] in topics}
            applied = self._applied()
            lacking = missing_records(applied, ends)
            self._report_progress(ends, finished=not lacking)
            # Before a job has begun there is nothing to compare with, even if all topics are empty.
            if not lacking and (applied is not None or self._load_began is not None):
                self._has_read()
                return None

    def compare(self, job: BuildJob) -> VerifyReport | InputsChanged:
        """Compare the generation with the source, while the job keeps it up to date."""
        context = self._context
        context.observer.say("comparing with the source")
        options = VerifyOptions(sink=context.name, generation=self._number, settings=context.settings)

        def stopping() -> bool:
            return self._watch.look_if_due() is not None or context.stop.is_set() or not job.is_alive

        began = time.monotonic()
        try:
            return verify(
                self._config_now(),
                options,
                say=context.observer.say,
                progress=context.observer.compared,
                stopping=stopping,
            )
        except LockstepError:
            # The reason for which the comparison was stopped says more than the stop.
            changed = self._watch.changed or self._wait_a_moment(job)
            if changed is not None:
                return changed
            raise
        finally:
            self._compare_s = time.monotonic() - began

    def result(
        self,
        report: VerifyReport,
        *,
        is_live: bool,
        switched_from: int | None = None,
        explained: tuple[str, ...] = (),
    ) -> Rebuilt:
        return Rebuilt(
            self._number, report, switched_from, is_live, explained, self._loaded, self._load_s, self._compare_s
        )

    def _config_now(self) -> Config:
        """What the build began with, without the tables that have left capture since. Raises as ``config_now``, and as
        ``require_captured`` if nothing can be built without those."""
        context = self._context
        config = without_those_that_left(context.config, config_now(context.config))
        require_captured(config, context.name, context.settings)
        return config

    def _wait_a_moment(self, job: BuildJob) -> InputsChanged | None:
        job.wait(_LOOK_S)
        if self._context.stop.is_set():
            raise Interrupted
        if not job.is_alive and job.failure is not None:
            raise job.failure
        return self._watch.look_if_due()

    def _report(self, report: Report) -> None:
        observer = self._context.observer
        match report:
            case SinkStarted():
                self._load_began = self._load_began or time.monotonic()  # not Spark's own start
                observer.report(report)
            case BatchApplied():
                self._events += report.rows
            case SinkFailed() | BatchGoesOn():
                pass  # a failure is raised to the caller that waits for the job, a long batch shows in the progress
            case SinkWaiting():
                observer.say(f"waiting: {report.reason}")
            case _:
                observer.report(report)

    def _report_progress(self, ends: Offsets, *, finished: bool) -> None:
        total = sum(ends.values())
        read = total - missing_records(self._applied(), ends)
        self._context.observer.progress(BuildProgress(self._number, read, total, self._events, finished))

    def _applied(self) -> Progress | None:
        try:
            return self._opened.generations.load_progress()
        except Unavailable:
            return None


def without_those_that_left(begun: Config, now: Config) -> Config:
    """The configuration that a build began with, without the tables that aren't captured ``now``. Pure."""
    captured = set(now.source.table_names)
    return begun.capturing(begun.source.only(name for name in begun.source.table_names if name in captured))


@contextmanager
def open_generation(name: str, settings: SinkSettings, number: int) -> Iterator[OpenedSink]:
    opened = open_sink(name, settings, number)
    try:
        yield opened
    finally:
        opened.sink.close()


def topic_ids_read(config: Config, tables: Sequence[TableName], generations: Generations) -> dict[TableName, str]:
    """Kafka's ids of the topics that a generation has read. Raises Unavailable."""
    progress = generations.load_progress()
    topics = config.topics()
    ids = {} if progress is None else progress.topic_ids
    return {name: ids[topics[name]] for name in tables if topics[name] in ids}


def check_not_trimmed(
    context: RebuildContext, applied: Progress | None, *, commands: Sequence[str], afresh: bool = False
) -> None:
    """Raise PositionMismatch if a topic has lost what a generation with this progress still has to read.

    ``commands`` are those to run once the copies are there. With ``afresh`` they drop the generation, so what it has
    already read must be copied too. Raises Unavailable as well.
    """
    next_offsets = {} if applied is None else applied.next_offsets
    trimmed = trimmed_partitions(context.config, context.tables, next_offsets)
    if trimmed:
        to_copy = trimmed_partitions(context.config, context.tables, {}) if afresh else trimmed
        raise trimmed_topics_error(
            context.config, trimmed, to_copy=dict.fromkeys(lost.table for lost in to_copy), commands=commands
        )
