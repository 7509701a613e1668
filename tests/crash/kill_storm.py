"""Kills of capture, of the driver and of its processes, again and again, at random moments of a whole pipeline.

Traffic goes on meanwhile, tables are altered, sinks are rebuilt and switched, and stores are killed. Every minute or
so the storm rests, and a sink is compared with the source; at the end each is. Readers look all the time: no row may go
back, or come back.

    python -m tests.crash.kill_storm --minutes 15 --stack .lockstep/storm
"""

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import psycopg

from cdc.model.table import TableName
from sinks.opensearch.names import alias_name
from stack.stack import Stack
from tests.pipeline import Pipeline, Process, traffic
from tests.readers import Read, cache_reader, search_reader, warehouse_reader
from tests.services import KAFKA_OVERRIDES, temporary_directory
from tests.spark_session import python_workers

_KINDS = ("search", "cache", "warehouse")
_STORES = {"opensearch": "search", "valkey": "cache", "warehouse": "warehouse"}
_KEYS = 40
_GUST_S = (30.0, 90.0)
"""How long it storms between two pauses, in seconds."""

_PLAIN = ("Traceback (most recent call last)", "AssertionError", "Py4J")
"""What no log holds, whatever is killed."""


class Counters(threading.Thread):
    """Raises counters, each in its row's ``owner``. Each row is deleted for good in the end, and a new one comes."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(daemon=True)
        self._pipeline = pipeline
        self.finished = threading.Event()
        self.keys = list(range(1, _KEYS + 1))

    def run(self) -> None:
        table, chance, last = f"{self._pipeline.name}.account", random.Random(1), _KEYS
        with self._pipeline.sql() as connection:
            connection.execute(f"insert into {table} (id, owner) select i, '1' from generate_series(1, {_KEYS}) i")
            while not self.finished.wait(0.02):
                at = chance.randrange(_KEYS)
                key = self.keys[at]
                if chance.random() < 0.95:
                    connection.execute(f"update {table} set owner = owner::int + 1 where id = {key}")
                    continue
                connection.execute(f"delete from {table} where id = {key}")
                last = self.keys[at] = last + 1
                connection.execute(f"insert into {table} (id, owner) values ({last}, '1')")


class Watcher(threading.Thread):
    """Reads the counters in a sink. Asks a store again that doesn't answer."""

    def __init__(self, name: str, opened: Callable[[], AbstractContextManager[Read]], counters: Counters) -> None:
        super().__init__(daemon=True, name=name)
        self._opened = opened
        self._counters = counters
        self.finished = threading.Event()
        self.reads = 0
        self.problems: list[str] = []
        self._seen: dict[int, int] = {}
        self._gone: set[int] = set()

    def run(self) -> None:
        while not self.finished.is_set():
            with suppress(Exception), self._opened() as read:  # its server is away
                while not self.finished.wait(0.01):
                    self._look(read)
            self.finished.wait(0.1)

    def _look(self, read: Read) -> None:
        chance = random.random()
        # A deleted one is still looked at.
        key = random.choice(self._counters.keys) if chance < 0.6 or not self._seen else random.choice([*self._seen])
        counter = read(key)
        self.reads += 1
        if counter is None:
            if key in self._seen:
                self._gone.add(key)
            return
        if key in self._gone:
            self.problems.append(f"row {key} had gone, and is back with {counter}")
            self._gone.remove(key)
        elif counter < self._seen.get(key, 0):
            self.problems.append(f"row {key} went from {self._seen[key]} back to {counter}")
        self._seen[key] = counter


