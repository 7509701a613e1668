"""Runs the demonstration: servers, shop, traffic, snapshot, stream, three sinks, and the comparison of every row at the end.

Everything is below one directory: the servers' data in ``stack``, ``logs``, Spark's ``checkpoints``, and a
``lockstep.toml`` that the other commands take. Each run empties its servers first, so it doesn't matter how the last
one ended.
"""

import contextlib
import fcntl
import json
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import rmtree
from typing import Any

import psycopg
from rich.live import Live

from cdc.kafka.control_topics import read_state
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.lsn import Lsn, format_lsn
from cdc.postgres.connection import connect, connection_error
from cdc.postgres.slot import emit_heartbeat
from jobs.generations.record import Generation
from lockstep.config import Config, load
from lockstep.console import EXIT_FAILED, say
from lockstep.demo.children import Children
from lockstep.demo.examples import Example, examples, some_order
from lockstep.demo.interrupt import Interrupts
from lockstep.demo.reset import empty
from lockstep.demo.screen import Facts, comparison_table, links, queries, screen
from lockstep.demo.settings import SEARCH, configuration
from lockstep.demo.shop import count_rows, create_shop
from lockstep.demo.writer import Counts
from lockstep.generations import list_of, settings_of_generation
from lockstep.terminal import err, out
from lockstep.verify.full_comparison import TableComparison, compare_sinks, open_source
from monitor.collector import LagCollector
from monitor.lag import LagReport
from sinks.registry import open_sink, projection_of
from stack.errors import StackError
from stack.stack import Endpoints, Stack

APPLICATION = "lockstep demo"
INTERRUPTED = 130
"""The shell's number for a command that Ctrl-C ended before it had a result."""

_SEED = 20

_WRITER, _CAPTURE, _APPLY, _REBUILD = "writer", "capture", "apply", "rebuild"

_SCREEN_EVERY_S = 0.5
_LINE_EVERY_S = 5.0
_LOOK_EVERY_S = 1.0
_POLL_S = 0.2

_SNAPSHOT_MAX_S = 300.0
# Spark alone takes some ten seconds to start, and several times that on a busy machine. The writer doesn't wait for it for ever:
# what it writes meanwhile has to be caught up with.
_SINKS_MAX_S = 60.0
# Without any sink getting any further. One batch is one step, and a backlog is one batch.
_STUCK_MAX_S = 240.0
# Any commit moves the watermark; a server's own records after it would otherwise leave it just short.
_HEARTBEAT_EVERY_S = 2.0

# When nobody says how long it is to go on; else it is half of that.
_REBUILD_AFTER_S = 20.0
# Another Spark, on the same cores.
_REBUILD_MAX_S = 800.0

_WRITER_GRACE_S = 15.0
# A job waits up to 30 s for its batch (spark.stop_timeout_s).
_PIPELINE_GRACE_S = 45.0


def run_demo(*, seconds: float | None, as_json: bool, keep: bool, directory: Path, rate: float) -> int:
    """Run until Ctrl-C, or for so many seconds of traffic and then compare; returns the exit code.

    0: stopped by hand without ``seconds``, or every row of every sink is equal to the source's and nothing was
    rejected. With ``as_json`` standard output has one JSON document, whatever happened. Raises LockstepError and
    StackError.
    """
    if as_json and seconds is None:
        raise LockstepError("--json needs --seconds", hint="for example: lockstep demo --seconds 60 --json")
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    with _only_one(directory), Interrupts() as interrupts:
        demo = _Demo(directory, rate=rate, seconds=seconds, interrupts=interrupts, as_json=as_json)
        code = 0
        failure: Exception | None = None
        try:
            try:
                code = demo.run()
            finally:
                interrupts.disarm()
        except KeyboardInterrupt:
            code = 0 if seconds is None else INTERRUPTED
        except Exception as error:
            failure = error
        demo.stop(keep=keep)
        if failure is not None:
            if as_json:
                _print_json({"ok": False, "error": str(failure)})
            raise failure
        if as_json and code == INTERRUPTED:
            _print_json({"ok": False, "error": "interrupted"})
        return code


@contextlib.contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    """One demo at a time per directory: a second would empty the servers under the first one's feet."""
    with (directory / "demo.lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockstepError(
                f"a demo runs in {directory} already", hint="stop it with Ctrl-C, or give this one another --directory"
            ) from None
        yield


