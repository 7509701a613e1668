"""Clusters of Kafka and of Spark, and a capture with its standby: whichever process is killed, no row is lost.

This takes twelve minutes for each version of Kafka: twelve processes are killed, one after the other, and each is
started again. If two cores run all of them, every start and every election takes seconds, and a sink's request to a
dead broker is given up after a minute.
"""

import itertools
import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition

from cdc.capture.questions import Event
from cdc.model.table import TableName
from lockstep.package import package
from stack import process, versions
from stack.stack import Endpoints
from tests.docs.generated import DOCS
from tests.docs.pages import blocks
from tests.kafka_cluster import NODES, KafkaCluster
from tests.pipeline import Pipeline, Process, traffic, wait_until
from tests.spark_cluster import SparkCluster
from tests.topics import event_of

pytestmark = [pytest.mark.live, pytest.mark.crash, pytest.mark.busy, pytest.mark.soak]

_numbers = itertools.count(1)

_WORKERS = 3
_PATIENCE_S = 300.0

_VERSIONS = (versions.KAFKA, versions.KAFKA_NEWEST)
"""The stack's version, and the newest."""


@pytest.fixture
def kafka(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path / "kafka", version=request.param) as cluster:
        yield cluster


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[SparkCluster]:
    directory = tmp_path / "spark"
    directory.mkdir()
    with SparkCluster(directory, workers=_WORKERS) as cluster:
        yield cluster


@pytest.fixture
def pipeline(endpoints: Endpoints, kafka: KafkaCluster, workers: SparkCluster, tmp_path: Path) -> Iterator[Pipeline]:
    conf = {
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executorEnv.PYTHONPATH": sysconfig.get_path("purelib"),
        "spark.pyspark.python": str(workers.python),
    }
    settings = {
        "master": f'"{workers.master}"',
        "package": f'"{package(tmp_path / "code.zip")}"',
        # Every batch has a task per partition, so that all workers take part in each.
        "small_batch_rows": "0",
        "conf": "{ " + ", ".join(f'"{name}" = "{value}"' for name, value in conf.items()) + " }",
    }
    made = Pipeline(
        replace(endpoints, kafka_bootstrap=kafka.bootstrap),
        tmp_path,
        f"cluster{os.getpid()}_{next(_numbers)}",
        sinks=True,
        replicas=3,
        more={"spark": "\n".join(f"{name} = {value}" for name, value in settings.items())},
    )
    yield made
    made.close()