class Storm:
    """``servers`` are killed as well. ``names`` limits the strikes, unless it is empty."""

    def __init__(
        self, pipeline: Pipeline, seed: int, servers: Stack | None = None, names: Collection[str] = ()
    ) -> None:
        self._pipeline = pipeline
        self._random = random.Random(seed)
        self._servers = servers
        self._names = names
        self._capture: Process | None = None
        self._job: Process | None = None
        self._rebuild: Process | None = None
        self._logs: list[Process] = []
        self._frozen: list[psutil.Process] = []
        self._columns = 0
        self.done: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        """Raises AssertionError if a sink differs, a row came back, or a process ended by itself."""
        counters = Counters(self._pipeline)
        counters.start()
        self._calm()
        deadline = time.monotonic() + seconds
        try:
            with self._watched(counters), traffic(self._pipeline, pause_s=0.05):
                while time.monotonic() < deadline:
                    gust_ends = time.monotonic() + self._random.uniform(*_GUST_S)
                    while time.monotonic() < gust_ends:
                        self._strike()
                        time.sleep(self._random.choice([0, 0.2, 1, 3, 3, 20]))
                    self._calm()
                    self._assert_equal(self._sink(self._random.choice(_KINDS)))
        finally:
            counters.finished.set()
            counters.join()
            for process in self._frozen:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._calm()
        sinks = [*map(self._sink, _KINDS)]
        self._assert_equal(*sinks)
        sink = self._sink(self._random.choice(_KINDS))
        self._say(f"rebuild of {sink}")
        self._pipeline.run("rebuild", sink, "--switch")
        self._assert_equal(*sinks)

    @contextmanager
    def _watched(self, counters: Counters) -> Iterator[None]:
        table = TableName(self._pipeline.name, "account")
        endpoints = self._pipeline.endpoints
        search, cache, warehouse = map(self._sink, _KINDS)
        watchers = [
            Watcher(search, lambda: search_reader(endpoints, alias_name(search, table), "owner"), counters),
            Watcher(cache, lambda: cache_reader(endpoints, cache, str(table), "owner"), counters),
            Watcher(
                warehouse,
                lambda: warehouse_reader(endpoints, f"{warehouse}.{table.schema}__{table.name}", "owner"),
                counters,
            ),
        ]
        with ExitStack() as closing:
            for watcher in watchers:
                watcher.start()
                closing.callback(watcher.join, 60)
                closing.callback(watcher.finished.set)
            yield
        for watcher in watchers:
            assert watcher.problems == [], f"{watcher.name}: {watcher.problems[:10]} in {watcher.reads} reads"
            assert watcher.reads > 100, f"{watcher.name} was read {watcher.reads} times"

    def _sink(self, kind: str) -> str:
        return f"{self._pipeline.name}_{kind}"

    def _say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    # Processes.

    def _begun(self, process: Process) -> Process:
        self._logs.append(process)
        return process

    def _go_on(self) -> None:
        if self._capture is None:
            self._capture = self._begun(self._pipeline.start_capture())
        if self._job is None:
            self._job = self._begun(self._pipeline.start_apply())

    def _assert_alive(self) -> None:
        for process in (self._capture, self._job):
            if process is not None and process.poll() is not None:
                raise AssertionError(f"ended with {process.returncode} by itself: {process.output()[-5000:]}")

    def _calm(self) -> None:
        """Kill nothing until everything is applied."""
        for process in self._frozen:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        self._frozen.clear()
        self._go_on()
        assert self._capture is not None
        assert self._job is not None
        if self._rebuild is not None:
            self._pipeline.wait_ended(self._rebuild, timeout_s=900)
            self._rebuild = None
        self._pipeline.wait_streaming(self._capture)
        self._pipeline.wait_applied(self._job)
        self._assert_alive()

    def _assert_equal(self, *sinks: str) -> None:
        for sink in sinks:
            self._say(f"compare {sink}")
            # Rows that are written all the time are compared again and again, which takes minutes on a busy machine.
            self._pipeline.run("verify", sink, timeout_s=3600)
        for process in self._logs:
            told = process.output()
            for word in _PLAIN:
                assert word not in told, f"{process.log}: {told[max(0, told.index(word) - 2000) :][:5000]}"

    def end_what_is_left(self) -> None:
        """Processes whose parent was killed."""
        for process in self._logs:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    # What strikes.

    def _strike(self) -> None:
        self._assert_alive()
        kinds: list[tuple[Callable[[], None], int]] = [
            (self._capture_killed, 8),
            (self._driver_killed, 4),
            (self._driver_alone_killed, 2),
            (self._jvm_killed, 2),
            (self._worker_killed, 6),
            (self._worker_frozen, 2),
            (self._rebuild_begun, 2),
            (self._rebuild_killed, 2),
            (self._switched, 3),
            (self._altered, 3),
            *([(self._store_killed, 2)] if self._servers is not None else []),
        ]
        named = {_name(kind): (kind, weight) for kind, weight in kinds}
        chosen = [each for name, each in named.items() if not self._names or name in self._names]
        kind = self._random.choices(*zip(*chosen, strict=True))[0]
        self.done[_name(kind)] += 1
        self._say(_name(kind))
        kind()
        self._go_on()

    def _capture_killed(self) -> None:
        """Kill some captures one after the other, each during its start or soon after it."""
        for _ in range(self._random.randrange(1, 4)):
            self._go_on()
            assert self._capture is not None
            time.sleep(self._random.uniform(0, 5))
            os.killpg(self._capture.pid, signal.SIGKILL)
            self._capture.wait()
            self._capture = None

    def _killed(self, kill: Callable[[Process], None]) -> None:
        assert self._job is not None
        kill(self._job)
        self._job.wait()
        self._job = None

    def _driver_killed(self) -> None:
        for _ in range(self._random.randrange(1, 3)):
            self._go_on()
            time.sleep(self._random.choice([0, 0, 3, 10]) * self._random.random())
            self._killed(lambda job: os.killpg(job.pid, signal.SIGKILL))

    def _driver_alone_killed(self) -> None:
        """Its JVM and its tasks learn of it later."""
        self._killed(Process.kill)

    def _jvm_killed(self) -> None:
        assert self._job is not None
        jvms = [each for each in psutil.Process(self._job.pid).children() if each.name() == "java"]
        for jvm in jvms:
            jvm.kill()
        if jvms:
            assert self._pipeline.wait_ended(self._job) == 1, self._job.output()[-5000:]
            self._job = None

    def _worker_killed(self) -> None:
        assert self._job is not None
        workers = python_workers(self._job.pid)
        if workers:
            with suppress(psutil.NoSuchProcess):
                self._random.choice(workers).kill()

    def _worker_frozen(self) -> None:
        """One of the tasks wakes up when another driver has gone on."""
        assert self._job is not None
        for worker in python_workers(self._job.pid)[:1]:
            with suppress(psutil.NoSuchProcess):
                worker.suspend()
                self._frozen.append(worker)
        self._killed(Process.kill)

    def _rebuild_begun(self) -> None:
        if self._rebuild is None or self._rebuild.poll() is not None:
            sink = self._sink(self._random.choice(_KINDS))
            command = ("lockstep", "rebuild", sink, "--switch", "--config", str(self._pipeline.path))
            self._rebuild = self._begun(self._pipeline.start(*command))

    def _rebuild_killed(self) -> None:
        self._rebuild_begun()
        assert self._rebuild is not None
        time.sleep(self._random.uniform(0, 10))
        os.killpg(self._rebuild.pid, signal.SIGKILL)
        self._rebuild.wait()
        self._rebuild = None

    def _switched(self) -> None:
        """To the newest generation or back, even if there is none; killed on the way, or not."""
        command = ["lockstep", "switch", self._sink(self._random.choice(_KINDS)), "--config", str(self._pipeline.path)]
        switch = self._begun(self._pipeline.start(*command, *self._random.choice([[], ["--back"], ["--back"]])))
        if self._random.random() < 0.6:
            time.sleep(self._random.uniform(1, 4))
            switch.kill()

    def _altered(self) -> None:
        table = f"{self._pipeline.name}.account"
        self._columns += 1
        statement = self._random.choice(
            [
                f"alter table {table} add column c{self._columns} int",
                f"alter table {table} add column c{self._columns} text default 'x'",
                f"truncate {self._pipeline.name}.entry",
                f"vacuum full {table}",
            ]
        )
        with suppress(psycopg.errors.DeadlockDetected), self._pipeline.sql() as connection:
            connection.execute(f"delete from {table} where owner = 'many'".encode())  # else each column takes longer
            connection.execute(statement.encode())

    def _store_killed(self) -> None:
        assert self._servers is not None
        name = self._random.choice([*_STORES])
        self.done[f"{name} killed"] += 1
        self._servers.kill(name)
        time.sleep(self._random.uniform(0, 5))
        self._servers.start(name)


