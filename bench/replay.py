"""How fast `lockstep apply --once` applies a backlog to each kind of sink: of new keys each time, and of hot keys.

A rate counts from the query's start to the end of the last batch, by the times in the command's log. So it excludes the
start of Python, Spark and the sink, but includes the JVM's warm-up, which dominates a small backlog. If there is more
than one batch, the rate after the first is given too. The stores are warm: each sink has applied a first backlog.

Hot keys are existing rows. Each is updated ten times within ten consecutive transactions, so nearly all of its updates
come in one batch. A sink writes the newest of them; the warehouse with history writes all.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bench import limits
from bench.figures import Figure, Limit, Target
from bench.rig import CACHE, HISTORY, LAKE, SEARCH, WAREHOUSE, Child, Pipeline, Rig, Say, sink_name
from bench.sizes import Sizes
from bench.usage import CpuMeter
from cdc.model.errors import LockstepError
from cdc.postgres.slot import wal_end
from sinks.opensearch.settings import OpenSearchSettings

PHASE = "replay"

TRANSACTION_ROWS = 1_000
UPDATES = 10
"""Per hot key."""

_KINDS = (SEARCH, CACHE, WAREHOUSE, HISTORY, LAKE)
_WARM_SHARE = 5
"""The first backlog is a full one divided by this."""

_EVENTS_PER_S_MIN = 500
"""A lower rate means that it is stuck, on any machine."""

_SHARE = {SEARCH: 0.75, CACHE: 0.65, WAREHOUSE: 0.55, HISTORY: 0.4}
_COPIED = "bare COPY into a like table with its key over two connections, in the sink's portions"
_WHAT = {
    SEARCH: "replaying prepared bulk bodies with the sink's settings, two or four at once",
    CACHE: "the same hashes by prepared HSETs or calls of the sink's script, whichever is quicker",
    WAREHOUSE: _COPIED,
    HISTORY: _COPIED,
    LAKE: "one merge of one prepared Arrow table",
}
_HOT_EVENTS_PER_S = {SEARCH: 120_000, CACHE: 150_000, WAREHOUSE: 150_000}
_HOT_CACHE_TIMES = 4.0

_REPORT = re.compile(
    r"^(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) INFO "
    r"(?:sink (?P<started>started)|batch applied) sink=(?P<sink>\S+) (?P<facts>.*)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Applied:
    """The results in the log of a sink's apply. ``rows`` are the events read, ``written`` those it had to write."""

    seconds: float
    rows: int
    written: int
    rejected: int
    batch_ms: tuple[int, ...]
    rate_later: float | None
    """Events per second after the first batch; None if there is no other."""


