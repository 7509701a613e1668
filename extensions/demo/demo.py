"""Runs the demonstration: servers, shop, traffic, snapshot, stream, three sinks, and the comparison of every row.
Everything is in one directory: the servers' data in ``stack``, ``logs``, Spark's ``checkpoints``, and a
``lockstep.toml`` for the other commands. Each run empties its servers first, so the end of the last run doesn't matter.
"""

import contextlib
import fcntl
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import psycopg
from rich.console import RenderableType
from rich.live import Live

from cdc.model.errors import LockstepError
from cdc.postgres.connection import connect
from extensions.demo.children import Children
from extensions.demo.directory import CONFIGURATION, LOCK, check_directory, shown
from extensions.demo.interrupt import Interrupts
from extensions.demo.pace import FOLLOWS_S, TrafficPace
from extensions.demo.reset import empty
from extensions.demo.result import (
    APPLICATION,
    compare,
    heartbeat,
    result_document,
    used_versions,
    wait_until_applied,
)
from extensions.demo.screen import comparison_table, links, queries, screen
from extensions.demo.search_rebuild import SearchRebuild
from extensions.demo.settings import configuration
from extensions.demo.shop import count_rows, create_shop
from extensions.demo.timeline import ADDRESS
from extensions.demo.traffic import Traffic
from extensions.demo.writer import Counts
from lockstep.config import Config, load
from lockstep.console import EXIT_FAILED, say
from lockstep.terminal import err, out
from monitor.collector import LagCollector
from stack import ports
from stack.errors import StackError
from stack.stack import Endpoints, Stack

INTERRUPTED = 130
"""The shell's exit code for a command that Ctrl-C ended before it had a result."""

_SEED = 20

_WRITER, _CAPTURE, _APPLY, _DASHBOARD = "writer", "capture", "apply", "dashboard"
_PORT = 8642
"""The web page's port, if it is free."""


_SCREEN_EVERY_S = 0.5
_LINE_EVERY_S = 5.0
_LOOK_EVERY_S = 1.0

_WRITER_GRACE_S = 15.0
# A job waits up to 30 s for its batch (cdc.model.timeouts.BATCH_ENDS_S).
_PIPELINE_GRACE_S = 45.0