class _Demo:
    def __init__(
        self, directory: Path, *, rate: float, seconds: float | None, interrupts: Interrupts, as_json: bool
    ) -> None:
        self._directory = directory
        self._rate = rate
        self._seconds = seconds
        self._interrupts = interrupts
        self._as_json = as_json
        # Servers that run for some minutes, all on one machine: a compiler that takes its time would take the demo's.
        self._stack = Stack(directory / "stack", light=True)
        self._children = Children(directory, hurried=interrupts.hurried)
        self._config_file = directory / "lockstep.toml"
        self._began = time.monotonic()
        self._closing = contextlib.ExitStack()
        self._rebuild_began: float | None = None
        self._rebuilt = False

    def run(self) -> int:
        """Everything up to the result. Leaves servers and processes to ``stop``."""
        killed = self._children.end_leftovers()
        if killed:
            self._say(f"ended {killed} processes that an earlier run left behind")
        self._say("starting PostgreSQL, a second one as warehouse, Kafka, OpenSearch and Valkey")
        endpoints = self._stack.up(report=lambda name, what: self._say(f"{name}: {what}"))
        config = self._prepare(endpoints)
        source = self._closing.enter_context(contextlib.closing(connect(config.source, application=APPLICATION)))
        self._say("creating the sample shop")
        create_shop(source, seed=_SEED)
        rows = count_rows(source)
        self._say("created " + ", ".join(f"{table} ({count:,} rows)" for table, count in rows.items()))
        # The writer comes first: the handoff from snapshot to stream happens under traffic, as it does in life.
        self._start(
            _WRITER,
            "lockstep.demo.writer",
            ["--dsn", endpoints.source_dsn, "--rate", str(self._rate), "--seed", str(_SEED)],
        )
        # Spark takes longest to start, and the jobs wait for the topics by themselves.
        self._start(_APPLY, "lockstep", ["apply", "--config", str(self._config_file)])
        self._start(_CAPTURE, "lockstep", ["capture", "--config", str(self._config_file)])
        self._say(f"the writer writes {self._rate:g} transactions a second; taking the snapshot, starting Spark")
        err.print(links(_addresses(endpoints), directory=self._directory, config=self._config_file))
        collector = self._closing.enter_context(LagCollector(config.as_pipeline(), config.sinks))
        traffic = _Traffic(self, source, collector, endpoints)
        if self._as_json or not err.is_terminal:
            self._watch_in_lines(traffic)
        else:
            self._watch_on_screen(traffic)
        return self._finish(load(self._config_file), source, collector)

    def stop(self, *, keep: bool) -> None:
        """End every process, then the servers unless they are to stay. Never interrupted, and bounded in time."""
        with contextlib.suppress(psycopg.Error, LockstepError):
            self._closing.close()
        self._say("stopping")
        for name in self._children.stop(grace_s=_PIPELINE_GRACE_S):
            self._say(f"{name} didn't end in time and was killed")
        if keep:
            self._say(f"the servers stay up; stop them with: lockstep down --directory {self._stack.directory}")
            return
        try:
            self._stack.down()
        except StackError as error:
            self._say(f"error: {error}")
            return
        self._say("stopped")

    def check(self) -> None:
        """Raises LockstepError when a process has ended by itself."""
        self._children.check()

    def rebuild_when_due(self, endpoints: Endpoints, traffic_s: float | None) -> None:
        """In the middle of the traffic the search index gets another mapping; who goes on reading it notices nothing.

        Raises LockstepError when that fails.
        """
        if self._rebuilt:
            return
        if self._rebuild_began is None:
            after_s = _REBUILD_AFTER_S if self._seconds is None else self._seconds / 2
            if traffic_s is not None and traffic_s >= after_s:
                self._rebuild_began = time.monotonic()
                self._config_file.write_text(configuration(endpoints, mapping_has_changed=True), encoding="utf-8")
                command = ["rebuild", SEARCH, "--switch", "--config", str(self._config_file)]
                self._say(f"{self._config_file} has another mapping for {SEARCH} now: lockstep {' '.join(command)}")
                with self._interrupts.deferred():
                    self._children.start(_REBUILD, "lockstep", command, may_end=True)
        elif self._children.has_ended(_REBUILD):
            self._check_rebuilt()
            self._rebuilt = True
            self._say(f"readers of {SEARCH} see generation 2; back to the first: lockstep switch {SEARCH} --back")
        elif time.monotonic() - self._rebuild_began > _REBUILD_MAX_S:
            raise LockstepError(
                f"the rebuild hasn't ended in {_REBUILD_MAX_S:.0f} s",
                hint=f"its log says how far it is: {self._directory / 'logs' / 'rebuild.log'}",
            )

    @property
    def is_rebuilding(self) -> bool:
        """Whether the rebuild is still to come or to end."""
        return not self._rebuilt

    def _check_rebuilt(self) -> None:
        config = load(self._config_file)
        opened = open_sink(SEARCH, config.sinks[SEARCH], 1)
        try:
            if opened.generations.live() == 1:
                raise self._children.failure(_REBUILD)
        finally:
            opened.sink.close()

    def counts(self) -> Counts:
        """What the writer has reported last."""
        try:
            return Counts(**json.loads(self._children.last_line(_WRITER)))
        except (ValueError, TypeError):  # it hasn't reported yet
            return Counts()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _say(self, what: str) -> None:
        with contextlib.suppress(OSError):  # a terminal that was closed must not keep us from cleaning up
            say(f"{self.elapsed_s:6.1f} s  {what}")

    def _start(self, name: str, module: str, arguments: Sequence[str]) -> None:
        with self._interrupts.deferred():
            self._children.start(name, module, arguments)

    def _prepare(self, endpoints: Endpoints) -> Config:
        """Empty servers, no checkpoints, and the configuration of this run."""
        empty(endpoints)
        rmtree(self._directory / "checkpoints", ignore_errors=True)
        self._config_file.write_text(configuration(endpoints), encoding="utf-8")
        return load(self._config_file)

    def _watch_in_lines(self, traffic: "_Traffic") -> None:
        due = 0.0
        while not traffic.is_over(self._seconds):
            self.check()
            traffic.look()
            self.rebuild_when_due(traffic.endpoints, traffic.elapsed_s)
            if time.monotonic() >= due:
                due = time.monotonic() + _LINE_EVERY_S
                self._say(traffic.sentence())
            time.sleep(_LOOK_EVERY_S)

    def _watch_on_screen(self, traffic: "_Traffic") -> None:
        """What stays is printed once, above what changes: it can be scrolled back to, copied, and is there afterwards."""
        with Live(console=err, auto_refresh=False) as live:
            while not traffic.is_over(self._seconds):
                self.check()
                traffic.look()
                self.rebuild_when_due(traffic.endpoints, traffic.elapsed_s)
                chosen = traffic.new_examples()
                if chosen:
                    live.console.print(queries(chosen, directory=self._directory))
                live.update(screen(traffic.facts(self._seconds)), refresh=True)
                time.sleep(_SCREEN_EVERY_S)

    def _finish(self, config: Config, source: psycopg.Connection[Any], collector: LagCollector) -> int:
        self._say("stopping the writer")
        self._children.stop(_WRITER, grace_s=_WRITER_GRACE_S)
        target = _heartbeat(source)
        lag = self._wait_for(target, source, collector)
        self._say("comparing every row of every table in every sink with the source")
        found = self._compare(config)
        equal = {name: all(one.is_equal for one in tables) for name, tables in found.items()}
        ok = all(equal.values()) and not any(lag.rejected.values())
        if self._as_json:
            _print_json(self._result(config, found, lag, target=target, ok=ok))
        else:
            out.print(comparison_table(found))
            for name, count in lag.rejected.items():
                if count:
                    say(
                        f"{name} rejected {count} events; their reasons: lockstep rejections list --config {self._config_file}"
                    )
        self._say("every sink is equal to the source" if ok else "NOT every sink is equal to the source")
        return 0 if ok else EXIT_FAILED

    def _wait_for(self, target: Lsn, source: psycopg.Connection[Any], collector: LagCollector) -> LagReport:
        """Wait until every sink has applied everything up to ``target``. Raises LockstepError when that takes too long."""
        self._say(f"waiting until every sink has applied everything up to {format_lsn(target)}")
        now = time.monotonic()
        stuck_at, heartbeat_due, line_due = now + _STUCK_MAX_S, now + _HEARTBEAT_EVERY_S, now + _LINE_EVERY_S
        before = None
        standing = "the servers don't answer"
        while True:
            self.check()
            with contextlib.suppress(Unavailable):
                lag = collector.collect()
                applied = _applied(lag)
                if all(lsn is not None and lsn >= target for lsn in applied.values()):
                    return lag
                standing = _sentence(lag)
                if applied != before:
                    before = applied
                    stuck_at = time.monotonic() + _STUCK_MAX_S
            now = time.monotonic()
            if now > stuck_at:
                raise LockstepError(
                    f"no sink has got any further towards {format_lsn(target)} for {_STUCK_MAX_S:.0f} s: {standing}",
                    hint=f"the logs say why: {self._directory / 'logs'}",
                )
            if now >= line_due:
                line_due = now + _LINE_EVERY_S
                self._say(standing)
            if now >= heartbeat_due:
                heartbeat_due = now + _HEARTBEAT_EVERY_S
                _heartbeat(source)
            time.sleep(_POLL_S)

    def _compare(self, config: Config) -> dict[str, list[TableComparison]]:
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
            for name in config.sinks:
                live = _live(config, name)
                built_with = settings_of_generation(config, name, live)
                sinks[name] = (open_sink(name, built_with, live.number).sink, projection_of(built_with))
                opened.callback(sinks[name][0].close)
            return compare_sinks(source, sinks)

    def _result(
        self,
        config: Config,
        found: Mapping[str, Sequence[TableComparison]],
        lag: LagReport,
        *,
        target: Lsn,
        ok: bool,
    ) -> dict[str, Any]:
        state = read_state(config.kafka.client(), config.pipeline.name, config.slot)
        applied = _applied(lag)
        return {
            "ok": ok,
            "seconds": round(self.elapsed_s, 1),
            "traffic": {"seconds": self._seconds, "rate": self._rate, **asdict(self.counts())},
            "snapshot": None
            if state is None
            else {
                "handoff": format_lsn(state.handoff),
                "rows": {str(table): rows for table, rows in state.copied.items()},
            },
            "target_lsn": format_lsn(target),
            "source": {str(one.table): one.source_rows for one in next(iter(found.values()))},
            "sinks": {
                name: {
                    "equal": all(one.is_equal for one in tables),
                    "generation": _live(config, name).number,
                    "applied_lsn": format_lsn(applied[name] or 0),
                    "rejected": lag.rejected[name],
                    "tables": {str(one.table): one.to_json() for one in tables},
                }
                for name, tables in found.items()
            },
            "versions": self._versions(),
        }

    def _versions(self) -> dict[str, str]:
        versions = {"lockstep": "", "pyspark": "", "psycopg": ""}
        for package in versions:
            with contextlib.suppress(PackageNotFoundError):  # run from a checkout that isn't installed
                versions[package] = version(package)
        servers = {server.name: server.version for server in self._stack.status()}
        return {"python": platform.python_version(), **versions, **servers}


