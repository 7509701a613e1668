"""What a look at Kafka reads, and how often."""

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from cdc.capture.settings import CaptureSettings
from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import Unavailable
from cdc.model.table import TableName
from cdc.pipeline_settings import Pipeline
from cdc.postgres.settings import SourceSettings
from cdc.protocol.control_records import CaptureState, ProgressRecord, SnapshotPhase
from monitor.kafka_look import KafkaLook, OfKafka
from tests.builders import ORDERS
from tests.history import state

_ITEMS = TableName("public", "items")
_TOPIC = "shop.public.orders"
_KAFKA = KafkaSettings(bootstrap_servers="k:9092")
_PAUSED = replace(state(), phase=SnapshotPhase.COPYING, first_copy_paused=True)


@dataclass
class _Brokers:
    """Kafka, as a look asks it. ``asked`` are the questions."""

    partitions: Mapping[str, int] = field(default_factory=lambda: {_TOPIC: 2, "shop.public.items": 1})
    records: list[ProgressRecord] = field(default_factory=list)
    now_s: float = 1000.0
    asked: list[str] = field(default_factory=list)
    hangs: threading.Event | None = None
    bug: Exception | None = None

    def partition_counts(self, topics: Iterable[str], **_: object) -> dict[str, int]:
        if self.bug is not None:
            raise self.bug
        if self.hangs is not None:
            assert self.hangs.wait(300)
        self.asked.append("partitions")
        return {topic: self.partitions[topic] for topic in topics if topic in self.partitions}

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        self.asked.append("ends")
        return dict.fromkeys(partitions, 10)

    def exists(self, topic: str) -> bool:
        return topic == "shop.__state"

    def read_state(self, *_: object) -> CaptureState:
        self.asked.append("state")
        return _PAUSED

    # What a progress reader and the dead letters' count are asked.

    def new_records(self) -> list[ProgressRecord]:
        new, self.records = self.records, []
        return new

    def counts(self) -> dict[tuple[str, int], int]:
        return {}

    def close(self) -> None:
        self.asked.append("close")


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> _Brokers:
    brokers = _Brokers()
    for name in ("TopicAdmin", "OpenRejections", "ProgressReader"):
        monkeypatch.setattr(f"monitor.kafka_look.{name}", lambda *_: brokers)
    monkeypatch.setattr("monitor.kafka_look.read_state", brokers.read_state)
    monkeypatch.setattr("monitor.kafka_look.time.monotonic", lambda: brokers.now_s)
    monkeypatch.setattr("monitor.background_question.time.monotonic", lambda: brokers.now_s)
    return brokers


def _pipeline(*tables: object) -> Pipeline:
    source = SourceSettings(dsn="dbname=d", tables=tuple(map(str, tables)))
    return Pipeline("shop", source, _KAFKA, CaptureSettings())


def _look(resolve: Any = lambda pipeline: pipeline, *tables: object) -> KafkaLook:
    return KafkaLook(_pipeline(*(tables or (ORDERS,))), resolve)


def _ask(look: KafkaLook, topics: Collection[str] = ()) -> OfKafka:
    return look.ask(lambda _: topics, is_slot_lost=False)


def _progress(*uncopied: str, selection: str = "") -> ProgressRecord:
    return ProgressRecord(800, 0, {}, 1, uncopied, selection=selection)


def test_a_table_that_has_left_the_configuration_needs_no_copy(brokers: _Brokers) -> None:
    look = _look()
    brokers.records = [_progress("shop.public.left")]
    assert _ask(look).copying is None
    brokers.records = [_progress()]
    assert _ask(look).copying is None


@pytest.mark.parametrize("newest", [[], [_progress(_TOPIC)]], ids=["first copy", "copy beside the stream"])
def test_while_a_table_lacks_its_copy_the_state_is_read_now_and_then(
    brokers: _Brokers, newest: list[ProgressRecord]
) -> None:
    look, brokers.records = _look(), list(newest)
    for _ in range(5):
        assert _ask(look).copying == _PAUSED
        brokers.now_s += 0.5
    # In an epoch that isn't settled each look reads it, once.
    assert brokers.asked.count("state") == (5 if newest else 1)
    brokers.now_s += 1.0
    assert _ask(look).copying == _PAUSED
    assert brokers.asked.count("state") == (6 if newest else 2)


