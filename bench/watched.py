"""The cost of being watched, and how soon it reports: the web page, waits for a commit, and stages that hang.

A pipeline with three sinks has traffic. Its page has ten readers, which get everything that it sends. Fifty programs
use its server to wait for their own commits at once. Then one process or server after the other is suspended, until the
page says which stage hangs.
"""

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Self
from urllib.parse import urlsplit

import psutil
import redis

from bench.figures import Figure, Target, percentile
from bench.rig import CACHE, SEARCH, STORES, WAREHOUSE, Child, Pipeline, Rig, Say, sink_name, wait_until
from bench.sizes import Sizes
from bench.usage import CpuMeter
from bench.visible import ROWS, Traffic
from cdc.model.errors import LockstepError
from cdc.model.lsn import format_lsn, parse_lsn
from lockstep.client.client import Client
from lockstep.client.token import commit_token
from lockstep.config import load
from monitor.lag import StageState
from sinks.registry import open_sink

PHASE = "watched"

READERS: Final = 10
WAITING: Final = 50

_CPU_PERCENT_MAX = 2.0
_MEMORY_MB_MAX = 60.0
_WAIT_MS_MAX = 50.0
_TOLD_S_MAX = 10.0

_FIRST_WAITED_ROW = 10_000
_POLL_S = 0.002
_LOOK_S = 0.1
_WAIT_S = 60.0
_WELL_S = 300.0
_WARM_S = 5.0
_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Page:
    """The server with its readers: % of a core, and megabytes of its own share of the memory."""

    idle_percent: float
    busy_percent: float
    memory_mb: float


@dataclass(frozen=True, slots=True)
class Watched:
    page: Page
    over_lag_ms: Sequence[float]
    """How much longer each wait took than the sink needed to report everything up to the commit."""
    over_row_ms: Sequence[float]
    """The same, beyond the moment when its row alone was found."""
    told_s: Mapping[str, float]
    """By what hung."""


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Returns figures and details. Raises LockstepError when a command fails, or a hanging stage isn't named."""
    rig.up()
    with rig.pipeline("watched", sinks=STORES) as pipeline, pipeline.sql() as connection:
        pipeline.load(connection, first=0, rows=ROWS, per_transaction=ROWS)
        children = {"capture": pipeline.start_capture()}
        pipeline.wait_streaming(children["capture"])
        children["apply"] = pipeline.start_apply()
        server = _Server(rig, pipeline)
        server.wait_well()
        page = _page(server, pipeline, sizes, say)
        over_lag_ms, over_row_ms = _waits(server, pipeline, sizes, say)
        told_s = {}
        with Traffic(pipeline, sizes.sink_rate):
            for what, pid, stage in _hanging(rig, pipeline, children):
                told_s[what] = _told(server, pid, stage)
                say(f"{what} hangs: {stage} is named after {told_s[what]:.1f} s")
                server.wait_well()
        watched = Watched(page, over_lag_ms, over_row_ms, told_s)
    return figures_of(watched), {"waits": len(over_lag_ms), "readers": READERS, "waiting": WAITING}


def figures_of(watched: Watched) -> list[Figure]:
    def figure(name: str, value: float, unit: str, at_most: float | None = None) -> Figure:
        target = None if at_most is None else Target(bound="at most", amount=at_most)
        return Figure(phase=PHASE, name=name, value=value, unit=unit, target=target)

    page, over_lag_ms, over_row_ms = watched.page, watched.over_lag_ms, watched.over_row_ms
    return [
        figure(f"the page with {READERS} readers, idle", page.idle_percent, "% of a core", _CPU_PERCENT_MAX),
        figure("... under traffic", page.busy_percent, "% of a core", _CPU_PERCENT_MAX),
        figure("... its memory", page.memory_mb, "MB", _MEMORY_MB_MAX),
        figure(f"{WAITING} waits at once, over the sink's own lag, p50", percentile(over_lag_ms, 50), "ms"),
        figure("... p99", percentile(over_lag_ms, 99), "ms", _WAIT_MS_MAX),
        figure("... over the row alone, p50", percentile(over_row_ms, 50), "ms"),
        figure("... over the row alone, p99", percentile(over_row_ms, 99), "ms"),
        *(figure(f"{what} hangs: told after", s, "s", _TOLD_S_MAX) for what, s in watched.told_s.items()),
    ]


