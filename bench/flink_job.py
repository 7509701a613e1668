"""Flink SQL on the topics of a pipeline: one JVM with a cluster of one slot inside, driven as PyFlink drives it.

It reads the events with its own format `debezium-json`, which needs full before images. Its result goes to a compacted
topic by `upsert-kafka`. It needs only its own jars; nothing of it is in our environment.
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError

from bench.rig import Child, Rig, wait_until
from bench.timeline import JOIN, TOP, VIEW
from cdc.model.errors import LockstepError
from stack import jars, java

AT_LEAST_ONCE, EXACTLY_ONCE = "at-least-once", "exactly-once"

_HEAP_MB = 1024
_CHECKPOINT_MS = 1_000
_BUFFER_TIMEOUT_MS = 1
"""How long a row waits for others before each operator. The default of 100 would be most of the latency."""

_TRANSACTION_MS = 600_000
"""The connector's default of an hour is more than a broker allows."""

_COLUMNS: Mapping[str, str] = {
    "users": "id bigint, name string, primary key (id) not enforced",
    "follows": "follower_id bigint, followee_id bigint, primary key (follower_id, followee_id) not enforced",
    "tweets": ("id bigint, user_id bigint, body string, created_at timestamp_ltz(6), primary key (id) not enforced"),
}
_RESULT = (
    "follower_id bigint, tweet_id bigint, name string, body string, created_at timestamp_ltz(6),"
    " primary key (follower_id, tweet_id) not enforced"
)

# As Flink's own start script opens them.
_OPENED = (
    *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "net", "io", "nio", "text", "time")),
    "--add-opens=java.base/java.lang.reflect=ALL-UNNAMED",
    *(f"--add-opens=java.base/java.util{package}=ALL-UNNAMED" for package in ("", ".concurrent")),
    *(f"--add-opens=java.base/java.util.concurrent.{package}=ALL-UNNAMED" for package in ("atomic", "locks")),
)
_LOGGING = """rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%p %m (%c)%n
"""
_ALIVE = ("CREATED", "INITIALIZING", "RUNNING")
_LISTENS = re.compile(r"\A(?P<port>\d+)\r?\n(?P<token>\S+)\r?\n")


def configuration(checkpoints: Path) -> dict[str, str]:
    """Flink's settings: quick checkpoints, low latency, state on disk like ours. Pure."""
    return {
        "parallelism.default": "1",
        "taskmanager.numberOfTaskSlots": "1",
        "taskmanager.memory.managed.size": "256m",
        "execution.checkpointing.interval": f"{_CHECKPOINT_MS} ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": checkpoints.as_uri(),
        "execution.checkpointing.incremental": "true",
        "state.backend.type": "rocksdb",
        "execution.buffer-timeout.interval": f"{_BUFFER_TIMEOUT_MS} ms",
        "table.exec.mini-batch.enabled": "false",
        "table.local-time-zone": "UTC",
    }


def source_table(table: str, *, topic: str, servers: str) -> str:
    """The statement that creates a table of a topic's events. Pure."""
    return f"create table {table} ({_COLUMNS[table]}) with (" + _options(
        {
            "connector": "kafka",
            "topic": topic,
            "properties.bootstrap.servers": servers,
            "properties.isolation.level": "read_committed",
            "scan.startup.mode": "earliest-offset",
            "format": "debezium-json",
            "debezium-json.timestamp-format.standard": "ISO-8601",
        }
    )


def result_table(*, topic: str, servers: str, guarantee: str) -> str:
    """The statement that creates the result's table over its topic. Pure."""
    options = {
        "connector": "upsert-kafka",
        "topic": topic,
        "properties.bootstrap.servers": servers,
        "key.format": "json",
        "value.format": "json",
        "value.json.timestamp-format.standard": "ISO-8601",
        "sink.delivery-guarantee": guarantee,
    }
    if guarantee == EXACTLY_ONCE:
        options |= {
            "sink.transactional-id-prefix": topic,
            "properties.transaction.timeout.ms": str(_TRANSACTION_MS),
        }
    return f"create table {VIEW} ({_RESULT}) with (" + _options(options)


def query() -> str:
    """The view's query, with the first rows of each key as Flink writes it. Pure."""
    joined = JOIN.format(users="users", follows="follows", tweets="tweets")
    return (
        f"insert into {VIEW} select follower_id, tweet_id, name, body, created_at from (select *,"
        " row_number() over (partition by follower_id order by created_at desc, tweet_id) as place"
        f" from ({joined})) where place <= {TOP}"
    )