def applied(log: str, sink: str) -> Applied:
    """Read the reports of a sink. Raises LockstepError if it didn't start or applied nothing. Pure."""
    started = first_ended = ended = None
    rows = first_rows = written = rejected = 0
    batch_ms = []
    for report in _REPORT.finditer(log):
        if report["sink"] != sink:
            continue
        # In this machine's zone; only differences count.
        logged_at = datetime.strptime(report["at"], "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC)
        if report["started"]:
            started = started or logged_at
            continue
        facts = dict(fact.split("=", 1) for fact in report["facts"].split())
        if int(facts["rows"]):
            ended = logged_at
            rows += int(facts["rows"])
            if first_ended is None:
                first_ended, first_rows = logged_at, rows
            written += int(facts["applied"])
            rejected += int(facts["rejected"])
            batch_ms.append(int(facts["duration_ms"]))
    if started is None or first_ended is None or ended is None:
        raise LockstepError(f"sink {sink!r} " + ("didn't start" if started is None else "applied nothing"))
    later_s = (ended - first_ended).total_seconds()
    return Applied(
        seconds=(ended - started).total_seconds(),
        rows=rows,
        written=written,
        rejected=rejected,
        batch_ms=tuple(batch_ms),
        rate_later=(rows - first_rows) / later_s if later_s else None,
    )


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Returns figures and details. Raises LockstepError when a command fails or doesn't apply every event."""
    rig.up()
    events = sizes.replay_events
    keys = events // UPDATES
    with rig.pipeline(PHASE, sinks=_KINDS) as pipeline:
        warm = _whole(events // _WARM_SHARE)
        say(f"a first backlog of {warm:,} rows, for the stores to be warm")
        _publish(pipeline, lambda: _insert(pipeline, first=0, rows=warm))
        _ended(pipeline, pipeline.start_apply(once=True), warm * len(_KINDS))

        say(f"writing {events:,} rows")
        _publish(pipeline, lambda: _insert(pipeline, first=warm, rows=events))
        limit_rates: dict[str, float] = {}
        figures: list[Figure] = []
        facts: dict[str, Any] = {"events": events, "keys": keys}
        rates: dict[str, float] = {}
        for kind in _KINDS:
            outcome, facts[f"{kind}, other keys"] = _replay(rig, pipeline, kind, events, say)
            if kind == HISTORY:
                limit_rates[kind] = limit_rates[WAREHOUSE]
            else:
                say(f"the limit of {kind}")
                limit_rates[kind] = _limit(pipeline, kind)
            rates[kind] = events / outcome.seconds
            limit = Limit(value=limit_rates[kind], what=_WHAT[kind])
            figures += figures_of(
                f"{kind}: every event another key",
                outcome,
                later=f"{kind}: other keys, later batches",
                unit="rows/s",
                limit=limit,
                target=Target(bound="at least", amount=_SHARE[kind], of_limit=True) if kind in _SHARE else None,
            )

        say(f"updating {keys:,} rows {UPDATES} times")
        _publish(pipeline, lambda: _update(pipeline, first=warm, keys=keys))
        for kind in _KINDS:
            hot, facts[f"{kind}, hot keys"] = _replay(rig, pipeline, kind, events, say)
            figures += hot_figures(kind, hot, own=rates[kind], limit=limit_rates[kind])
    return figures, facts


def figures_of(
    name: str, outcome: Applied, *, later: str, unit: str, limit: Limit, target: Target | None
) -> list[Figure]:
    """The rate, and the rate after the first batch, named ``later``, if there is one. Pure."""
    value = outcome.rows / outcome.seconds
    figures = [Figure(phase=PHASE, name=name, value=value, unit=unit, limit=limit, target=target)]
    if outcome.rate_later is not None:
        figures.append(Figure(phase=PHASE, name=later, value=outcome.rate_later, unit=unit, limit=limit))
    return figures


def hot_figures(kind: str, outcome: Applied, *, own: float, limit: float) -> list[Figure]:
    """The figures of ten updates per key. ``own`` is the sink's rate with distinct keys, ``limit`` its limit. Pure."""
    if kind == HISTORY:
        fastest = Limit(value=limit, what="the limit above, since every version is a row")
    else:
        what = "the newest row of each key alone, at the rate of the limit above"
        fastest = Limit(value=UPDATES * limit, what=what)
    amount = _HOT_EVENTS_PER_S.get(kind)
    figures = figures_of(
        f"{kind}: {UPDATES} updates per key",
        outcome,
        later=f"{kind}: hot keys, later batches",
        unit="events/s",
        limit=fastest,
        target=None if amount is None else Target(bound="at least", amount=amount),
    )
    if kind == CACHE:
        figures.append(
            Figure(
                phase=PHASE,
                name=f"{kind}: hot keys beside other keys",
                value=outcome.rows / outcome.seconds,
                unit="events/s",
                limit=Limit(value=own, what="its own rate where every event is another key"),
                target=Target(bound="at least", amount=_HOT_CACHE_TIMES, of_limit=True),
            )
        )
    return figures


def _whole(rows: int) -> int:
    return max(1, rows // TRANSACTION_ROWS) * TRANSACTION_ROWS


def _publish(pipeline: Pipeline, write: Callable[[], int]) -> None:
    """Write to the source while capture runs, and stop capture when it has published everything."""
    capture = pipeline.start_capture()
    pipeline.wait_streaming(capture)
    rows = write()
    with pipeline.sql() as connection:
        target = wal_end(connection)
        # Otherwise the server would write its pages during a measurement.
        connection.execute("checkpoint")
    pipeline.wait_published(capture, target, timeout_s=_timeout_s(rows))
    pipeline.stop(capture)


def _insert(pipeline: Pipeline, *, first: int, rows: int) -> int:
    with pipeline.sql() as connection:
        pipeline.load(connection, first=first, rows=rows, per_transaction=TRANSACTION_ROWS)
    return rows


def _update(pipeline: Pipeline, *, first: int, keys: int) -> int:
    statement = f"update {pipeline.name} set amount = amount + 1 where id >= %s and id < %s".encode()
    with pipeline.sql() as connection:
        for begin in range(first, first + keys, TRANSACTION_ROWS):
            for _ in range(UPDATES):
                connection.execute(statement, (begin, begin + TRANSACTION_ROWS))
    return keys * UPDATES


def _replay(rig: Rig, pipeline: Pipeline, kind: str, events: int, say: Say) -> tuple[Applied, dict[str, Any]]:
    """Apply the backlog to one sink. Returns the results in its log, and details."""
    sink = sink_name(pipeline.name, kind)
    cpu = CpuMeter(rig.server_pids)
    apply = pipeline.start_apply(kind, once=True)
    log = _ended(pipeline, apply, events)
    used = cpu.used()
    try:
        outcome = applied(log, sink)
    except LockstepError as error:
        raise LockstepError(f"{error}; the end of its log:\n{apply.tail.last(25)}") from None
    if outcome.rows != events or outcome.rejected:
        raise LockstepError(
            f"{kind} applied {outcome.rows:,} of {events:,} events and rejected {outcome.rejected:,};"
            " the end of its log:\n"
            f"{apply.tail.last(25)}"
        )
    say(
        f"{kind}: {events / outcome.seconds:,.0f} events/s,"
        f" {outcome.written:,} written in {len(outcome.batch_ms)} batches"
    )
    return outcome, {
        "seconds": round(outcome.seconds, 3),
        "written": outcome.written,
        "batch_ms": list(outcome.batch_ms),
        "servers_cpu_s": used,
    }


def _ended(pipeline: Pipeline, apply: Child, events: int) -> str:
    return pipeline.wait_end(apply, timeout_s=_timeout_s(events))


def _timeout_s(events: int) -> float:
    return 300 + events / _EVENTS_PER_S_MIN


def _limit(pipeline: Pipeline, kind: str) -> float:
    settings = pipeline.config.sinks[sink_name(pipeline.name, SEARCH)]
    assert isinstance(settings, OpenSearchSettings)
    of_store: dict[str, Callable[[], float]] = {
        SEARCH: lambda: limits.opensearch(pipeline, refresh_interval=f"{settings.refresh_interval_ms}ms"),
        CACHE: lambda: limits.written_to_redis(pipeline),
        WAREHOUSE: lambda: limits.copied(pipeline, key_last=False),
        LAKE: lambda: limits.merged_at_once(pipeline),
    }
    return of_store[kind]()