class Captures:
    """A capture and its standby. The brokers decide which one is at work, and that may change at any time."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.processes: list[Process] = []

    def start(self) -> Process:
        """Start one that stands by while another is at work."""
        started = self._pipeline.start("lockstep", "capture", "--standby", "--config", str(self._pipeline.path))
        self.processes.append(started)
        return started

    def at_work(self) -> Process | None:
        """The one that reads the slot now, by the port that it reads through."""
        with self._pipeline.sql() as connection:
            row = connection.execute(
                "select client_port from pg_stat_activity join pg_replication_slots on pid = active_pid"
                " where slot_name = %s",
                (self._pipeline.config.slot,),
            ).fetchone()
        if row is None:
            return None
        return next((running for running in self.processes if row[0] in _ports(running)), None)

    def lose_the_one_at_work(self) -> None:
        """kill -9. The other one takes over, and a new one stands by."""
        wait_until(lambda: self.at_work() is not None, what="a capture is at work")
        lost = self.at_work()
        assert lost is not None
        lost.kill()
        self._pipeline.wait_ended(lost)
        self.processes.remove(lost)
        wait_until(lambda: self.at_work() in self.processes, what="the standby takes over", timeout_s=_PATIENCE_S)
        started = self.start()
        wait_until(lambda: "standing by" in started.output(), what="a new standby", timeout_s=_PATIENCE_S)


def _ports(running: Process) -> set[int]:
    return {
        connection.laddr.port for connection in psutil.Process(running.pid).net_connections("tcp") if connection.laddr
    }


class Deployment:
    """All processes of the pipeline. Each ``lose_...`` kills one, sees the others go on, and starts it again. ``turn``
    chooses among several, so that the second turn loses another one than the first."""

    def __init__(self, pipeline: Pipeline, kafka: KafkaCluster, workers: SparkCluster, captures: Captures) -> None:
        self._pipeline = pipeline
        self._kafka = kafka
        self._workers = workers
        self._captures = captures
        self.driver = pipeline.start_apply()

    def lose_leader(self, turn: int) -> None:
        topic = self._pipeline.config.topics()[TableName(self._pipeline.name, ("account", "entry")[turn])]
        self._lose_broker(self._kafka.leader_of(topic, 0))

    def lose_coordinator(self, _: int) -> None:
        self._lose_broker(self._kafka.coordinator_of(f"{self._pipeline.name}.{self._pipeline.config.slot}"))

    def _lose_broker(self, node: int) -> None:
        self._kafka.kill(node)
        self.wait_applied()
        self._kafka.start(node)

    def lose_worker(self, turn: int) -> None:
        self._workers.kill_worker(turn)
        self.wait_applied()
        self._workers.start_worker(turn)
        self._wait_executors()

    def lose_executor(self, turn: int) -> None:
        process.kill(*self._workers.executors(self._workers.workers[turn]))
        self.wait_applied()
        self._wait_executors()

    def lose_driver(self, _: int) -> None:
        os.killpg(self.driver.pid, signal.SIGKILL)  # with its JVM
        self._pipeline.wait_ended(self.driver)
        self.driver = self._pipeline.start_apply()
        self.wait_applied()
        self._wait_executors()

    def lose_capture(self, _: int) -> None:
        self._captures.lose_the_one_at_work()
        self.wait_applied()

    def wait_applied(self) -> None:
        """Wait until everything committed now is published, and every sink has it."""
        self._pipeline.wait_published(*self._captures.processes, timeout_s=_PATIENCE_S)
        self._pipeline.wait_applied(self.driver, timeout_s=_PATIENCE_S)

    def stop(self) -> None:
        """Stop all of our own processes in order."""
        for running in (self.driver, *self._captures.processes):
            running.terminate()
            assert self._pipeline.wait_ended(running) == 0, running.output()

    @contextmanager
    def explaining(self, what: str) -> Iterator[None]:
        """A failure of this block reports what happened then, and how far everybody is; the output, its duration."""
        began = time.monotonic()
        try:
            yield
            print(f"{what}: {time.monotonic() - began:.0f} s")
        except Exception as error:
            error.add_note(f"while {what}")
            error.add_note(self._kafka.view(self._pipeline.config.topics().values()))
            for running in (*self._captures.processes, self.driver):
                error.add_note(f"{running.log.name}: {running.poll()} {running.output()[-2000:]}")
            raise

    def _wait_executors(self) -> None:
        wait_until(
            lambda: all(map(self._workers.executors, self._workers.workers)),
            what="each worker has an executor",
            timeout_s=_PATIENCE_S,
        )


class Follower(threading.Thread):
    """A read-committed reader that is there all the time, like a sink. What it has seen may not change."""

    def __init__(self, client: Mapping[str, str | int], partitions: Collection[tuple[str, int]]) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {
                **client,
                "group.id": "follower",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                # An offset that a broker no longer knows would be a loss.
                "auto.offset.reset": "error",
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in partitions])
        self._finished = threading.Event()
        self.events: dict[tuple[str, int], list[Event]] = {at: [] for at in partitions}
        self.problems: list[str] = []

    def run(self) -> None:
        while not self._finished.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is not None:
                self.problems.append(str(message.error()))
            elif message is not None:
                self.events[message.topic(), message.partition()].append(event_of(message))
        self._consumer.close()

    def finish(self) -> None:
        self._finished.set()
        self.join(_PATIENCE_S)
        assert not self.is_alive(), "the reader doesn't end"

    def wait_seen(self, counts: Mapping[tuple[str, int], int]) -> None:
        """Wait until it has seen this many events of each partition."""
        deadline = time.monotonic() + _PATIENCE_S
        while missing := {
            at: f"{len(self.events[at])} of {count}" for at, count in counts.items() if len(self.events[at]) < count
        }:
            assert time.monotonic() < deadline, f"a reader that was there all the time was shown only {missing}"
            time.sleep(0.1)


@contextmanager
def following(pipeline: Pipeline) -> Iterator[Follower]:
    topics = pipeline.config.topics().values()
    partitions = range(pipeline.config.kafka.topics.partitions)
    follower = Follower(pipeline.client, [*itertools.product(topics, partitions)])
    follower.start()
    try:
        yield follower
    finally:
        follower.finish()


_STORY: tuple[tuple[str, Callable[[Deployment, int], None]], ...] = (
    ("the leader of a partition is lost", Deployment.lose_leader),
    ("the coordinator of the transactions is lost", Deployment.lose_coordinator),
    ("a worker is lost", Deployment.lose_worker),
    ("an executor is lost", Deployment.lose_executor),
    ("the driver is lost", Deployment.lose_driver),
    ("the capture at work is lost", Deployment.lose_capture),
)
_TURNS = 2


@pytest.mark.parametrize("kafka", _VERSIONS, indirect=True)
def test_each_process_is_killed_twice_and_no_row_is_lost_doubled_or_out_of_order(
    pipeline: Pipeline, kafka: KafkaCluster, workers: SparkCluster
) -> None:
    captures = Captures(pipeline)
    pipeline.wait_streaming(captures.start())
    pipeline.make_oracle()
    captures.start()
    running = Deployment(pipeline, kafka, workers, captures)
    with following(pipeline) as follower:
        with traffic(pipeline, pause_s=0.05):
            with running.explaining("all processes start"):
                running.wait_applied()
            for turn, (what, lose) in itertools.product(range(_TURNS), _STORY):
                with running.explaining(f"{what}, turn {turn}"):
                    lose(running, turn)
        with running.explaining("the last rows are applied, and all processes stop"):
            running.wait_applied()
            running.stop()
            pipeline.assert_published_exactly_once()
            published = pipeline.published(snapshot=True)
            follower.wait_seen({at: len(events) for at, events in published.items()})
    assert follower.problems == []
    assert follower.events == published
    pipeline.assert_sinks_equal()


class TransactionLost(Exception):
    """The broker's defect itself: nobody sees what it called committed, and its partition still waits."""


