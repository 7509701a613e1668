"""Debezium in Kafka Connect, with capture's part of the phases `drain` and `latency`: same rows, same servers.

It publishes at least once: a restart may repeat events. It has its own slot, and a topic with as many partitions as
ours. It is left out if its jars can't be fetched.
"""

import os
import time
from pathlib import Path
from typing import Any

import orjson
import psycopg
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg.conninfo import conninfo_to_dict

from bench.drain import Step, first_event_at, rates
from bench.figures import Figure
from bench.latency import PERCENTS, Watcher, broker_figure, commit_steadily, percentiles_ms, wait_for_all
from bench.rig import Child, Pipeline, Rig, Say, wait_until
from bench.sizes import Sizes
from bench.usage import CpuMeter
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import LockstepError
from cdc.postgres.slot import find_slot
from stack import jars, java, ports
from stack.errors import StackError

PHASE = "Debezium"

_HEAP_MB = 2048
_ROWS_PER_S_MIN = 1_000
_EVERY_S = 0.05
_POLL_MS = 10
"""How long it sleeps without events. Its default of 500 would be most of the latency."""


class Connect:
    """One worker of Kafka Connect with one connector, which continues where the former one stopped."""

    def __init__(self, rig: Rig, pipeline: Pipeline) -> None:
        """Makes publication, topic and configuration. Starts nothing. Raises StackError without its jars."""
        self._rig = rig
        self._pipeline = pipeline
        self._slot = f"{pipeline.config.slot}_debezium"
        worker, connector = (pipeline.directory / f"{pipeline.name}-{file}" for file in ("worker", "connector.json"))
        worker.write_text(_worker(pipeline), encoding="utf-8")
        connector.touch(mode=0o600)  # it holds the password
        connector.write_bytes(orjson.dumps({"name": pipeline.name, "config": _connector(pipeline, self._slot)}))
        logging = pipeline.directory / f"{pipeline.name}-log4j2.properties"
        logging.write_text(
            "rootLogger.level=WARN\nrootLogger.appenderRef.console.ref=console\n"
            "appender.console.type=Console\nappender.console.name=console\n"
            "appender.console.layout.type=PatternLayout\nappender.console.layout.pattern=%p %m (%c)%n\n",
            encoding="utf-8",
        )
        self._command = [
            str(java.for_kafka().executable),
            *("-Xms256m", f"-Xmx{_HEAP_MB}m", "-XX:+UseG1GC", f"-Dlog4j2.configurationFile={logging}"),
            *("-cp", os.pathsep.join(map(str, jars.jar_set("debezium")))),
            "org.apache.kafka.connect.cli.ConnectStandalone",
            *(str(worker), str(connector)),
        ]
        with pipeline.sql() as connection:
            connection.execute(
                f"create publication {pipeline.config.publication} for table {pipeline.table.name}".encode()
            )
        topic = NewTopic(pipeline.topic, pipeline.config.kafka.topics.partitions, 1)
        admin = AdminClient(dict(pipeline.client))
        admin.create_topics([topic], operation_timeout=10)[pipeline.topic].result(10)

    def start(self) -> Child:
        return self._rig.start_command("debezium", self._command)

    def wait_streaming(self, child: Child) -> None:
        """Wait until it reads its slot. Raises LockstepError at the time-out, or when it has ended."""

        def streaming() -> bool:
            child.check()
            with self._pipeline.sql() as connection:
                slot = find_slot(connection, self._slot)
            return slot is not None and slot.active_pid is not None

        wait_until(streaming, what="Debezium streams", every_s=0.2)

    def wait_events(self, child: Child, *, before: int, rows: int) -> list[Step]:
        """Wait until the topic has this many more events. Raises LockstepError when that takes too long."""
        return wait_events(self._pipeline, child, before=before, rows=rows)


