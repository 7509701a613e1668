"""Rows that a store can't hold, beside a running job: stored, listed, retried, discarded, and closed by themselves."""

import itertools
import json
import os
import random
import string
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc.model.event import JsonValue, Position
from cdc.model.table import Table, TableName
from jobs.dead_letters.record import DeadLetter
from jobs.dead_letters.store import DeadLetters
from jobs.executor.result import RejectedEvent
from jobs.generations.held_tables import Wish, give_order
from lockstep.cli.main import exit_code
from lockstep.config import Config, load
from lockstep.rejections.discard import discard
from lockstep.rejections.open_records import OpenRecords
from lockstep.rejections.selection import Selection
from sinks.contract import OpenedSink
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.builders import column, table
from tests.events import Delete, Log, Put, kafka_settings, key_bytes, value_bytes
from tests.job_process import run_sinks, spark_settings
from tests.spark_here import Job

pytestmark = [pytest.mark.live, pytest.mark.busy]

ORDERS = table(column("id", "int8"), column("note"))
LABELS = table(column("name"), column("note"), name=TableName("public", "labels"), key=("name",))
EXTRAS = table(name=TableName("public", "extras"))
KINDS = ("search", "cache", "warehouse")
_ONE_AT_EACH_CHANGE = [KINDS[0], *(pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS[1:])]
TOO_LONG = "very secret " * 1_000  # exceeds the cache's max_value_bytes
_names = itertools.count(1)
_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Poison:
    """A change that a store refuses, and the same row as it can hold it; None if no other row has that key."""

    bad: Put
    good: Put | None

    @property
    def key(self) -> str:
        return key_bytes(self.bad.table, self.bad.row).decode()


def order(note: str | None, key: int | None = None) -> Put:
    return Put(ORDERS, {"id": next(_ids) if key is None else key, "note": note})


def poison(kind: str) -> Poison:
    """For each store a row that it can't hold: text in a number's field, a document over the limit, too long a key."""
    key = next(_ids)
    match kind:
        case "search":
            return Poison(order("very secret", key), order("12", key))
        case "cache":
            return Poison(order(TOO_LONG, key), order("12", key))
    name = "".join(random.Random(key).choices(string.ascii_letters + string.digits, k=8_000))
    return Poison(Put(LABELS, {"name": name, "note": "very secret"}), None)


def neighbour(kind: str) -> Put:
    key = next(_ids)
    return Put(LABELS, {"name": str(key), "note": "7"}) if kind == "warehouse" else order("7", key)


