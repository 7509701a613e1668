"""What is asked of brokers that are changing places: nobody waits long without being told."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

from cdc.kafka.record_limits import RecordLimit
from cdc.kafka.topic_admin import Difference, TopicAdmin, TopicPlan, in_requests, partitions_of, smaller_limits
from cdc.model.errors import LockstepError, Unavailable


class _Cluster:
    """Brokers that have changed places. A client that has once asked in vain is refused for ever.

    ``refusal`` is the error, or the offset that stands for none.
    """

    def __init__(self, *, clients_in_vain: int, refusal: int = KafkaError.FENCED_LEADER_EPOCH) -> None:
        self._refusal = refusal
        self.clients = 0
        self.connected = 0
        self._in_vain = clients_in_vain

    def new_client(self, _: object) -> Any:
        self.clients += 1
        number = self.clients
        return SimpleNamespace(
            poll=lambda _: 0,
            list_offsets=lambda specs, **_: self._offsets(specs, number),
            describe_topics=lambda topics, **_: self._describe_topics(number),
        )

    def _describe_topics(self, client: int) -> dict[str, Future[Any]]:
        self.connected += 1
        future: Future[Any] = Future()
        if self._refusal == KafkaError._TIMED_OUT and client > self._in_vain:
            future.set_result(SimpleNamespace(topic_id="id", partitions=[0, 1]))
        elif self._refusal == KafkaError._TIMED_OUT:
            future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        else:
            future.set_exception(KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)))
        return {"t": future}

    def _offsets(self, specs: Mapping[Any, Any], client: int) -> dict[Any, Future[Any]]:
        futures: dict[Any, Future[Any]] = {partition: Future() for partition in specs}
        for future in futures.values():
            if client <= self._in_vain and self._refusal == OFFSET_INVALID:
                future.set_result(SimpleNamespace(offset=OFFSET_INVALID))
            elif client <= self._in_vain:
                future.set_exception(KafkaException(KafkaError(self._refusal)))
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
    monkeypatch.setattr("cdc.kafka.topic_admin.REQUEST_TIMEOUT_S", 0.3)
    with pytest.raises(Unavailable, match="epoch"):
        _asked(monkeypatch, _Cluster(clients_in_vain=1000)).committed_ends([("t", 0)])


@pytest.mark.parametrize("refusal", [KafkaError._TIMED_OUT, OFFSET_INVALID])
def test_a_client_that_waits_for_a_dead_broker_is_replaced(monkeypatch: pytest.MonkeyPatch, refusal: int) -> None:
    cluster = _Cluster(clients_in_vain=2, refusal=refusal)
    admin = _asked(monkeypatch, cluster)
    assert admin.end_offsets([("t", 0)]) == {("t", 0): 7}
    assert cluster.clients == 3


def test_topics_are_asked_about_again_where_a_client_waits_for_a_dead_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = _asked(monkeypatch, _Cluster(clients_in_vain=2, refusal=KafkaError._TIMED_OUT))
    assert admin.identities(["t"]) == {"t": ("id", 2)}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (KafkaError._AUTHENTICATION, "SASL authentication error: invalid credentials"),
        (KafkaError._TRANSPORT, "SSL handshake failed: the broker wants a certificate"),
    ],
)
def test_who_is_not_let_in_asks_once_and_says_why(code: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client itself says that nobody answers, as of a dead broker, for which others ask again and again."""
    asked: list[str] = []

    def client(settings: Mapping[str, Any]) -> Any:
        def question(topics: Any, **_: object) -> dict[str, Future[Any]]:
            asked.append("a question")
            future: Future[Any] = Future()
            future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
            return dict.fromkeys(topics, future)

        return SimpleNamespace(
            poll=lambda _: settings["error_cb"](KafkaError(code, f"broker:9092/bootstrap: {words}")),
            describe_topics=lambda topics, **_: question(topics.names),
            list_offsets=question,
        )

    monkeypatch.setattr("cdc.kafka.topic_admin.AdminClient", client)
    monkeypatch.setattr("cdc.kafka.topic_admin.TopicCollection", lambda topics: SimpleNamespace(names=[*topics]))
    questions: list[Callable[[TopicAdmin], object]] = [
        lambda admin: admin.partition_counts(["t"]),
        lambda admin: admin.identities(["t"]),
        lambda admin: admin.lacking_rights(["t"], ["Read"]),
        lambda admin: admin.end_offsets([("t", 0)]),
    ]
    for number, ask in enumerate(questions, 1):
        with pytest.raises(Unavailable, match=words):
            ask(TopicAdmin({}))
        assert len(asked) == number


def test_a_leader_that_does_not_answer_is_not_one_without_a_record_of_that_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading would begin at the partition's end, and leave out what comes before it."""
    admin = _asked(monkeypatch, _Cluster(clients_in_vain=1, refusal=OFFSET_INVALID))
    monkeypatch.setattr(admin, "committed_ends", lambda _: {("t", 0): 9})
    assert admin.offsets_at([("t", 0)], 1) == {("t", 0): 7}
    # A record of an open transaction is of no time yet: a sink that begins behind its first one would find a log that
    # ends before what it has read.
    monkeypatch.setattr(admin, "committed_ends", lambda _: {("t", 0): 5})
    assert admin.offsets_at([("t", 0)], 1) == {("t", 0): 5}


