"""``lockstep rebuild SINK``: builds its rows from the log's beginning, beside the live generation or in its place.

A lock in the source excludes a second rebuild of the sink, and ends with the process that holds it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final

import psycopg
from pyspark.sql import SparkSession

from cdc.model.errors import LockstepError, Unavailable
from cdc.postgres.connection import connect, connection_error
from jobs.driver import Source, session, stopped_by_signals
from jobs.generations.build_request import has_driver, withdraw
from jobs.generations.record import Phase, list_generations
from jobs.job_thread import JobThread
from jobs.query.sink_plan import SinkPlan
from jobs.report import Reporter
from lockstep.apply import spark_settings
from lockstep.captured_tables import captured_now
from lockstep.config import Config
from lockstep.generations import config_now, log_ends, require_captured, settings_of
from lockstep.rebuild.beside import begin_beside, build_beside
from lockstep.rebuild.driver_job import DriverJob
from lockstep.rebuild.generation_build import RebuildContext, open_generation
from lockstep.rebuild.outcome import NoDriver, Observer, Rebuilt
from sinks.registry import SinkSettings

_LONG_LOG: Final = 300_000
"""From this many offsets on, a bulk load is worth a Spark of its own, with a slow and thorough compiler: a running
driver has read a shorter log before both are ready."""

_LOCK_WAIT_S: Final = 5
"""The server learns of a closed connection only after a rebuild has ended or was killed."""


def rebuild(
    config: Config,
    name: str,
    *,
    switch_over: bool,
    trimmed: bool = False,
    stop: threading.Event,
    observer: Observer,
    opened: SparkSession | None = None,
) -> Rebuilt:
    """Build, catch up, compare, and switch if asked to.

    ``trimmed`` reads topics that have lost their beginning; the comparison shows whether that was harmless. ``opened``
    is a session to run in. Without it, a running driver applies to the generation; a session is started if none runs or
    the log is long. Tables that aren't captured any more are left out, even if this configuration names them.

    Raises Interrupted if a stop is asked for, ConfigurationError for an unknown sink, and LockstepError if another
    rebuild runs, if this one fails, and for a sink without any captured table.
    """
    settings = settings_of(config, name)
    with _only_rebuild(config, name):
        config = _of_captured(config, name, settings, observer.say)
        source = Source(
            config.pipeline.name,
            config.kafka,
            config.source.keyed_names,
            spark_settings(config),
            config.source.append_only_names,
            partial(captured_now, config.as_pipeline()),
        )
        context = RebuildContext(config, source, name, settings, DriverJob, stop, observer, trimmed, loads=False)
        number, record = begin_beside(config, name, settings, observer.say)
        if opened is None and _is_for_driver(context):
            observer.say("the driver that runs applies the log to it: no other Spark is started")
            with suppress(NoDriver), stopped_by_signals(stop):
                return build_beside(context, number, record, switch_over=switch_over)
            observer.say("no driver applies to it any more: starting Spark here")
            number, record = begin_beside(config, name, settings, observer.say)
        with open_generation(name, settings, number) as generation:
            withdraw(generation.records, number)  # of a rebuild that was killed
        with _spark_here(context, opened) as here:
            return build_beside(here, number, record, switch_over=switch_over)


@contextmanager
def _spark_here(context: RebuildContext, opened: SparkSession | None) -> Iterator[RebuildContext]:
    """The context of jobs in a Spark of this process, until the block ends. Raises as ``session``."""
    bulk = _is_long(context)
    with session(context.source, context.stop, [context.settings], bulk=bulk, opened=opened) as spark:

        def start(plan: SinkPlan, *, report: Reporter) -> JobThread:
            return JobThread(plan, spark, report=report)

        yield replace(context, start_job=start, loads=True)


def _is_for_driver(context: RebuildContext) -> bool:
    """Whether a driver runs that can apply to the build. For a long log, a Spark of its own is faster."""
    if _is_long(context):
        return False
    with open_generation(context.name, context.settings, 1) as opened:
        ready = [each.number for each in list_generations(opened) if each.phase is Phase.READY]
        return has_driver(opened.records, ready)


def _of_captured(config: Config, name: str, settings: SinkSettings, say: Callable[[str], None]) -> Config:
    """The configuration without tables that capture was started without. Raises as ``config_now`` and
    ``require_captured``."""
    now = config_now(config)
    require_captured(now, name, settings)
    left = sorted(set(config.sink_tables(settings)).difference(now.sink_tables(settings)))
    if left:
        say(
            f"{', '.join(map(str, left))}: capture was started without, so this goes on without, too. If that isn't"
            " meant, start capture again with this configuration, and run this again"
        )
    return now


def _is_long(context: RebuildContext) -> bool:
    """Whether there is much to read. If Kafka doesn't answer, that is reported later, when it is read."""
    try:
        ends = log_ends(context.config, context.tables)
    except Unavailable:
        return False
    return sum(ends.values()) >= _LONG_LOG


@contextmanager
def _only_rebuild(config: Config, name: str) -> Iterator[None]:
    """Hold the lock of a sink's only rebuild. Raises LockstepError if another one runs."""
    lock = f"lockstep rebuild {config.pipeline.name} {name}"
    try:
        with connect(config.source, application="lockstep rebuild") as connection:
            connection.execute("select set_config('lock_timeout', %s, false)", (f"{_LOCK_WAIT_S}s",))
            try:
                connection.execute("select pg_advisory_lock(hashtextextended(%s, 0))", (lock,))
            except psycopg.errors.LockNotAvailable as error:
                raise LockstepError(
                    f"sink {name!r} is being rebuilt already",
                    hint="wait for the other `lockstep rebuild`, or stop it: this one then goes on where it was",
                ) from error
            yield
    except psycopg.OperationalError as error:
        raise connection_error(error) from error