class Running:
    """A log, three sinks that follow it in one job, and the configuration that commands read."""

    def __init__(self, endpoints: Endpoints, directory: Path, spark: SparkSession) -> None:
        self.spark = spark
        self.name = f"rejections{os.getpid()}_{next(_names)}"
        self.endpoints = endpoints
        self.directory = directory
        self.log = Log(kafka_settings(endpoints.kafka_bootstrap), self.name, [ORDERS, LABELS, EXTRAS])
        self.path = self.write_config("lockstep.toml")
        self.config = load(self.path)
        self.job: Job | None = None

    def write_config(self, name: str, **of_cache: int) -> Path:
        """A configuration file; ``of_cache`` are settings of that sink."""
        cache = "".join(f"{key} = {value}\n" for key, value in ({"max_value_bytes": 10_000} | of_cache).items())
        path = self.directory / name
        path.write_text(f"""
[pipeline]
name = "{self.name}"
[source]
dsn = "{self.endpoints.source_dsn}"
tables = ["public.orders", "public.labels", "public.extras"]
[kafka]
bootstrap_servers = "{self.endpoints.kafka_bootstrap}"
[kafka.topics]
partitions = 4
replication_factor = 1
[sinks.{self.sink("search")}]
type = "opensearch"
urls = ["{self.endpoints.opensearch_url}"]
tables = ["public.orders"]
fields = {{ "public.orders.note" = {{ type = "long" }} }}
replicas = 0
[sinks.{self.sink("cache")}]
type = "redis"
url = "{self.endpoints.redis_url}"
tables = ["public.orders", "public.extras"]
{cache}
[sinks.{self.sink("warehouse")}]
type = "warehouse"
url = "{self.endpoints.warehouse_url}"
tables = ["public.labels"]
""")
        return path

    def sink(self, kind: str) -> str:
        return f"{self.name}_{kind}"

    def start(self, config: Config | None = None, *kinds: str, once: bool = False) -> Job:
        chosen = config or self.config
        self.job = Job(
            self.spark,
            partial(
                run_sinks,
                pipeline=self.name,
                kafka=self.log.kafka,
                tables=self.log.table_names,
                sinks={self.sink(kind): chosen.sinks[self.sink(kind)] for kind in kinds or KINDS},
                spark=spark_settings(self.directory),
                once=once,
            ),
        )
        return self.job

    def apply(self, *changes: Put | Delete) -> None:
        """Commit changes and wait until every sink has seen them."""
        lsn = self.log.commit(changes)
        assert self.job is not None
        for sink in map(self.sink, KINDS):
            self.job.wait_until(
                lambda seen, sink=sink: seen.get("sink") == sink and seen.get("watermark_lsn", 0) >= lsn
            )

    def opened(self, kind: str) -> OpenedSink:
        return open_sink(self.sink(kind), self.config.sinks[self.sink(kind)], 1)

    def row(self, kind: str, of: Put) -> Mapping[str, JsonValue] | None:
        with closing(self.opened(kind).sink) as sink:
            key = {name: of.row[name] for name in of.table.key}
            return next((stored.row for stored in sink.rows(of.table, [key])), None)

    def open(self, kind: str) -> dict[str, DeadLetter]:
        """The open rejections of a sink, by the row's key."""
        dead_letters, _ = OpenRecords(self.config).read(self.sink(kind))
        return {dead_letter.key.decode(): dead_letter for dead_letter in dead_letters}

    def dead_letters(self, kind: str, generation: int = 1) -> DeadLetters:
        return DeadLetters(self.log.kafka.client(), self.name, sink=self.sink(kind), generation=generation)

    def rejected(self, put: Put, *, lsn: int | None = None, of: Table | None = None) -> RejectedEvent:
        """The event of a row as a job would reject it, of a transaction of this LSN, or of the next one."""
        at = self.log.lsn if lsn is None else lsn
        value = value_bytes(put.table, "u", put.row, lsn=at, seq=1)
        key = key_bytes(put.table, put.row)
        return RejectedEvent(
            Position(self.log.topic(of or put.table), 0, 10**6), key, value, f"0001{at:016x}00000001", "no room"
        )


@pytest.fixture(scope="module")
def running(endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Running]:
    running = Running(endpoints, tmp_path_factory.mktemp("rejections"), spark)
    with running.start():
        running.apply(neighbour("cache"), neighbour("warehouse"))
        yield running
    running.log.close()