@pytest.mark.parametrize(
    "kafka",
    [
        versions.KAFKA,
        pytest.param(
            versions.KAFKA_NEWEST,
            marks=pytest.mark.xfail(raises=TransactionLost, reason="KAFKA-20734: docs/kafka-marker-loss.md"),
        ),
    ],
    indirect=True,
)
def test_a_committed_transaction_ends_though_its_partition_had_no_leader(kafka: KafkaCluster) -> None:
    """With the program that docs/kafka-marker-loss.md prints, and what the page says of either kind of broker."""
    (program,) = blocks(DOCS / "kafka-marker-loss.md", "python")
    node = NODES[-1]
    with Prompted(program, kafka.bootstrap, str(node)) as running:
        topic = running.until_prompt().split()[1]  # after the word "topic"
        kafka.kill(node)
        running.enter()
        running.until_prompt()
        kafka.start(node)
        waits, view = kafka.is_open(topic, 0), kafka.view([topic])
        running.enter()
        told = running.until_end()
    if waits and told == _told([]):
        raise TransactionLost(view)
    assert told == _told(["first"])


def _told(values: list[str]) -> list[str]:
    return [f"committed: {values}", f"committed, after another transaction was aborted: {values}"]


class Prompted:
    """A program that asks for Enter. It is killed if it takes too long, which also ends reading from it."""

    def __init__(self, program: str, *arguments: str) -> None:
        self._running = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._guard = threading.Timer(_PATIENCE_S, self._running.kill)

    def __enter__(self) -> Self:
        self._guard.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.cancel()
        self._running.kill()
        self._running.communicate()

    def until_prompt(self) -> str:
        """What it writes until it asks. Prompts don't end their lines."""
        told = ""
        while not told.endswith("then press Enter"):
            letter = self._running.stdout.read(1)
            assert letter, f"it ended, or didn't ask within {_PATIENCE_S:.0f} s: {told}"
            told += letter
        return told

    def enter(self) -> None:
        self._running.stdin.write("\n")
        self._running.stdin.flush()

    def until_end(self) -> list[str]:
        told = self._running.stdout.read()
        assert self._running.wait() == 0, f"it failed, or didn't end within {_PATIENCE_S:.0f} s: {told}"
        return told.strip().splitlines()
