"""``lockstep apply``: runs the jobs of some or all sinks, and moves where a sink starts to read."""

import threading
from collections.abc import Callable

from pyspark.sql import SparkSession

from cdc.kafka.control_topics import read_progress
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import LockstepError
from cdc.model.lsn import format_lsn
from cdc.model.table import TableName
from jobs.driver import run_sinks
from jobs.generations.lease import is_running
from jobs.generations.record import Phase, check_owner, list_generations
from jobs.query.start_position import begin_at_start_position, offsets_after_lsn
from jobs.report import Reporter, log_report
from jobs.settings import SparkSettings
from lockstep.config import Config
from lockstep.generations import settings_of, settings_of_generation
from sinks.registry import open_sink


def read_from(config: Config, name: str, *, lsn: int | None, time_ms: int | None, say: Callable[[str], None]) -> None:
    """Let the next job of a live generation read what was committed after ``lsn`` or published since ``time_ms``.

    Raises LockstepError when a job applies to it now, and when it has no live generation that is ready.
    """
    settings = settings_of(config, name)
    opened = open_sink(name, settings, 1)
    try:
        live = next((generation for generation in list_generations(opened) if generation.is_live), None)
        if live is None:
            raise LockstepError(
                f"sink {name!r} has no live generation yet", hint="`lockstep apply` builds it, from the log's beginning"
            )
        if live.record is not None:
            check_owner(name, live.number, live.record, config.pipeline.name)
        if live.phase is not Phase.READY:
            raise LockstepError(
                f"generation {live.number} of sink {name!r} is {live.phase.value}",
                hint=f"`lockstep rebuild {name}` goes on with what was begun",
            )
        if is_running(opened.records, live.number):
            raise LockstepError(
                f"a job applies to sink {name!r} now",
                hint="stop `lockstep apply` or `lockstep run` first, then try again",
            )
    finally:
        opened.sink.close()
    chosen = settings_of_generation(config, name, live)
    tables = [TableName.parse(table) for table in chosen.tables] or config.source.keyed_names
    cluster = TopicAdmin(config.kafka.client())
    counts = cluster.partition_counts()
    partitions = [(config.topics()[table], n) for table in tables for n in range(counts.get(config.topics()[table], 0))]
    if lsn is not None:
        start = offsets_after_lsn(read_progress(config.kafka.client(), config.pipeline.name), lsn, partitions)
    else:
        assert time_ms is not None
        start = cluster.offsets_at(partitions, time_ms)
    opened = open_sink(name, chosen, live.number)
    try:
        progress = opened.generations.load_progress()
        applied = {} if progress is None else progress.next_offsets
        left_out = sum(max(0, offset - applied.get(at, 0)) for at, offset in start.items())
        again = sum(max(0, applied.get(at, 0) - offset) for at, offset in start.items())
        begin_at_start_position(opened.records, live.number, start)
    finally:
        opened.sink.close()
    say(f"sink {name}, generation {live.number}: {again:,} records of the log are read again")
    if left_out:
        watermark = format_lsn(0 if progress is None else progress.watermark_lsn)
        say(
            f"{left_out:,} records are left out: rows may be old from here on, and the watermark stays at {watermark}"
            " until they are read after all (an earlier --from-lsn, or a rebuild)"
        )


def apply_sinks(
    config: Config,
    *,
    sinks: tuple[str, ...],
    once: bool,
    report: Reporter = log_report,
    stop: threading.Event | None = None,
    opened: SparkSession | None = None,
) -> int:
    """Apply the topics to these sinks, or to all, until SIGTERM, SIGINT or ``stop``; returns the exit code.

    ``opened`` is a session to run in; else one is started. Raises ConfigurationError for unknown names, LockstepError
    when Spark doesn't start.
    """
    chosen = config.chosen_sinks(sinks)
    return run_sinks(
        pipeline=config.pipeline.name,
        kafka=config.kafka,
        tables=config.source.keyed_names,
        sinks=chosen,
        spark=spark_settings(config),
        once=once,
        report=report,
        stop=stop,
        opened=opened,
    )


def spark_settings(config: Config) -> SparkSettings:
    """The configured settings; jars and Java that aren't named come from the package cache and this machine.

    Raises StackError when they have to be fetched and can't be.
    """
    spark = config.spark
    missing: dict[str, object] = {}
    # Imported when needed: an installation that names its jars and its Java does without the local servers' packages.
    if not spark.jars:
        from stack.jars import jar_set

        missing["jars"] = tuple(jar_set("spark"))
    if spark.java_home is None:
        from stack.java import java_home_for_spark

        missing["java_home"] = java_home_for_spark()
    return spark.model_copy(update=missing)