class _Server:
    """``lockstep dashboard`` of a pipeline, on a free port."""

    def __init__(self, rig: Rig, pipeline: Pipeline) -> None:
        config = pipeline.directory / f"{pipeline.name}.toml"
        path = config.with_name(f"{pipeline.name}-page.toml")
        path.write_text(
            f'{config.read_text(encoding="utf-8")}\n[dashboard]\nlisten = "127.0.0.1:0"\n', encoding="utf-8"
        )
        self.child = rig.start("dashboard", "dashboard", "--config", str(path))
        wait_until(lambda: self._said() is not None, what="the page is served")
        self.url = self._said() or ""

    def _said(self) -> str | None:
        self.child.check()
        words = self.child.tail.text().split()
        return next((word.rstrip("/") for word in words if word.startswith("http://")), None)

    def connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_WAIT_S)

    def stages(self) -> dict[str, str]:
        """The state of each stage, by its name; empty before the first look."""
        connection = self.connection()
        try:
            connection.request("GET", "/api/lag")
            answer = connection.getresponse()
            document = json.loads(answer.read())
        finally:
            connection.close()
        return (
            {} if answer.status != HTTPStatus.OK else {stage["stage"]: stage["state"] for stage in document["stages"]}
        )

    def wait_well(self) -> None:
        """Wait until every stage is current. Raises LockstepError at the time-out."""

        def is_well() -> bool:
            self.child.check()
            stages = self.stages()
            return bool(stages) and all(state == StageState.CURRENT for state in stages.values())

        wait_until(is_well, what="every stage is current", timeout_s=_WELL_S, every_s=0.5)


def _page(server: _Server, pipeline: Pipeline, sizes: Sizes, say: Say) -> Page:
    seconds = sizes.watched_s
    with _readers(server):
        time.sleep(_WARM_S)
        idle = _percent(server.child, seconds)
        with Traffic(pipeline, sizes.sink_rate):
            time.sleep(_WARM_S)
            busy = _percent(server.child, seconds)
        memory_mb = _memory_mb(server.child.process.pid)
    say(f"the page with {READERS} readers: {idle:.1f} % of a core, {busy:.1f} % under traffic, {memory_mb:.0f} MB")
    return Page(idle, busy, memory_mb)


def _percent(child: Child, seconds: float) -> float:
    meter, began = CpuMeter({"page": child.process.pid}), time.monotonic()
    time.sleep(seconds)
    child.check()
    return 100 * meter.used()["page"] / (time.monotonic() - began)


def _memory_mb(pid: int) -> float:
    """Of a process and its family. Shared pages count in parts."""
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    return float(sum(member.memory_full_info().pss for member in family)) / _MB


@contextmanager
def _readers(server: _Server) -> Iterator[None]:
    """Open pages, each of which gets every event. Raises LockstepError when one got none."""
    finished, got = threading.Event(), [0] * READERS

    def read(number: int) -> None:
        connection = server.connection()
        connection.request("GET", "/api/events")
        with connection.getresponse() as answer:
            while not finished.is_set() and answer.readline():
                got[number] += 1

    with ThreadPoolExecutor(READERS) as pool:
        reading = [pool.submit(read, number) for number in range(READERS)]
        try:
            yield
        finally:
            finished.set()
        for one in reading:
            one.result()
    if not all(got):
        raise LockstepError("a reader of the page got no event")


def _waits(server: _Server, pipeline: Pipeline, sizes: Sizes, say: Say) -> tuple[list[float], list[float]]:
    """Milliseconds by which each wait for an own commit exceeded the sink's lag, and the time of its row alone."""
    cache: Any = redis.Redis.from_url(pipeline.endpoints.redis_url)
    client = Client(server.url)
    sink = sink_name(pipeline.name, CACHE)
    over_lag_ms: list[float] = []
    over_row_ms: list[float] = []
    with (
        ExitStack() as stack,
        Traffic(pipeline, sizes.sink_rate),
        _Watermarks(pipeline, sink) as watermarks,
        ThreadPoolExecutor(WAITING) as pool,
    ):
        connections = [stack.enter_context(pipeline.sql()) for _ in range(WAITING)]
        for number in range(sizes.watched_rounds + 1):
            first = _FIRST_WAITED_ROW + number * WAITING
            barrier = threading.Barrier(WAITING)

            def write_and_wait(
                place: int, first: int = first, barrier: threading.Barrier = barrier
            ) -> tuple[str, float]:
                barrier.wait()
                pipeline.insert(connections[place], first + place)
                token = commit_token(connections[place])
                if not client.wait(sink, token, _WAIT_S):
                    raise LockstepError(f"a row that was written isn't in the sink after {_WAIT_S:.0f} s")
                return token, time.monotonic()

            waits = [pool.submit(write_and_wait, place) for place in range(WAITING)]
            seen = _seen(cache, pipeline, range(first, first + WAITING))
            ended = [wait.result() for wait in waits]
            if number:  # the first one opens what is used
                over_row_ms += [1000 * (ended[place][1] - seen[place]) for place in range(WAITING)]
                over_lag_ms += [1000 * (at - watermarks.reached_at(parse_lsn(token))) for token, at in ended]
    cache.close()
    for over, what in ((over_lag_ms, "the sink's own lag"), (over_row_ms, "the row alone")):
        p50, p99 = percentile(over, 50), percentile(over, 99)
        say(f"{len(over):,} waits over {what}: p50 {p50:.0f} ms, p99 {p99:.0f} ms")
    return over_lag_ms, over_row_ms


