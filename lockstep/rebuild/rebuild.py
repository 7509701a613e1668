"""``lockstep rebuild SINK``: its rows from the log's beginning, in a generation beside the live one or in its place.

A lock in the source keeps a second rebuild of the sink out, and goes with the process that holds it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import psycopg
from pyspark.sql import SparkSession

from cdc.model.errors import LockstepError, Unavailable
from cdc.postgres.connection import connect, connection_error
from jobs.driver import Source, session
from lockstep.apply import spark_settings
from lockstep.captured_tables import captured_now
from lockstep.config import Config
from lockstep.generations import config_now, log_ends, require_captured, settings_of
from lockstep.rebuild.beside import begin_beside, build_beside
from lockstep.rebuild.generation_build import RebuildContext
from lockstep.rebuild.in_place import begin_in_place, rebuild_in_place
from lockstep.rebuild.outcome import Observer, Rebuilt
from sinks.registry import SinkSettings

_LONG_LOG: Final = 1_000_000
"""From so many offsets on, a compiler that takes its time is worth it; a shorter log is read before it is done."""

_LOCK_WAIT_S: Final = 5
"""The server learns only after a rebuild has ended, or was killed, that its connection is closed."""


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
    """Build, catch up, compare, and switch when asked to.

    ``in_place`` writes the live generation again instead. ``trimmed`` reads topics that have lost their beginning; the
    comparison tells whether that was harmless. ``opened`` is a session to run in; else one is started.

    Tables that aren't captured any more are left out, also where this configuration names them.

    Raises Interrupted when a stop is asked for. Raises ConfigurationError for a sink that isn't there, or for settings
    that can't be changed in place. Raises LockstepError when another rebuild runs or this one fails, and for a sink
    without any captured table.
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
        begin = begin_in_place if in_place else begin_beside
        number, record = begin(config, name, settings, observer.say)
        with session(source, stop, [settings], bulk=_is_long(config, name, settings), opened=opened) as spark:
            context = RebuildContext(config, source, name, settings, spark, stop, observer, trimmed)
            if in_place:
                return rebuild_in_place(context, number, record)
            return build_beside(context, number, record, switch_over=switch_over)


def _of_captured(config: Config, name: str, settings: SinkSettings, say: Callable[[str], None]) -> Config:
    """The configuration without tables that capture was started without. Raises as ``config_now``, and
    ``require_captured``.
    """
    now = config_now(config)
    require_captured(now, name, settings)
    left = sorted(set(config.sink_tables(settings)).difference(now.sink_tables(settings)))
    if left:
        say(
            f"{', '.join(map(str, left))}: capture was started without, so this goes on without, too. If that isn't"
            " meant, start capture again with this configuration, and run this again"
        )
    return now


def _is_long(config: Config, name: str, settings: SinkSettings) -> bool:
    """Whether there is much to read. Where nobody knows yet, it is said when that is to be read."""
    try:
        ends = log_ends(config, config.sink_tables(settings))
    except Unavailable:
        return False
    return sum(ends.values()) >= _LONG_LOG


@contextmanager
def _only_rebuild(config: Config, name: str) -> Iterator[None]:
    """Hold the lock that one rebuild of a sink has. Raises LockstepError when another one runs."""
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