class _Traffic:
    """What is seen while the writer writes, and when it has written long enough."""

    def __init__(
        self, demo: _Demo, source: psycopg.Connection[Any], collector: LagCollector, endpoints: Endpoints
    ) -> None:
        self._demo = demo
        self._source = source
        self._collector = collector
        self.endpoints = endpoints
        self._began = time.monotonic()
        self._snapshot_done: float | None = None
        self._sinks_began: float | None = None
        self._lag: LagReport | None = None
        self._unanswered = ""
        self._has_shown_examples = False
        self._rate_at = (self._began, 0)
        self._rate = 0.0

    def look(self) -> None:
        """Ask the servers. Raises LockstepError when the snapshot isn't done after a long time."""
        now = time.monotonic()
        try:
            self._lag = self._collector.collect()
            self._unanswered = ""
        except Unavailable as error:
            self._unanswered = error.message
        if self._lag is not None:
            if self._snapshot_done is None and _is_published(self._lag):
                self._snapshot_done = now
            if self._sinks_began is None and all(_applied(self._lag).values()):
                self._sinks_began = now
        if self._snapshot_done is None and now - self._began > _SNAPSHOT_MAX_S:
            raise LockstepError(
                f"the snapshot wasn't done in {_SNAPSHOT_MAX_S:.0f} s: {self.sentence()}",
                hint="the log of capture says why",
            )

    def new_examples(self) -> list[Example]:
        """The example queries, once: as soon as every sink has something to answer."""
        if self._has_shown_examples or self._sinks_began is None:
            return []
        self._has_shown_examples = True
        try:
            order = some_order(self._source)
        except psycopg.OperationalError as error:
            raise connection_error(error) from error
        return [] if order is None else examples(self.endpoints, order=order)

    def is_over(self, seconds: float | None) -> bool:
        """Whether the traffic has gone on for so long under everybody's eyes, or for long enough if a sink is late.

        Never before the rebuild is done: that it happens under traffic is the point of it.
        """
        if seconds is None or self._demo.is_rebuilding:
            return False
        return (remaining := self._remaining_s(seconds)) is not None and remaining <= 0

    @property
    def elapsed_s(self) -> float | None:
        """How long every sink has been following; None while they haven't begun."""
        return None if self._sinks_began is None else time.monotonic() - self._sinks_began

    def sentence(self) -> str:
        """How it stands, in a line."""
        lag = "nothing is known yet" if self._lag is None else _sentence(self._lag)
        return f"{self._demo.counts().transactions:,} transactions written; {self._unanswered or lag}"

    def facts(self, seconds: float | None) -> Facts:
        """For the screen."""
        counts = self._demo.counts()
        now = time.monotonic()
        since, before = self._rate_at
        if now - since >= _LINE_EVERY_S:
            self._rate = (counts.transactions - before) / (now - since)
            self._rate_at = (now, counts.transactions)
        waiting = "taking the snapshot ..." if self._snapshot_done is None else "starting Spark and the sinks ..."
        return Facts(
            elapsed_s=self._demo.elapsed_s,
            remaining_s=None if seconds is None else self._remaining_s(seconds),
            lag=self._lag,
            waiting=self._unanswered or ("" if self._sinks_began is not None else waiting),
            counts=counts,
            transactions_per_s=self._rate,
        )

    def _remaining_s(self, seconds: float) -> float | None:
        """None while nobody can tell: the snapshot isn't done."""
        if self._snapshot_done is None:
            return None
        latest = self._snapshot_done + _SINKS_MAX_S
        began = latest if self._sinks_began is None else min(self._sinks_began, latest)
        return began + seconds - time.monotonic()


