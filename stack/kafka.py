"""Kafka in one process: broker and controller (KRaft) together, alone or with others."""

import base64
import os
import subprocess
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from signal import SIGTERM

from stack import java, versions
from stack import ports as tcp
from stack.errors import StackError
from stack.process import Launch, Tail
from stack.server import Ports

HEAP_MB = 512

# What Compose's broker gets as well.
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    # We create topics with explicit settings: a typing error must not become a topic without compaction.
    "auto.create.topics.enable": "false",
    # One node holds every copy there is.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # The default of 128 MB would come out of a small heap.
    "log.cleaner.dedupe.buffer.size": "16777216",
    "log.cleaner.threads": "1",
    "num.network.threads": "2",
    "num.io.threads": "4",
}

_LOGGING = """\
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
"""


class Kafka:
    name = "kafka"
    stop_signal = SIGTERM

    def __init__(
        self,
        overrides: Mapping[str, str] | None = None,
        *,
        light: bool = False,
        version: str = versions.KAFKA,
        formatting: Sequence[str] = ("--standalone",),
    ) -> None:
        """`overrides` are broker settings that win over ours. For `light` see `Java.options`.

        For tests: another `version`, fetched when it is first started; and `formatting`, the storage tool's options for
        a quorum of several nodes and its `--cluster-id`.
        """
        self.version = version
        self._light = light
        self._overrides = dict(overrides or {})
        self._formatting = formatting

    def ports(self, kept: Ports, taken: Collection[int]) -> dict[str, int]:
        main = tcp.pick(kept.get("main"), taken=taken)
        return {"main": main, "controller": tcp.pick(kept.get("controller"), taken={*taken, main})}

    def prepare(self, ports: Ports, directory: Path) -> Launch:
        """Also formats the storage, which Kafka never does by itself."""
        home = directory / f"kafka-{self.version}"
        home.mkdir(parents=True, exist_ok=True)
        logging, properties, data = home / "log4j2.properties", home / "server.properties", home / "data"
        logging.write_text(_LOGGING, encoding="utf-8")
        settings = self._settings(ports, data)
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        from stack import jars

        chosen_java = java.for_kafka()
        classes = [
            f"-Dlog4j2.configurationFile={logging}",
            *("-cp", os.pathsep.join(map(str, jars.jar_set(jars.kafka_set(self.version))))),
        ]
        if not (data / "meta.properties").exists():
            quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
            tool = [str(chosen_java.executable), *quick, *classes, "kafka.tools.StorageTool", "format"]
            _format(tool, properties, self._formatting)
        options = chosen_java.options(heap_mb=HEAP_MB, light=self._light, archive=f"kafka-{self.version}")
        return Launch(
            command=[str(chosen_java.executable), *options, *classes, "kafka.Kafka", str(properties)],
            environment=dict(os.environ),
            directory=home,
            log=directory / "logs" / "kafka.log",
        )

    def is_ready(self, ports: Ports, tail: Tail) -> bool:
        """Checks the port first: a client without a server reports every attempt."""
        if not tcp.answers(ports["main"]):
            return False
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            client = AdminClient({"bootstrap.servers": self.address(ports), "log_level": 0})
            return bool(client.list_topics(timeout=5).brokers)
        except KafkaException:
            return False

    def actual_ports(self, ports: Ports, tail: Tail) -> dict[str, int]:
        return dict(ports)

    def address(self, ports: Ports) -> str:
        return f"{tcp.HOST}:{ports['main']}"

    def _settings(self, ports: Ports, data: Path) -> dict[str, str]:
        listeners = f"PLAINTEXT://{tcp.HOST}:{ports['main']},CONTROLLER://{tcp.HOST}:{ports['controller']}"
        return {
            **SETTINGS,
            "listeners": listeners,
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller.quorum.bootstrap.servers": f"{tcp.HOST}:{ports['controller']}",
            "log.dirs": str(data),
            **self._overrides,
        }


def new_id() -> str:
    """An identifier of a cluster or directory, in Kafka's form.

    One of 64 begins with a dash, so an option and its identifier must be one word, joined by `=`.
    """
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _format(command: list[str], properties: Path, formatting: Sequence[str]) -> None:
    arguments = [*formatting, "--ignore-formatted", f"--config={properties}"]
    if not any(argument.startswith("--cluster-id=") for argument in formatting):
        arguments.append(f"--cluster-id={new_id()}")
    done = subprocess.run([*command, *arguments], check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise StackError(f"kafka's storage can't be formatted:\n{(done.stdout + done.stderr).strip()}")
