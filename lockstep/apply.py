"""``lockstep apply``: runs the jobs of some or all sinks, and moves where a sink starts to read."""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

from pyspark.sql import SparkSession

from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.lsn import format_lsn
from jobs.clock import now_ms
from jobs.driver import Source, run_sinks
from jobs.generations.first_read import load_first_read
from jobs.generations.lease import GenerationLease, is_running
from jobs.generations.record import Generation, Phase, check_owner, list_generations, way_on
from jobs.offsets import Offsets
from jobs.query.progress_at_start import as_of_start
from jobs.query.start_position import moved_to
from jobs.report import Reporter, log_report
from jobs.settings import SparkSettings
from lockstep.captured_tables import captured_now
from lockstep.config import Config
from lockstep.generations import settings_of, settings_of_generation
from monitor.log_start import offsets_after, offsets_since
from sinks.contract import OpenedSink, Progress, TopicPartition
from sinks.registry import SinkSettings, open_sink

_KAFKA_SOURCE: Final = "spark-sql-kafka"
"""The beginning of the name of the jar with Spark's Kafka source."""


@dataclass(frozen=True, slots=True)
class Move:
    """What a new start does to a generation, in records of the log."""

    again: int
    """Records that were applied already, and are read once more."""

    left_out: int
    """Records before the start that weren't applied yet."""

    @classmethod
    def between(cls, applied: Mapping[TopicPartition, int], start: Offsets) -> Self:
        """From the applied position to the start of reading, both as the next offset of each partition."""
        ahead = [offset - applied.get(at, 0) for at, offset in start.items()]
        return cls(sum(-records for records in ahead if records < 0), sum(records for records in ahead if records > 0))


def read_from(
    config: Config,
    name: str,
    *,
    lsn: int | None,
    time_ms: int | None,
    agreed: Callable[[str], bool],
    say: Callable[[str], None],
) -> bool:
    """Let the next job of a live generation read what was committed after ``lsn`` or published since ``time_ms``.

    If that leaves something out, ``agreed`` is asked first; returns False if it refuses, with nothing changed. Raises
    LockstepError if a job applies to the generation now, and if no live generation is ready; ConfigurationError for an
    LSN beyond the WAL's end.
    """
    _check_reads_topics(settings_of(config, name), name)
    live = _ready_generation(config, name)
    chosen = settings_of_generation(config, name, live)
    start = _start(config, chosen, lsn=lsn, time_ms=time_ms)
    opened = open_sink(name, chosen, live.number)
    try:
        # If nothing is unread, no delete can be missing so far: how long the job was stopped doesn't matter for what is
        # read again from now on.
        known = as_of_start(
            opened.generations.load_progress() or load_first_read(opened.records, live.number),
            TopicAdmin(config.kafka.client()).end_offsets(list(start)),
            now_ms(),
        )
        progress = known or Progress(dict.fromkeys(start, 0), 0, 0, now_ms(), {})
        move = Move.between(progress.next_offsets, start)
        watermark = format_lsn(progress.watermark_lsn)
        consequence = (
            f"rows may be old from here on, and the watermark stays at {watermark} until they are read after all"
            " (an earlier --from-lsn, or a rebuild)"
        )
        if move.left_out and not agreed(f"leave out {move.left_out:,} records of the log? If so, {consequence}"):
            say("nothing was changed")
            return False
        _check_stopped(opened, name, live)
        # A job that wakes up must not write its own progress over this, even if the destination can't fence it. Claimed
        # as a job of `apply --once`, the lease lets it begin again afterwards.
        lease = GenerationLease(opened, live.number, once=True)
        lease.claim(opened.sink.claim)
        try:
            opened.generations.save_progress(moved_to(progress, start), whole=())
        finally:
            lease.end()
    finally:
        opened.sink.close()
    say(f"sink {name}, generation {live.number}: {move.again:,} records of the log are read again")
    if move.left_out:
        say(f"{move.left_out:,} records are left out: {consequence}")
    return True


def _check_reads_topics(settings: SinkSettings, name: str) -> None:
    if settings.view is None and not settings.consistent:
        return
    kind, position = ("a view", "where its state is") if settings.view is not None else ("consistent", "its last step")
    raise ConfigurationError(
        f"sink {name!r} is {kind}: it reads the log on from {position}, and from nowhere else",
        hint=f"build it again: lockstep rebuild {name} --switch",
    )


def _ready_generation(config: Config, name: str) -> Generation:
    """The live, ready generation of a sink to which no job applies. Raises LockstepError if there is none."""
    opened = open_sink(name, settings_of(config, name), 1)
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
                hint=way_on(live.phase, name, live.number),
            )
        _check_stopped(opened, name, live)
    finally:
        opened.sink.close()
    return live


def _check_stopped(opened: OpenedSink, name: str, live: Generation) -> None:
    if is_running(opened.records, live.number):
        raise LockstepError(
            f"a job applies to sink {name!r} now",
            hint="stop `lockstep apply` or `lockstep run` first, then try again",
        )


def _start(config: Config, settings: SinkSettings, *, lsn: int | None, time_ms: int | None) -> Offsets:
    """The offset of each partition of the sink's tables to read from. Raises ConfigurationError as ``read_from``."""
    topics = config.topics_of(config.sink_tables(settings))
    if lsn is not None:
        return offsets_after(config.as_pipeline(), topics, lsn).offsets
    assert time_ms is not None
    return offsets_since(config.as_pipeline(), topics, time_ms)


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

    ``opened`` is a session to run in; without it one is started. Raises ConfigurationError for unknown names,
    LockstepError if Spark doesn't start.
    """
    chosen, added = config.chosen_to_apply(sinks)
    spark = spark_settings(config)
    source = Source(
        config.pipeline.name,
        config.kafka,
        config.source.keyed_names,
        spark,
        config.source.append_only_names,
        captured=partial(captured_now, config.as_pipeline()),
    )
    return run_sinks(
        source,
        chosen,
        once=once,
        report=report,
        stop=stop,
        opened=opened,
        beside=[store.job(spark, once=once) for store in added.values()],
    )


def spark_settings(config: Config) -> SparkSettings:
    """The configured settings, with the jars of Spark's Kafka source unless they name it. Sets this machine's Java.
    Raises StackError if the jars must be fetched and can't be."""
    use_java()
    spark = config.spark
    own = spark.conf.get("spark.jars", "")
    if _KAFKA_SOURCE in own:
        return spark
    # Imported when needed: an installation that names its jars works without the local servers' packages.
    from stack.jars import jar_set

    jars = ",".join([*map(str, jar_set("spark")), *([own] if own else [])])
    return spark.model_copy(update={"conf": {**spark.conf, "spark.jars": jars}})


def use_java() -> None:
    """Make every Spark of this process use JAVA_HOME's Java, or one that is found or fetched. Raises StackError if it
    must be fetched and can't be."""
    from stack.java import java_home_for_spark

    os.environ["JAVA_HOME"] = str(java_home_for_spark())