def run_demo(*, seconds: float | None, as_json: bool, keep: bool, directory: Path, rate: float) -> int:
    """Run until Ctrl-C, or for ``seconds`` of traffic and then compare. Returns the exit code.

    It is 0 if it was stopped by hand without ``seconds``, or if every row of every sink equals the source's and nothing
    was rejected. With ``as_json``, standard output always has one JSON document. Raises LockstepError and StackError.
    Raises ConfigurationError before any change for a directory with files that no demo made.
    """
    directory = directory.absolute()
    check_directory(directory)
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
    """Allow one demo at a time per directory: a second one would empty the servers of the first."""
    with (directory / LOCK).open("ab") as file:
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
        self._pace = TrafficPace(rate, now_s=time.monotonic())
        self._rate_file = directory / "transactions-per-second"
        self._seconds = seconds
        self._interrupts = interrupts
        self._as_json = as_json
        # The servers run for minutes, all on one machine: an optimizing compiler would take processor time from the
        # demo.
        self._stack = Stack(directory / "stack", light=True)
        self._children = Children(directory, hurried=interrupts.hurried)
        self._config_file = directory / CONFIGURATION
        self._began = time.monotonic()
        self._closing = contextlib.ExitStack()
        self._rebuild = SearchRebuild(self._config_file, self._children, interrupts, seconds=seconds, say=self._say)

    def run(self) -> int:
        """Do everything up to the result. Returns the exit code. ``stop`` ends the servers and processes. Raises
        StackError when a server doesn't start, and LockstepError for other failures.
        """
        killed = self._children.end_leftovers()
        if killed:
            self._say(f"ended {killed} processes that an earlier run left behind")
        self._say("starting PostgreSQL, a second one as warehouse, Kafka, OpenSearch and Valkey")
        endpoints = self._stack.up(report=lambda name, what: self._say(f"{name}: {what}"))
        near = _near(endpoints, self._directory)
        config = self._prepare(endpoints)
        source = self._closing.enter_context(contextlib.closing(connect(config.source, application=APPLICATION)))
        self._say("creating the sample shop")
        create_shop(source, seed=_SEED)
        rows = count_rows(source)
        self._say(f"created {len(rows)} tables with {sum(rows.values()):,} rows")
        self._write_rate()
        # The writer comes first, so that the handoff from snapshot to stream happens under traffic, as in real life.
        self._start(
            _WRITER,
            "extensions.demo.writer",
            ["--dsn", endpoints.source_dsn, "--rate-file", str(self._rate_file), "--seed", str(_SEED)],
        )
        # Spark takes longest to start, and the jobs wait for the topics.
        self._start(_APPLY, "lockstep", ["apply", "--config", str(self._config_file)])
        self._start(_CAPTURE, "lockstep", ["capture", "--config", str(self._config_file)])
        self._start(_DASHBOARD, "extensions.demo.page", ["--config", str(self._config_file)], watches=True)
        self._say(f"the writer writes {self._pace.rate:g} transactions a second; taking the snapshot, starting Spark")
        if self._pace.rate < self._pace.most:
            self._say(f"it goes up to {self._pace.most:g} while all sinks stay within {FOLLOWS_S:.0f} s")
        addresses = links(
            _addresses(near, config.dashboard.listen), directory=shown(self._directory), config=shown(self._config_file)
        )
        collector = self._closing.enter_context(LagCollector(config.as_pipeline(), config.sinks))
        traffic = Traffic(
            source,
            collector,
            near,
            demo_began=self._began,
            counts=self.counts,
            rebuild=self._rebuild,
            pace=self._pace,
            on_pace=self._change_rate,
        )
        if err.is_terminal:
            self._watch_on_screen(traffic, endpoints, addresses)
        else:
            err.print(addresses)
            self._watch_in_lines(traffic, endpoints)
        return self._finish(load(self._config_file), source, collector)

    def stop(self, *, keep: bool) -> None:
        """End every process, then the servers unless ``keep``. Can't be interrupted, and takes a limited time."""
        with contextlib.suppress(psycopg.Error, LockstepError):
            self._closing.close()
        self._say("stopping")
        for name in self._children.stop(grace_s=_PIPELINE_GRACE_S):
            self._say(f"{name} didn't end in time and was killed")
        if keep:
            self._say(f"the servers stay up; stop them with: lockstep down --directory {shown(self._stack.directory)}")
            return
        try:
            if self._stack.exists:
                self._stack.down()
        except StackError as error:
            self._say(f"error: {error}")
            return
        self._say("stopped")

    def check(self) -> None:
        self._children.check()

    def counts(self) -> Counts:
        try:
            return Counts(**json.loads(self._children.last_line(_WRITER)))
        except (ValueError, TypeError):  # it hasn't reported yet
            return Counts()

    def _change_rate(self, why: str) -> None:
        self._write_rate()
        self._say(why)

    def _write_rate(self) -> None:
        unfinished = self._rate_file.with_suffix(".new")
        unfinished.write_text(f"{self._pace.rate:g}", encoding="utf-8")
        unfinished.replace(self._rate_file)  # the writer never reads half of it

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _say(self, what: str) -> None:
        with contextlib.suppress(OSError):  # a closed terminal must not prevent the clean-up
            say(f"{self.elapsed_s:6.1f} s  {what}")

    def _start(self, name: str, module: str, arguments: Sequence[str], *, watches: bool = False) -> None:
        with self._interrupts.deferred():
            self._children.start(name, module, arguments, watches=watches)

    def _prepare(self, endpoints: Endpoints) -> Config:
        """Empty the servers, delete checkpoints, and write the configuration of this run."""
        empty(endpoints)
        for states in ("checkpoints", "views"):
            rmtree(self._directory / states, ignore_errors=True)
        port = _PORT if ports.is_free(_PORT) else ports.pick()
        text = configuration(endpoints, listen=f"{ports.HOST}:{port}")
        self._config_file.write_text(text, encoding="utf-8")
        return load(self._config_file)

    def _watch_in_lines(self, traffic: Traffic, endpoints: Endpoints) -> None:
        due = 0.0
        while not traffic.is_over(self._seconds):
            self.check()
            traffic.look()
            self._rebuild.step(endpoints, traffic.elapsed_s)
            if time.monotonic() >= due:
                due = time.monotonic() + _LINE_EVERY_S
                self._say(traffic.sentence())
            time.sleep(_LOOK_EVERY_S)

    def _watch_on_screen(self, traffic: Traffic, endpoints: Endpoints, addresses: RenderableType) -> None:
        """The queries are printed once, above the changing part, so that people can scroll back and copy them."""
        with Live(console=err, auto_refresh=False) as live:
            while not traffic.is_over(self._seconds):
                self.check()
                traffic.look()
                self._rebuild.step(endpoints, traffic.elapsed_s)
                chosen = traffic.new_examples()
                if chosen:
                    live.console.print(queries(chosen, directory=shown(self._directory)))
                live.update(screen(traffic.facts(self._seconds), addresses, width=err.width), refresh=True)
                time.sleep(_SCREEN_EVERY_S)

    def _finish(self, config: Config, source: psycopg.Connection[Any], collector: LagCollector) -> int:
        self._say("stopping the writer")
        self._children.stop(_WRITER, grace_s=_WRITER_GRACE_S)
        target = heartbeat(source)
        lag = wait_until_applied(
            target, source, collector, check=self.check, say=self._say, logs=self._directory / "logs"
        )
        self._say("comparing every row of every table in every sink, and of the view, with the source")
        comparisons = compare(config, say=self._say)
        ok = all(compared.is_equal for tables in comparisons.values() for compared in tables)
        ok = ok and not any(lag.rejected.values())
        (err if self._as_json else out).print(comparison_table(comparisons))
        for name, count in lag.rejected.items():
            if count:
                listed = f"lockstep rejections list --config {shown(self._config_file)}"
                say(f"{name} rejected {count} events; their reasons: {listed}")
        if self._as_json:
            servers = {server.name: server.version for server in self._stack.status()}
            document = result_document(
                config,
                comparisons,
                lag,
                target=target,
                ok=ok,
                elapsed_s=self.elapsed_s,
                traffic={"seconds": self._seconds, "rate": self._pace.rate, **asdict(self.counts())},
                versions=used_versions(servers),
            )
            _print_json(document)
        self._say(f"{'every' if ok else 'NOT every'} sink and view is equal to the source")
        return 0 if ok else EXIT_FAILED


def _near(endpoints: Endpoints, directory: Path) -> Endpoints:
    """The endpoints with paths of password files relative to the current directory."""
    dsns = {
        name: getattr(endpoints, name).replace(f"{directory}/", f"{shown(directory)}/")
        for name in ("source_dsn", "warehouse_dsn")
    }
    return replace(endpoints, **dsns)


def _addresses(endpoints: Endpoints, listen: str) -> dict[str, str]:
    return {
        "web page": f"http://{listen}/",
        "live timeline": f"http://{listen}{ADDRESS}",
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