def wait_events(pipeline: Pipeline, child: Child, *, before: int, rows: int) -> list[Step]:
    """Wait until a pipeline's topic has this many records more than ``before``. Returns how many there were when.

    Records of uncommitted transactions count, and so do the markers of committed ones. Raises LockstepError when that
    takes too long, or when the publishing process has ended.
    """
    steps: list[Step] = []
    cluster, topic = TopicAdmin(pipeline.client), pipeline.topic
    partitions = [(topic, partition) for partition in range(pipeline.config.kafka.topics.partitions)]

    def arrived() -> bool:
        child.check()
        steps.append(Step(time.time(), sum(cluster.end_offsets(partitions).values()) - before))
        return steps[-1].events >= rows

    timeout_s = 120 + rows / _ROWS_PER_S_MIN
    what = f"{child.name} published {rows:,} rows"
    wait_until(arrived, what=what, timeout_s=timeout_s, every_s=_EVERY_S)
    return [step for step in steps if step.events]


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Drain a backlog, then follow single transactions. Returns nothing without its jars. Raises LockstepError."""
    try:
        jars.fetch(["debezium"])
    except StackError as error:
        say(f"Debezium isn't measured: {error}")
        return [], {"left_out": str(error)}
    with rig.pipeline("debezium") as pipeline, pipeline.sql() as connection:
        connect = Connect(rig, pipeline)
        child = connect.start()
        connect.wait_streaming(child)
        # It stores its position once it has published something.
        pipeline.insert(connection, -1)
        connect.wait_events(child, before=0, rows=1)
        rig.stop(child)
        drained, drain_details = _drain(rig, pipeline, connect, connection, sizes, say)
        followed, latency_details = _follow(rig, pipeline, connect, connection, sizes, say)
    return drained + followed, {"drain": drain_details, "latency": latency_details}


def _drain(
    rig: Rig, pipeline: Pipeline, connect: Connect, connection: psycopg.Connection[Any], sizes: Sizes, say: Say
) -> tuple[list[Figure], dict[str, Any]]:
    rows = sizes.drain_rows
    pipeline.load(connection, first=0, rows=rows, per_transaction=sizes.drain_transaction_rows)
    connection.execute("checkpoint")
    say(f"backlog of {rows:,} rows written")
    base = pipeline.end_offsets()
    servers = CpuMeter(rig.server_pids)
    child = connect.start()
    own = CpuMeter({"debezium": child.process.pid})
    steps = connect.wait_events(child, before=sum(base.values()), rows=rows)
    used = own.used() | servers.used()
    rig.stop(child)
    consumer = Consumer({**pipeline.client, "group.id": "bench", "enable.auto.commit": False})
    try:
        first_event = first_event_at(consumer, pipeline.topic, base)
    finally:
        consumer.close()
    rate = rates(started=child.started, first_event=first_event, steps=steps, rows=rows)
    say(f"Debezium: {rate.from_first_event:,.0f} rows/s, {child.memory.megabytes:.0f} MB")
    figures = [
        Figure(phase=PHASE, name="rows per second", value=rate.from_first_event, unit="rows/s"),
        Figure(phase=PHASE, name="... second half", value=rate.second_half, unit="rows/s"),
        Figure(phase=PHASE, name="... from process start", value=rate.from_process_start, unit="rows/s"),
        Figure(phase=PHASE, name="processor time", value=1e6 * used["debezium"] / rows, unit="us/row"),
        Figure(phase=PHASE, name="peak memory", value=child.memory.megabytes, unit="MB"),
    ]
    return figures, {"rows": rows, "cpu_s": used, "seconds_to_first_event": round(first_event - child.started, 3)}


def _follow(
    rig: Rig, pipeline: Pipeline, connect: Connect, connection: psycopg.Connection[Any], sizes: Sizes, say: Say
) -> tuple[list[Figure], dict[str, Any]]:
    child = connect.start()
    connect.wait_streaming(child)
    watcher = Watcher(pipeline.client, pipeline.topic)
    watcher.start()
    try:
        first = sizes.drain_rows
        say(f"warm-up: {sizes.latency_warm_s:.0f} s at {sizes.latency_rate} transactions/s")
        warm = commit_steadily(pipeline, connection, first=first, rate=sizes.latency_rate, seconds=sizes.latency_warm_s)
        wait_for_all(warm, watcher.seen)  # otherwise the start's backlog would be measured
        say(f"measuring: {sizes.latency_s:.0f} s")
        cpu = CpuMeter(rig.server_pids | {"debezium": child.process.pid})
        began = time.time()
        sent = commit_steadily(
            pipeline, connection, first=first + len(warm), rate=sizes.latency_rate, seconds=sizes.latency_s
        )
        took_s = time.time() - began
        used = cpu.used()
        wait_for_all(sent, watcher.seen)
    finally:
        watcher.finish()
    child.check()
    rig.stop(child)
    milliseconds = percentiles_ms([watcher.seen[row] - returned_at for row, (_, returned_at) in sent.items()])
    say(f"Debezium: p50 {milliseconds['p50']:.1f} ms, p99 {milliseconds['p99']:.1f} ms")
    figures = [
        Figure(phase=PHASE, name=f"commit to consumer, p{percent:g}", value=milliseconds[f"p{percent:g}"], unit="ms")
        for percent in PERCENTS
    ]
    figures.append(broker_figure(PHASE, used["kafka"], took_s))
    return figures, {"rate": sizes.latency_rate, "commit_to_consumer_ms": milliseconds, "cpu_s": used}


def _worker(pipeline: Pipeline) -> str:
    settings = {
        "bootstrap.servers": pipeline.endpoints.kafka_bootstrap,
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "offset.storage.file.filename": str(pipeline.directory / f"{pipeline.name}.offsets"),
        "offset.flush.interval.ms": "1000",
        "listeners": f"http://{ports.HOST}:{ports.pick()}",
        "producer.linger.ms": "5",
        "producer.batch.size": "262144",
        "producer.compression.type": "lz4",
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _connector(pipeline: Pipeline, slot: str) -> dict[str, str]:
    source = conninfo_to_dict(pipeline.endpoints.source_dsn)
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": str(source["host"]),
        "database.port": str(source["port"]),
        "database.user": str(source["user"]),
        "database.password": password_of(Path(str(source["passfile"]))),
        "database.dbname": str(source["dbname"]),
        "topic.prefix": pipeline.name,
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "publication.name": pipeline.config.publication,
        "publication.autocreate.mode": "disabled",
        "table.include.list": f"{pipeline.table.schema}.{pipeline.table.name}",
        "snapshot.mode": "initial",
        "decimal.handling.mode": "string",
        "max.batch.size": "8192",
        "max.queue.size": "32768",
        "poll.interval.ms": str(_POLL_MS),
    }


def password_of(passfile: Path) -> str:
    """The password in a stack's file of one line. Raises LockstepError when it isn't such a file."""
    fields = passfile.read_text(encoding="utf-8").strip().split(":")
    if len(fields) != 5:
        raise LockstepError(f"{passfile} isn't the password file of a stack")
    return fields[-1]