def _options(options: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in options.items()) + ")"


class FlinkJob:
    """One JVM. ``prepare`` makes the tables, ``run`` begins to read."""

    def __init__(self, rig: Rig, *, name: str) -> None:
        """Starts the JVM. Raises StackError without its jars, LockstepError when it ends at once."""
        directory = rig.directory / f"flink-{name}"
        directory.mkdir()
        self._checkpoints = directory / "checkpoints"
        log_settings = directory / "log4j2.properties"
        log_settings.write_text(_LOGGING, encoding="utf-8")
        class_path = [*jars.jar_set("flink"), _py4j_jar()]
        command = [
            str(java.for_kafka().executable),
            *("-Xms256m", f"-Xmx{_HEAP_MB}m", "-XX:+UseG1GC", f"-Dlog4j2.configurationFile={log_settings}"),
            f"-Djava.io.tmpdir={directory}",
            *_OPENED,
            *("-cp", os.pathsep.join(map(str, class_path))),
            *("py4j.GatewayServer", "--enable-auth", "0"),
        ]
        # It would log, with a traceback, errors that are raised here anyway.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        self._rig = rig
        self.child: Child = rig.start_command("flink", command)
        self._gateway: Any = None
        self._tables: Any = None
        self._result: Any = None

    def prepare(self, topics: Mapping[str, str], *, servers: str, result_topic: str, guarantee: str) -> None:
        """Make the tables. Raises LockstepError at the time-out, or when the JVM has ended."""

        def listens() -> bool:
            self.child.check()
            return _LISTENS.match(self.child.tail.text()) is not None

        wait_until(listens, what="Flink's JVM listens")
        match = _LISTENS.match(self.child.tail.text())
        assert match is not None
        with _answers(self.child):
            self._make_tables(match, topics, servers=servers, result_topic=result_topic, guarantee=guarantee)

    def _make_tables(
        self, match: re.Match[str], topics: Mapping[str, str], *, servers: str, result_topic: str, guarantee: str
    ) -> None:
        parameters = GatewayParameters(port=int(match["port"]), auth_token=match["token"], auto_convert=True)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        flink = self._gateway.jvm.org.apache.flink
        settings = flink.configuration.Configuration.fromMap(configuration(self._checkpoints))
        environment = flink.table.api.EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(settings)
        self._tables = flink.table.api.TableEnvironment.create(environment.build())
        for table, topic in topics.items():
            self._tables.executeSql(source_table(table, topic=topic, servers=servers))
        self._tables.executeSql(result_table(topic=result_topic, servers=servers, guarantee=guarantee))

    def run(self) -> None:
        """Plan the query, start the cluster, and begin to read from the beginning of the topics."""
        with _answers(self.child):
            self._result = self._tables.executeSql(query())

    def is_running(self) -> bool:
        """Raises as ``check`` does."""
        return self._status() == "RUNNING"

    def check(self) -> None:
        self._status()

    def _status(self) -> str:
        self.child.check()
        with _answers(self.child):
            status = str(self._result.getJobClient().get().getJobStatus().get().name())
        if status not in _ALIVE:
            raise LockstepError(f"Flink's job is {status}; the end of its log:\n{self.child.tail.last(25)}")
        return status

    def stop(self) -> None:
        self._tables = self._result = None
        if self._gateway is not None:
            # Before the JVM: objects that are collected later would look for it.
            with suppress(Py4JError):
                self._gateway.shutdown()
        self._rig.stop(self.child)


@contextmanager
def _answers(child: Child) -> Iterator[None]:
    """Raise LockstepError with the end of the log if Flink refuses something, or is gone."""
    try:
        yield
    except Py4JError as error:
        raise LockstepError(f"Flink failed: {error}; the end of its log:\n{child.tail.last(25)}") from error


def _py4j_jar() -> Path:
    """The Java side of py4j, which PySpark contains. Raises LockstepError when it is missing."""
    spark = find_spec("pyspark")
    found = [] if spark is None or spark.origin is None else list(Path(spark.origin).parent.glob("jars/py4j-*.jar"))
    if not found:
        raise LockstepError("PySpark has no jar of py4j; run make setup")
    return found[0]