def _live(config: Config, name: str) -> Generation:
    """What readers of a sink see."""
    return next(generation for generation in list_of(config, name) if generation.is_live)


def _heartbeat(source: psycopg.Connection[Any]) -> Lsn:
    try:
        return emit_heartbeat(source)
    except psycopg.OperationalError as error:
        raise connection_error(error) from error


def _is_published(lag: LagReport) -> bool:
    """Whether anything is known to be complete in Kafka; the snapshot is, when it is done."""
    return any(stage.name == "in Kafka" and stage.lsn is not None for stage in lag.stages)


def _applied(lag: LagReport) -> dict[str, int | None]:
    """Sink -> the LSN up to which it has applied everything."""
    prefix = "applied: "
    return {stage.name.removeprefix(prefix): stage.lsn for stage in lag.stages if stage.name.startswith(prefix)}


def _sentence(lag: LagReport) -> str:
    return ", ".join(
        f"{stage.name} "
        + ("nothing yet" if stage.bytes_behind is None else f"{stage.bytes_behind:,} bytes behind")
        + ("" if stage.events_behind is None else f" ({stage.events_behind:,} events)")
        for stage in lag.stages[1:]
    )


def _addresses(endpoints: Endpoints) -> dict[str, str]:
    return {
        "source": endpoints.source_dsn,
        "Kafka": endpoints.kafka_bootstrap,
        "OpenSearch": f"{endpoints.opensearch_url}/_cat/indices/shop.*?v",
        "Valkey": endpoints.redis_url,
        "warehouse": endpoints.warehouse_dsn,
    }


def _print_json(document: dict[str, Any]) -> None:
    # Rich would wrap it.
    out.file.write(json.dumps(document, indent=2) + "\n")
    out.file.flush()