@pytest.fixture
def command(running: Running, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `lockstep rejections ...`: exit code, standard output, messages."""

    def run(*words: str, config: Path | None = None) -> tuple[int, str, str]:
        capsys.readouterr()
        arguments = ["rejections", *words, "--config", str(config or running.path)]
        code = exit_code(arguments)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


Command = Callable[..., tuple[int, str, str]]


def assert_job_goes_on(running: Running, kind: str) -> None:
    after = neighbour(kind)
    running.apply(after)
    assert running.row(kind, after) == after.row
    assert running.job is not None
    assert not [seen for seen in running.job.reports if seen["report"] == "SinkFailed"]


@pytest.mark.parametrize("kind", _ONE_AT_EACH_CHANGE)
def test_a_row_that_a_store_cant_hold_is_kept_and_its_neighbours_are_applied(running: Running, kind: str) -> None:
    assert running.job is not None
    seen_before = len(running.job.reports)
    before, bad, after = neighbour(kind), poison(kind), neighbour(kind)
    running.apply(before, bad.bad, after)
    assert running.row(kind, before) == before.row
    assert running.row(kind, after) == after.row
    assert running.row(kind, bad.bad) is None
    dead_letter = running.open(kind)[bad.key]
    assert "very secret" not in dead_letter.reason
    # The transaction lies in several partitions, which may come in two batches, but not in more.
    reports = running.job.reports[seen_before:]
    batches = [
        report for report in reports if report["report"] == "BatchApplied" and report["sink"] == running.sink(kind)
    ]
    assert (sum(batch["applied"] for batch in batches), sum(batch["rejected"] for batch in batches)) == (2, 1)
    assert len(batches) <= 2
    assert_job_goes_on(running, kind)


@pytest.mark.soak
def test_they_are_listed_without_their_values(running: Running, command: Command) -> None:
    bad = [poison("search"), poison("search"), poison("cache")]
    running.apply(*(example.bad for example in bad))
    code, text, _ = command("list", "--json")
    assert code == 0
    assert "secret" not in text
    listing = json.loads(text)
    sinks = {
        (rejection["sink"], json.dumps(rejection["key"], separators=(",", ":"))) for rejection in listing["rejections"]
    }
    assert sinks >= {(running.sink("search"), example.key) for example in bad[:2]} | {
        (running.sink("cache"), bad[2].key)
    }
    assert {rejection["table"] for rejection in listing["rejections"]} <= {
        "public.orders",
        "public.labels",
        "public.extras",
    }

    code, text, _ = command("list", running.sink("search"), "--json", "--table", "public.orders", "--generation", "1")
    of_search = json.loads(text)
    assert {rejection["sink"] for rejection in of_search["rejections"]} == {running.sink("search")}
    [counted] = of_search["reasons"]
    assert counted["count"] == len(of_search["rejections"]) == len(running.open("search"))
    assert "note" in counted["reason"]
    for narrowed in (("--generation", "2"), ("--table", "public.labels")):
        _, text, _ = command("list", running.sink("search"), "--json", *narrowed)
        assert json.loads(text)["rejections"] == []

    code, text, _ = command("list")
    assert (code, "secret" in text) == (0, False)


@pytest.mark.soak
def test_one_is_shown_and_its_value_only_when_asked_for(running: Running, command: Command) -> None:
    bad = poison("cache")
    running.apply(bad.bad)
    dead_letter = running.open("cache")[bad.key]
    position = f"{dead_letter.position.partition}:{dead_letter.position.offset}"
    shown = [command("show", running.sink("cache"), text) for text in (bad.key, str(bad.bad.row["id"]), position)]
    assert shown == [shown[0]] * 3
    code, text, _ = shown[0]
    assert (code, "secret" in text) == (0, False)
    assert f"tag: {dead_letter.tag}\n" in text
    code, text, _ = command("show", running.sink("cache"), bad.key, "--value", "--json")
    assert code == 0
    assert json.loads(text)["value"]["after"] == bad.bad.row
    code, _, message = command("show", running.sink("cache"), '{"id":-1}')
    assert code == 1
    assert "no open rejection" in message


@pytest.mark.parametrize("kind", ["search", "cache"])
@pytest.mark.soak
def test_one_whose_row_is_mended_at_the_source_closes_by_itself(running: Running, kind: str) -> None:
    bad, gone = poison(kind), poison(kind)
    running.apply(bad.bad, gone.bad)
    assert {bad.key, gone.key} <= running.open(kind).keys()
    assert bad.good is not None
    running.apply(bad.good, Delete(ORDERS, {"id": gone.bad.row["id"]}))
    assert not {bad.key, gone.key} & running.open(kind).keys()
    assert running.row(kind, bad.good) == bad.good.row


def test_a_retry_takes_them_once_the_setting_is_mended(running: Running, command: Command) -> None:
    bad = poison("cache")
    running.apply(bad.bad)
    code, text, message = command("retry", running.sink("cache"), "--key", bad.key, "--json")
    assert code == 1
    assert "max_value_bytes" in json.loads(text)["refused"][0]["reason"]
    assert "secret" not in text + message
    assert bad.key in running.open("cache")

    mended = running.write_config("mended.toml", max_value_bytes=100_000)
    code, _, message = command("retry", running.sink("cache"), "--key", bad.key, config=mended)
    assert (code, "took 1" in message) == (0, True)
    assert running.row("cache", bad.bad) == bad.bad.row
    assert bad.key not in running.open("cache")
    assert_job_goes_on(running, "cache")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.soak
def test_an_older_event_doesnt_win_when_it_is_retried(running: Running, command: Command, kind: str) -> None:
    older_lsn = running.log.lsn
    running.apply(neighbour(kind))
    now, gone = neighbour(kind), neighbour(kind)
    running.apply(now, gone)
    running.apply(Delete(gone.table, {name: gone.row[name] for name in gone.table.key}))
    stale = [replace(event, row={**event.row, "note": "3"}) for event in (now, gone)]
    running.dead_letters(kind).publish([running.rejected(event, lsn=older_lsn) for event in stale], rejected_at_ms=1)
    keys = [key_bytes(event.table, event.row).decode() for event in stale]
    assert set(keys) <= running.open(kind).keys()
    code, _, message = command("retry", running.sink(kind), "--key", keys[0], "--key", keys[1])
    assert (code, "took 2" in message) == (0, True)
    assert not set(keys) & running.open(kind).keys()
    assert running.row(kind, now) == now.row
    assert running.row(kind, gone) is None
    assert_job_goes_on(running, kind)


def test_a_table_is_held_before_more_are_open_than_allowed(
    endpoints: Endpoints, tmp_path: Path, spark: SparkSession
) -> None:
    running = Running(endpoints, tmp_path, spark)
    strict = load(running.write_config("strict.toml", max_open_rejections=1))
    first, second, good = poison("cache"), poison("cache"), neighbour("cache")
    try:
        running.log.commit([first.bad])
        with running.start(strict, "cache", once=True) as job:
            assert job.finish() == 0
        running.log.commit([second.bad, good])
        with running.start(strict, "cache", once=True) as job:
            assert job.finish() == 1
            failure = job.wait_for("SinkFailed")["error"]
        assert "max_open_rejections allows, 2 of 1: 2 x the row's JSON has N bytes" in failure
        assert "lockstep rejections" in failure
        # Nothing of the batch counts as done, and nothing of it was stored.
        assert running.open("cache").keys() == {first.key}
        assert discard(strict, running.sink("cache"), Selection(), agreed=lambda _: True, say=lambda _: None) == 0
        assert f"`lockstep resume {running.sink('cache')} {ORDERS.name}`" in failure
        opened = running.opened("cache")
        with closing(opened.sink):
            give_order(opened.records, 1, [ORDERS.name], Wish.APPLY, now_ms=1)
        with running.start(strict, "cache", once=True) as job:
            assert job.finish() == 0
        assert running.open("cache").keys() == {second.key}
        assert running.row("cache", good) == good.row
    finally:
        running.log.close()


# What may be there, and must do no harm.


@pytest.fixture
def idle(endpoints: Endpoints, tmp_path: Path, spark: SparkSession) -> Iterator[Running]:
    """A log that no job reads."""
    running = Running(endpoints, tmp_path, spark)
    yield running
    running.log.close()


@pytest.mark.soak
def test_a_generation_that_is_dropped_takes_its_rejections_along(idle: Running) -> None:
    gone = idle.rejected(order("1"), of=table(name=TableName("public", "former")))
    idle.dead_letters("cache").publish([idle.rejected(order("1")), gone], rejected_at_ms=1)
    other = idle.rejected(order("1"))
    idle.dead_letters("cache", generation=2).publish([other], rejected_at_ms=1)
    idle.dead_letters("cache").close_generation()
    assert [dead_letter.generation for dead_letter in idle.open("cache").values()] == [2]
