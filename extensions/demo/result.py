"""The end of the demo: waits until every sink has caught up, compares every row, and makes the result."""

import contextlib
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import psycopg

from cdc.kafka.control_topics import read_state
from cdc.model.errors import LockstepError
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.timeouts import DEMO_STILL_S
from cdc.postgres.connection import connection_error
from cdc.postgres.slot import emit_heartbeat
from extensions.demo.lag_facts import applied_lsns, lag_sentence
from jobs.generations.record import Generation
from lockstep.config import Config
from lockstep.generations import list_of, settings_of_generation
from lockstep.verify.full_comparison import EXAMPLES_MAX, Differences, TableComparison, compare_sinks, open_source
from lockstep.verify.options import VerifyOptions
from lockstep.verify.report import Kind, TableReport
from lockstep.verify.verify import verify
from monitor.collector import LagCollector
from monitor.lag import LagReport
from sinks.registry import open_sink, projection_of

APPLICATION: Final = "lockstep demo"

_HEARTBEAT_EVERY_S: Final = 2.0
"""Any commit moves the watermark, which would otherwise stay just short because of a server's own later records."""

_LINE_EVERY_S: Final = 5.0
_POLL_S: Final = 0.2


def wait_until_applied(
    target: Lsn,
    source: psycopg.Connection[Any],
    collector: LagCollector,
    *,
    check: Callable[[], None],
    say: Callable[[str], None],
    logs: Path,
) -> LagReport:
    """Wait until every sink has applied everything up to ``target``. Returns the lag at that moment. ``check`` raises
    when a process has ended. Raises LockstepError when no sink makes progress for a long time.
    """
    say(f"waiting until every sink has applied everything up to {format_lsn(target)}")
    now = time.monotonic()
    stuck_at, heartbeat_due, line_due = now + DEMO_STILL_S, now + _HEARTBEAT_EVERY_S, now + _LINE_EVERY_S
    applied_before = None
    last_known = "the servers don't answer"
    while True:
        check()
        lag = collector.collect()
        if not lag.silent_servers:
            applied = applied_lsns(lag)
            if all(lsn is not None and lsn >= target for lsn in applied.values()):
                return lag
            last_known = lag_sentence(lag)
            if applied != applied_before:
                applied_before = applied
                stuck_at = time.monotonic() + DEMO_STILL_S
        now = time.monotonic()
        if now > stuck_at:
            raise LockstepError(
                f"no sink has got any further towards {format_lsn(target)} for {DEMO_STILL_S:.0f} s: {last_known}",
                hint=f"the logs say why: {logs}",
            )
        if now >= line_due:
            line_due = now + _LINE_EVERY_S
            say(last_known)
        if now >= heartbeat_due:
            heartbeat_due = now + _HEARTBEAT_EVERY_S
            heartbeat(source)
        time.sleep(_POLL_S)


def compare(config: Config, *, say: Callable[[str], None]) -> dict[str, list[TableComparison]]:
    """Compare rows of sinks' tables, and of views' queries, with the source. Raises LockstepError and Unavailable."""
    comparisons = _compare_tables(config)
    for name in config.views:
        options = VerifyOptions(name, settings=settings_of_generation(config, name, live_generation(config, name)))
        report = verify(config, options, say=say, progress=lambda _: None, stopping=lambda: False)
        comparisons[name] = [comparison_of(table) for table in report.tables]
    return comparisons


def comparison_of(report: TableReport) -> TableComparison:
    """A view's comparison. Raises LockstepError if it is incomplete or undecided."""
    if report.not_compared or report.undecided or not report.is_complete:
        raise LockstepError(f"{report.table} wasn't compared as a whole: {report.not_compared or 'its rows change'}")

    def differences(kind: Kind) -> Differences:
        keys = [difference.key.decode() for difference in report.differences if difference.kind is kind]
        return Differences(len(keys), tuple(keys[:EXAMPLES_MAX]))

    return TableComparison(
        report.table,
        report.expected_rows or 0,
        report.sink_rows or 0,
        differences(Kind.MISSING),
        differences(Kind.EXTRA),
        differences(Kind.DIFFERENT),
        tuple(sorted({column for difference in report.differences for column in difference.columns})),
    )


def _compare_tables(config: Config) -> dict[str, list[TableComparison]]:
    with contextlib.ExitStack() as opened:
        source = opened.enter_context(
            open_source(
                config.source,
                names=config.source.table_names,
                publication=config.publication,
                application=APPLICATION,
            )
        )
        sinks = {}
        for name in [name for name in config.sinks if name not in config.views]:
            live = live_generation(config, name)
            built_with = settings_of_generation(config, name, live)
            sinks[name] = (open_sink(name, built_with, live.number).sink, projection_of(built_with))
            opened.callback(sinks[name][0].close)
        return compare_sinks(source, sinks)


def result_document(
    config: Config,
    comparisons: Mapping[str, Sequence[TableComparison]],
    lag: LagReport,
    *,
    target: Lsn,
    ok: bool,
    elapsed_s: float,
    traffic: Mapping[str, Any],
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """The document of ``--json``. Raises Unavailable."""
    state = read_state(config.kafka.client(), config.pipeline.name, config.slot)
    applied = applied_lsns(lag)
    return {
        "ok": ok,
        "seconds": round(elapsed_s, 1),
        "traffic": dict(traffic),
        "snapshot": None
        if state is None
        else {
            "handoff": format_lsn(state.handoff),
            "rows": {str(table): rows for table, rows in state.copied.items()},
        },
        "target_lsn": format_lsn(target),
        "source": {str(compared.table): compared.source_rows for tables in comparisons.values() for compared in tables},
        "sinks": {
            name: {
                "equal": all(compared.is_equal for compared in tables),
                "generation": live_generation(config, name).number,
                "applied_lsn": format_lsn(applied[name] or 0),
                "rejected": lag.rejected[name],
                "tables": {str(compared.table): compared.to_json() for compared in tables},
            }
            for name, tables in comparisons.items()
        },
        "versions": dict(versions),
    }


def used_versions(servers: Mapping[str, str]) -> dict[str, str]:
    versions = {"lockstep": "", "pyspark": "", "psycopg": ""}
    for package in versions:
        with contextlib.suppress(PackageNotFoundError):  # run from a checkout that isn't installed
            versions[package] = version(package)
    return {"python": platform.python_version(), **versions, **servers}


def heartbeat(source: psycopg.Connection[Any]) -> Lsn:
    """Commit something, so that the watermark moves. Returns its LSN. Raises Unavailable."""
    try:
        return emit_heartbeat(source)
    except psycopg.OperationalError as error:
        raise connection_error(error) from error


def live_generation(config: Config, name: str) -> Generation:
    """The generation that readers of a sink see. Raises as ``list_of``."""
    return next(generation for generation in list_of(config, name) if generation.is_live)
