"""Runs the jobs of several sinks in one driver: one SparkSession, one query and one thread per sink."""

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pyspark.sql import SparkSession

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.table import TableName
from jobs.config import SparkSettings
from jobs.delivery import Failure, OpenSink
from jobs.report import Reporter, SinkFailed, SinkStopped, log_report
from jobs.session import open_session
from jobs.sink_job import SinkJob, SinkPlan
from sinks.registry import SinkSettings, open_sink


def run_sinks(
    *,
    pipeline: str,
    kafka: KafkaSettings,
    tables: Sequence[TableName],
    sinks: Mapping[str, SinkSettings],
    spark: SparkSettings,
    generations: Mapping[str, int] | None = None,
    once: bool = False,
    report: Reporter = log_report,
    stop: threading.Event | None = None,
    open_sink: OpenSink = open_sink,
) -> int:
    """Apply the log of ``pipeline`` to these sinks until SIGTERM, SIGINT or ``stop``; with ``once``, to its end as of now.

    ``tables`` are the captured ones; a sink's own ``tables`` narrow them. ``generations`` names the generation of a sink
    where it isn't to be the live one. Returns the exit code: 0, or 1 when a sink failed; ``report`` has its error then, and
    the other sinks went on. Raises ConfigurationError before anything is started, and LockstepError when Spark
    doesn't start.
    """
    plans = [
        SinkPlan(
            name=name,
            settings=settings,
            generation=(generations or {}).get(name),
            pipeline=pipeline,
            kafka=kafka,
            tables=tables_of(name, settings.tables, tables),
            spark=spark,
            once=once,
            open=open_sink,
        )
        for name, settings in sinks.items()
    ]
    stop = stop or threading.Event()
    session = open_session(spark, name=f"lockstep {pipeline}")
    try:
        # After the session: PySpark installs a handler of its own for SIGINT.
        with _stopped_by_signals(stop):
            return _run_all(plans, session, stop=stop, report=report)
    finally:
        session.stop()


def tables_of(sink: str, wanted: Sequence[str], captured: Sequence[TableName]) -> list[TableName]:
    """The tables of a sink: those it names, or all. Raises ConfigurationError for one that isn't captured. Pure."""
    if not wanted:
        return list(captured)
    names = [TableName.parse(text) for text in wanted]
    problems = [f"sinks.{sink}.tables: {name} is not captured" for name in names if name not in captured]
    if problems:
        raise ConfigurationError(
            "a sink asks for tables that nobody captures", problems=problems, hint="add them to source.tables"
        )
    return names


def _run_all(plans: Sequence[SinkPlan], session: SparkSession, *, stop: threading.Event, report: Reporter) -> int:
    failed: list[str] = []

    def work(plan: SinkPlan) -> None:
        try:
            SinkJob(plan, session, stop=stop, report=report).run()
        except LockstepError as error:
            failed.append(plan.name)
            report(SinkFailed(plan.name, error))
        except Exception as error:
            # A bug of ours must not take the other sinks with it.
            failed.append(plan.name)
            report(SinkFailed(plan.name, Failure.of(error).error()))
        else:
            report(SinkStopped(plan.name))

    threads = [threading.Thread(target=work, args=(plan,), name=f"sink-{plan.name}") for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 1 if failed else 0


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set ``stop`` instead of ending the process. Only the main thread may ask for signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def request(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    before: dict[signal.Signals, Any] = {
        number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