def test_a_new_topic_is_waited_for_until_every_broker_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next client may ask any of them."""
    asked: list[str] = []

    def client(settings: Mapping[str, Any]) -> Any:
        address = settings["bootstrap.servers"]

        def list_topics(**_: object) -> Any:
            asked.append(address)
            knows = address != "late:2" or asked.count(address) > 1
            brokers = {1: SimpleNamespace(host="early", port=1), 2: SimpleNamespace(host="late", port=2)}
            return SimpleNamespace(brokers=brokers, topics={"t": SimpleNamespace(error=None)} if knows else {})

        created: Future[None] = Future()
        created.set_result(None)
        return SimpleNamespace(list_topics=list_topics, create_topics=lambda *_, **__: {"t": created})

    monkeypatch.setattr("cdc.kafka.topic_admin.AdminClient", client)
    TopicAdmin({"bootstrap.servers": "any"}).create([TopicPlan("t", 1, 2, {})])
    assert asked.count("early:1") == asked.count("late:2") == 2


def test_a_topic_that_isnt_listed_is_not_one_without_partitions() -> None:
    assert partitions_of(["a", "b"], {"a": 2, "b": 1, "c": 1}) == [("a", 0), ("a", 1), ("b", 0)]
    with pytest.raises(Unavailable, match="topic b, c"):
        partitions_of(["a", "c", "b"], {"a": 2})


def test_partitions_are_asked_for_of_these_topics_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster has thousands of others. Who may not see one knows no more of it than of one that isn't there."""
    asked: list[list[str]] = []
    refusals = {"gone": KafkaError.UNKNOWN_TOPIC_OR_PART, "hidden": KafkaError.TOPIC_AUTHORIZATION_FAILED}

    def describe(topics: Any, **_: object) -> dict[str, Future[Any]]:
        asked.append(list(topics.names))
        futures: dict[str, Future[Any]] = {topic: Future() for topic in topics.names}
        for topic, future in futures.items():
            if topic in refusals:
                future.set_exception(KafkaException(KafkaError(refusals[topic])))
            else:
                future.set_result(SimpleNamespace(partitions=[0, 1, 2]))
        return futures

    monkeypatch.setattr(
        "cdc.kafka.topic_admin.AdminClient", lambda _: SimpleNamespace(describe_topics=describe, poll=lambda _: 0)
    )
    monkeypatch.setattr("cdc.kafka.topic_admin.TopicCollection", lambda topics: SimpleNamespace(names=[*topics]))
    admin = TopicAdmin({"bootstrap.servers": "any"})
    assert admin.partition_counts([]) == {}
    assert admin.partition_counts(["a", "gone", "hidden", "a"]) == {"a": 3}
    assert admin.partition_counts(["a", "gone"], must_see=True) == {"a": 3}
    with pytest.raises(LockstepError, match="it isn't known whether topic hidden exists") as error:
        admin.exists("hidden")
    assert "Describe" in (error.value.hint or "")
    assert asked == [["a", "gone", "hidden"], ["a", "gone"], ["hidden"]]


def test_whoever_is_refused_waits_for_the_other_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the client is telling them, and the process may end with the first one."""
    refused: Future[Any] = Future()
    refused.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    later: Future[Any] = Future()
    client = SimpleNamespace(describe_topics=lambda *_, **__: {"hidden": refused, "b": later}, poll=lambda _: 0)
    monkeypatch.setattr("cdc.kafka.topic_admin.AdminClient", lambda _: client)
    teller = threading.Timer(0.1, lambda: later.set_result(SimpleNamespace(partitions=[0])))
    teller.start()
    with pytest.raises(LockstepError, match="hidden"):
        TopicAdmin({"bootstrap.servers": "any"}).partition_counts(["hidden", "b"], must_see=True)
    assert later.done()
    teller.join()


def test_settings_of_many_topics_are_asked_for_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def describe(resources: list[Any], **_: object) -> dict[Any, Future[Any]]:
        asked.append(len(resources))
        futures: dict[Any, Future[Any]] = {resource: Future() for resource in resources}
        for resource, future in futures.items():
            future.set_result({"of": SimpleNamespace(value=resource.name)})
        return futures

    client = SimpleNamespace(describe_configs=describe)
    monkeypatch.setattr("cdc.kafka.topic_admin.AdminClient", lambda _: client)
    topics = [f"t{number}" for number in range(250)]
    assert TopicAdmin({}).configs(topics) == {topic: {"of": topic} for topic in topics}
    assert asked == [100, 100, 50]
    assert TopicAdmin({}).configs([]) == {}


@pytest.mark.parametrize(("topics", "partitions"), [(3, 1), (1_999, 6), (5, 900), (2, 9_999)])
def test_all_topics_are_asked_for_in_order_and_no_request_is_too_large(topics: int, partitions: int) -> None:
    plans = [TopicPlan(f"t{number}", partitions, 1, {"retention.ms": "1"}) for number in range(topics)]
    requests = in_requests(plans)
    assert [plan for request in requests for plan in request] == plans
    for request in requests:
        assert len(request) == 1 or len(request) * (partitions + 2) <= 2_000


def test_the_smallest_of_several_limits_of_a_topic_counts_whatever_their_order() -> None:
    """Who compares it with what the topic says later would else take it for another one, again and again."""
    differences = [
        Difference("a", "max.message.bytes", "500", "1000"),
        Difference("a", "segment.bytes", "800", "1000"),
        Difference("b", "segment.bytes", "800", "1000"),
        Difference("b", "max.message.bytes", "500", "1000"),
        Difference("c", "max.message.bytes", "2000", "1000"),
        Difference("c", "cleanup.policy", "delete", "compact"),
    ]
    smallest = RecordLimit(500, "max.message.bytes")
    assert smaller_limits(differences) == {"a": smallest, "b": smallest}
