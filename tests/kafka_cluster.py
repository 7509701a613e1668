"""Three brokers of Kafka on this machine, each also a controller, which are killed and started one by one."""

import os
import subprocess
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError

from stack import jars, java, process
from stack import ports as tcp
from stack.kafka import Kafka, new_id
from stack.process import ProcessId, Tail
from stack.server import Ports
from tests.services import KAFKA_OVERRIDES

NODES = (1, 2, 3)

_READY_S = 120

_SETTINGS = {
    **KAFKA_OVERRIDES,
    # Every record is on all brokers, and at least two of them acknowledge it.
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "6",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    # A broker that is back leads its partitions again, so that each kill hits leaders.
    "leader.imbalance.check.interval.seconds": "2",
    "leader.imbalance.per.broker.percentage": "0",
}

_ANSWER_MS = 30_000


class KafkaCluster:
    """The nodes ``NODES`` of one quorum. Leaving the ``with`` block kills what was started here."""

    def __init__(self, directory: Path, *, version: str) -> None:
        self._directory = directory
        self._version = version
        self._ports: dict[int, Ports] = {}
        self._running: dict[int, tuple[ProcessId, Tail]] = {}
        taken: set[int] = set()
        for node in NODES:
            self._ports[node] = Kafka().ports({}, taken)
            taken |= {*self._ports[node].values()}
        controllers = {node: f"{tcp.HOST}:{ports['controller']}" for node, ports in self._ports.items()}
        settings = {**_SETTINGS, "controller.quorum.bootstrap.servers": ",".join(controllers.values())}
        voters = ",".join(f"{node}@{address}:{new_id()}" for node, address in controllers.items())
        formatting = (f"--initial-controllers={voters}", f"--cluster-id={new_id()}")
        self._servers = {
            node: Kafka({**settings, "node.id": str(node)}, light=True, version=version, formatting=formatting)
            for node in NODES
        }

    @property
    def bootstrap(self) -> str:
        """All brokers, so that a client finds one whichever is down."""
        return ",".join(self._servers[node].address(self._ports[node]) for node in NODES)

    def __enter__(self) -> Self:
        try:
            with ThreadPoolExecutor(len(NODES)) as pool:
                list(pool.map(self._spawn, NODES))
            self._wait_complete(NODES)
        except BaseException:
            self._kill_all()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill_all()

    def kill(self, node: int) -> None:
        process.kill(self._running.pop(node)[0])

    def start(self, node: int) -> None:
        """Start a broker that was killed; returns when it has caught up with the others in all partitions."""
        self._spawn(node)
        self._wait_complete(NODES)

    def leader_of(self, topic: str, partition: int) -> int:
        """The node that leads a partition now, -1 for none. Raises KafkaException if no broker answers."""
        return int(self._metadata().topics[topic].partitions[partition].leader)

    def coordinator_of(self, transactional_id: str) -> int:
        """The node that decides on the transactions of this producer now."""
        with self._java_admin() as admin:
            return int(admin.transaction(transactional_id).coordinatorId())

    def view(self, topics: Collection[str]) -> str:
        """What the brokers know of all transactions, and of the producers that write to these topics.

        A partition whose transaction is open although its coordinator calls it complete has lost the marker:
        read-committed readers get no further there.
        """
        told = [f"nodes {sorted(self._running)} of {NODES} run"]
        try:
            found = self._metadata().topics
            with self._java_admin() as admin:
                told += admin.transactions()
                for partition in ((topic, number) for topic in topics for number in found[topic].partitions):
                    told.append("{}-{}: {}".format(*partition, admin.producers(*partition)))
        except (KafkaException, KeyError, Py4JError) as error:
            told.append(f"the brokers tell no more: {error}")
        told += [f"end of the log of node {node}:\n{tail.last(10)}" for node, (_, tail) in self._running.items()]
        return "\n".join(told)

    def is_open(self, topic: str, partition: int) -> bool:
        with self._java_admin() as admin:
            return any(
                producer.currentTransactionStartOffset().isPresent() for producer in admin.producers(topic, partition)
            )

    def _spawn(self, node: int) -> None:
        launch = self._servers[node].prepare(self._ports[node], self._directory / f"node{node}")
        started, tail = process.spawn(launch)
        assert started is not None, tail.last(20)
        self._running[node] = started, tail

    def _wait_complete(self, nodes: Collection[int]) -> None:
        """Wait until these brokers answer, and are in sync in all of their partitions."""
        deadline = time.monotonic() + _READY_S
        while not self._is_complete(nodes):
            for node, (running, tail) in self._running.items():
                assert process.is_alive(running), f"node {node} ended: {tail.last(40)}"
            assert time.monotonic() < deadline, f"not complete within {_READY_S} s\n{self.view(())}"
            time.sleep(0.2)

    def _is_complete(self, nodes: Collection[int]) -> bool:
        if not all(tcp.answers(self._ports[node]["main"]) for node in nodes):
            return False
        try:
            metadata = self._metadata()
        except KafkaException:
            return False
        partitions = [partition for topic in metadata.topics.values() for partition in topic.partitions.values()]
        return metadata.brokers.keys() >= set(nodes) and all(
            partition.leader in nodes and set(partition.isrs) == set(partition.replicas) for partition in partitions
        )

    def _metadata(self) -> ClusterMetadata:
        """From a new client each time: a kept one goes on with what it once knew."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(timeout=10)

    @contextmanager
    def _java_admin(self) -> Iterator["_JavaAdmin"]:
        (py4j,) = Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")
        port = launch_gateway(
            jarpath=str(py4j),
            classpath=os.pathsep.join(map(str, jars.jar_set(jars.kafka_set(self._version)))),
            java_path=str(java.for_kafka().executable),
            redirect_stderr=subprocess.DEVNULL,
            die_on_exit=True,
        )
        # With memory management, objects that Python collects would call the JVM over a connection that nobody closes.
        parameters = GatewayParameters(port=port, auto_convert=True, enable_memory_management=False)
        gateway = JavaGateway(gateway_parameters=parameters)
        try:
            yield _JavaAdmin(gateway.jvm, self.bootstrap)
        finally:
            gateway.shutdown()

    def _kill_all(self) -> None:
        process.kill(*(running for running, _ in self._running.values()))


class _JavaAdmin:
    """Kafka's own client for administration: librdkafka's can't ask about transactions. It raises Py4JError."""

    def __init__(self, jvm: Any, servers: str) -> None:
        self._jvm = jvm
        settings = {"bootstrap.servers": servers, "default.api.timeout.ms": str(_ANSWER_MS)}
        self._admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)

    def transaction(self, transactional_id: str) -> Any:
        return self._admin.describeTransactions([transactional_id]).description(transactional_id).get()

    def transactions(self) -> list[str]:
        names = [listed.transactionalId() for listed in self._admin.listTransactions().all().get()]
        return [f"{name}: {self.transaction(name)}" for name in names]

    def producers(self, topic: str, partition: int) -> Any:
        """The producers that a partition's leader knows, with the begin of their open transactions."""
        at = self._jvm.org.apache.kafka.common.TopicPartition(topic, partition)
        return self._admin.describeProducers([at]).partitionResult(at).get().activeProducers()