class _Watermarks:
    """When a sink first showed each watermark. Polls with a connection of its own."""

    def __init__(self, pipeline: Pipeline, sink: str) -> None:
        self._opened = open_sink(sink, load(pipeline.directory / f"{pipeline.name}.toml").sinks[sink], 1)
        self._seen: list[tuple[int, float]] = []
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="watermarks", daemon=True)

    def reached_at(self, lsn: int) -> float:
        """By ``time.monotonic``. Raises LockstepError when it never was."""
        for watermark, at in list(self._seen):
            if watermark >= lsn:
                return at
        raise LockstepError(f"no watermark of {format_lsn(lsn)} or later was seen")

    def _ask(self) -> None:
        while not self._finished.wait(_POLL_S):
            progress = self._opened.generations.load_progress()
            if progress is not None and (not self._seen or progress.watermark_lsn > self._seen[-1][0]):
                self._seen.append((progress.watermark_lsn, time.monotonic()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finished.set()
        self._thread.join()
        self._opened.sink.close()


def _seen(cache: Any, pipeline: Pipeline, rows: range) -> list[float]:
    """When each row was first found in the cache, all polled together. Raises LockstepError at the time-out."""
    live = cache.get(f"{pipeline.name}:live").decode()
    missing = dict(enumerate(rows))
    seen = [0.0] * len(rows)
    deadline = time.monotonic() + _WAIT_S
    while missing:
        if time.monotonic() > deadline:
            raise LockstepError(f"{len(missing)} rows aren't in the cache after {_WAIT_S:.0f} s")
        asked = cache.pipeline(transaction=False)
        for row in missing.values():
            asked.exists(f"{pipeline.name}:{live}:{pipeline.table}:{row}")
        answers, now = asked.execute(), time.monotonic()
        for place, is_there in zip(list(missing), answers, strict=True):
            if is_there:
                seen[place] = now
                del missing[place]
        time.sleep(_POLL_S)
    return seen


def _hanging(rig: Rig, pipeline: Pipeline, children: Mapping[str, Child]) -> Iterator[tuple[str, int, str]]:
    """(what is suspended, its process, the stage that is to be named)."""
    servers = rig.server_pids

    def applied(kind: str) -> str:
        return f"applied: {sink_name(pipeline.name, kind)}"

    yield "capture", children["capture"].process.pid, "received"
    yield "apply", children["apply"].process.pid, "read: "
    yield "Kafka", servers["kafka"], "in Kafka"
    yield "Redis", servers["valkey"], applied(CACHE)
    yield "OpenSearch", servers["opensearch"], applied(SEARCH)
    yield "warehouse", servers["warehouse"], applied(WAREHOUSE)
    yield "source", servers["postgres"], "WAL end"


def _told(server: _Server, pid: int, stage: str) -> float:
    """Seconds from a family's stop until the page names the stage. Raises LockstepError when it doesn't."""
    with stopped(pid):
        began = time.monotonic()

        def is_named() -> bool:
            return any(
                name.startswith(stage) and state not in (StageState.CURRENT, StageState.BEHIND)
                for name, state in server.stages().items()
            )

        wait_until(is_named, what=f"{stage} is named", every_s=_LOOK_S)
        return time.monotonic() - began


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    try:
        _signal(family, signal.SIGSTOP)
        yield
    finally:
        _signal(family, signal.SIGCONT)


def _signal(family: Sequence[psutil.Process], number: signal.Signals) -> None:
    for member in family:
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            os.kill(member.pid, number)