def test_tables_that_patterns_take_in_are_asked_for_until_they_are_known_and_then_now_and_then(
    brokers: _Brokers,
) -> None:
    answers: list[list[TableName] | Unavailable] = [Unavailable("it is away"), [ORDERS], [ORDERS, _ITEMS]]

    def resolve(pipeline: Pipeline) -> Pipeline:
        assert not pipeline.source.is_resolved
        answer = answers.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return pipeline.capturing(answer)

    look = _look(resolve, "public.*")
    with pytest.raises(Unavailable):
        _ask(look)
    assert not look.pipeline.source.is_resolved
    for _ in range(3):
        _ask(look)
    assert look.pipeline.source.table_names == (ORDERS,)
    assert "close" not in brokers.asked
    brokers.now_s += 60
    _ask(look)
    assert look.pipeline.source.table_names == (ORDERS, _ITEMS)
    assert brokers.asked.count("close") == 1, "it followed the progress of another set of tables"


def test_named_tables_are_asked_for_again_when_a_record_says_that_others_are_captured(brokers: _Brokers) -> None:
    """Capture was started again with another configuration, without one that is named here."""
    captured = [[ORDERS, _ITEMS], [ORDERS, _ITEMS], [ORDERS]]

    def resolve(pipeline: Pipeline) -> Pipeline:
        return replace(pipeline, source=pipeline.source.only(captured.pop(0)))

    look = _look(resolve, ORDERS, _ITEMS)
    _ask(look)
    brokers.now_s += 60
    _ask(look)
    assert len(captured) == 1, "before anything is published nobody says when there are others"
    for _ in range(2):
        brokers.records = [_progress(selection="ab")]
        _ask(look)
        brokers.now_s += 60
        _ask(look)
    assert (captured, look.pipeline.source.table_names) == ([], (ORDERS,))
    brokers.records = [_progress()]
    _ask(look)


def test_kafka_is_asked_once_for_all_sinks_in_a_look(brokers: _Brokers) -> None:
    look = _look(lambda pipeline: pipeline, ORDERS, _ITEMS)
    _ask(look)  # the progress reader is open from here on
    del brokers.asked[:]
    ends = _ask(look, [_TOPIC, "shop.public.items", _TOPIC]).ends
    assert [question for question in brokers.asked if question != "state"] == ["partitions", "ends"]
    assert ends == {(_TOPIC, 0): 10, (_TOPIC, 1): 10, ("shop.public.items", 0): 10}


def test_a_topic_that_the_brokers_do_not_list_has_no_ends(brokers: _Brokers) -> None:
    look = _look()
    _ask(look)
    brokers.partitions = {"shop.public.items": 1}
    assert _ask(look, [_TOPIC, "shop.public.items"]).ends == {("shop.public.items", 0): 10}


def test_a_kafka_that_hangs_is_not_waited_for_again_and_its_late_answer_is_not_taken(
    brokers: _Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.background_question.ANSWER_TIMEOUT_S", 0.01)
    look = _look()
    brokers.hangs = threading.Event()
    for _ in range(2):
        with pytest.raises(Unavailable, match="Kafka at k:9092 hasn't answered"):
            _ask(look, [_TOPIC])
        brokers.now_s += 10
    assert brokers.asked == []
    monkeypatch.setattr("monitor.background_question.ANSWER_TIMEOUT_S", 60.0)
    brokers.hangs.set()
    assert _ask(look, [_TOPIC]).ends == {(_TOPIC, 0): 10, (_TOPIC, 1): 10}
    assert brokers.asked.count("ends") == 2, "the late answer, and one of now"


def test_a_look_that_meets_a_bug_is_made_again(brokers: _Brokers) -> None:
    look = _look()
    brokers.bug = KeyError("x")
    with pytest.raises(KeyError):
        _ask(look, [_TOPIC])
    brokers.bug = None
    assert _ask(look, [_TOPIC]).ends
