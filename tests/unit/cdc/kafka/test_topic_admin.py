"""What is asked of brokers that are changing places: nobody waits long without being told."""

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.model.errors import Unavailable


class _Cluster:
    """Brokers that have changed places. A client that has once asked in vain is refused for ever."""

    def __init__(self, *, clients_in_vain: int) -> None:
        self.clients = 0
        self.connected = 0
        self._in_vain = clients_in_vain

    def new_client(self, _: object) -> Any:
        self.clients += 1
        number = self.clients
        return SimpleNamespace(
            list_offsets=lambda specs, **_: self._offsets(specs, number), describe_topics=self._describe_topics
        )

    def _describe_topics(self, _: object, **__: object) -> dict[str, Future[Any]]:
        self.connected += 1
        future: Future[Any] = Future()
        future.set_exception(KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)))
        return {"t": future}

    def _offsets(self, specs: Mapping[Any, Any], client: int) -> dict[Any, Future[Any]]:
        futures: dict[Any, Future[Any]] = {partition: Future() for partition in specs}
        for future in futures.values():
            if client <= self._in_vain:
                future.set_exception(KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH)))
            else:
                future.set_result(SimpleNamespace(offset=7))
        return futures


def _asked(monkeypatch: pytest.MonkeyPatch, cluster: _Cluster) -> TopicAdmin:
    monkeypatch.setattr("cdc.kafka.topic_admin.AdminClient", cluster.new_client)
    return TopicAdmin({})


def test_a_client_that_is_refused_is_replaced_and_whoever_waits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = _Cluster(clients_in_vain=2)
    told: list[int] = []
    admin = _asked(monkeypatch, cluster)
    assert admin.end_offsets([("t", 0)], while_waiting=lambda: told.append(cluster.clients)) == {("t", 0): 7}
    assert told == [2, 3], "after each question that wasn't answered with an offset"
    assert admin.begin_offsets([("t", 0)]) == {("t", 0): 7}
    assert cluster.clients == 3, "one that is answered is kept"
    assert cluster.connected == 3, "each client connects before its first question for offsets"


def test_a_partition_that_gets_no_leader_is_unavailable_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.kafka.topic_admin._REQUEST_TIMEOUT_S", 0.3)
    with pytest.raises(Unavailable, match="epoch"):
        _asked(monkeypatch, _Cluster(clients_in_vain=1000)).committed_ends([("t", 0)])


def test_a_topic_that_isnt_listed_is_not_one_without_partitions() -> None:
    assert partitions_of(["a", "b"], {"a": 2, "b": 1, "c": 1}) == [("a", 0), ("a", 1), ("b", 0)]
    with pytest.raises(Unavailable, match="topic b, c"):
        partitions_of(["a", "c", "b"], {"a": 2})