def _name(strike: Callable[[], None]) -> str:
    return strike.__name__.lstrip("_").replace("_", " ")


def storm(seconds: float, seed: int, stack: Stack, directory: Path, names: Collection[str] = ()) -> Counter[str]:
    """One storm of this many seconds, on servers that nobody else uses; returns how often each strike came. ``names``
    are those of the strikes; empty: all."""
    print(f"seed {seed}", flush=True)
    pipeline = Pipeline(stack.up(), directory, f"storm{seed}", sinks=True, more={"spark": "retry_s = 1.0"})
    made = Storm(pipeline, seed, stack, names)
    try:
        made.run(seconds)
    finally:
        made.end_what_is_left()
        pipeline.close()
    return made.done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument("--only", action="append", default=[], help='a strike, such as "store killed"; again for more')
    parser.add_argument("--stack", type=Path, required=True, help="where the servers' data is; nobody else uses them")
    options = parser.parse_args()
    with temporary_directory() as directory:
        stack = Stack(options.stack, durable=False, light=True, kafka_overrides=KAFKA_OVERRIDES)
        try:
            done = storm(60 * options.minutes, options.seed, stack, directory, options.only)
        except BaseException:
            kept = options.stack / f"storm-{options.seed}"
            directory.rename(kept)
            print(f"its logs are in {kept}", flush=True)
            raise
    print(dict(done.most_common()))


if __name__ == "__main__":
    sys.exit(main())
