"""What the lag report asks of the sinks, and when it reads capture's state."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import SecretStr

from cdc.capture.settings import CaptureSettings
from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from cdc.pipeline import Pipeline
from cdc.postgres.settings import SourceSettings
from cdc.protocol.control_records import ProgressRecord, SnapshotPhase
from jobs.generations.lease import GenerationLease
from jobs.generations.record import Generation, Record, save_record
from jobs.generations.status import JobState
from monitor.collector import LagCollector
from monitor.lag import LagReport, SinkFacts, SourceFacts
from sinks.contract import Progress
from sinks.memory import open_memory
from sinks.redis.settings import RedisSettings
from tests.builders import ORDERS
from tests.generations import prepared_store
from tests.history import state

_ITEMS = TableName("public", "items")
_TOPIC = "shop.public.orders"
_PAUSED = replace(state(), phase=SnapshotPhase.COPYING, first_copy_paused=True)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the collector's clock shows, in one item."""
    shown = [1000.0]
    monkeypatch.setattr("monitor.collector.time.monotonic", lambda: shown[0])
    return shown


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An item for each time that the state was read."""
    read: list[str] = []
    monkeypatch.setattr("monitor.collector.read_state", lambda *_: read.append("read") or _PAUSED)
    return read


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[LagCollector]:
    """Of a pipeline with one table."""
    cluster = SimpleNamespace(exists="shop.__state".__eq__)
    monkeypatch.setattr("monitor.collector.TopicAdmin", lambda *_: cluster)
    monkeypatch.setattr("monitor.collector.OpenRejections", lambda *_: None)
    kafka = SimpleNamespace(client=dict)
    pipeline: Any = SimpleNamespace(name="shop", slot="s", topics=lambda: {ORDERS: _TOPIC}, kafka=kafka)
    with LagCollector(pipeline, {}) as collector:
        yield collector


def _progress(*uncopied: str) -> ProgressRecord:
    return ProgressRecord(800, 0, {}, 1, uncopied)


def test_a_table_that_has_left_the_configuration_needs_no_copy(collector: LagCollector, reads: list[str]) -> None:
    assert collector._while_copying(_progress("shop.public.left")) is None
    assert collector._while_copying(_progress()) is None
    assert reads == []


@pytest.mark.parametrize("newest", [None, _progress(_TOPIC)], ids=["first copy", "copy beside the stream"])
def test_while_a_table_lacks_its_copy_the_state_is_read_now_and_then(
    collector: LagCollector, reads: list[str], now: list[float], newest: ProgressRecord | None
) -> None:
    for _ in range(5):
        assert collector._while_copying(newest) == _PAUSED
        now[0] += 0.5
    assert len(reads) == 1
    now[0] += 1.0
    assert collector._while_copying(newest) == _PAUSED
    assert len(reads) == 2


def test_nobody_waits_for_signs_of_life_who_does_not_ask_about_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    store = prepared_store(1)
    GenerationLease(open_memory(store), 1, now_ms=lambda: 0).heartbeat()  # killed long ago
    monkeypatch.setattr("monitor.collector.TopicAdmin", lambda _: None)
    monkeypatch.setattr("monitor.collector.OpenRejections", lambda *_: None)
    monkeypatch.setattr("monitor.collector.open_sink", lambda _, __, generation: open_memory(store, generation))
    asked: list[list[int]] = []

    def running_of(_: object, doubtful: list[int], __: object) -> frozenset[int]:
        asked.append(doubtful)
        return frozenset()

    monkeypatch.setattr("jobs.generations.status.running_of", running_of)
    pipeline = cast("Any", SimpleNamespace(kafka=SimpleNamespace(client=dict)))
    with LagCollector(pipeline, {"cache": RedisSettings()}) as collector:
        [(_, _, job, *_)] = collector._ask("cache", with_jobs=False)
        assert (job, asked) == (None, [])
        [(_, _, job, *_)] = collector._ask("cache", with_jobs=True)
        assert job is not None
        assert (job.state, asked) == (JobState.SILENT, [[1]])


def test_another_pipelines_progress_does_not_pass_for_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after another name was given to a pipeline, whose sinks are where they were."""
    opened = open_memory(prepared_store(1))
    save_record(opened.records, 1, Record("shop", {}))
    monkeypatch.setattr("monitor.collector.TopicAdmin", lambda _: None)
    monkeypatch.setattr("monitor.collector.OpenRejections", lambda *_: None)
    monkeypatch.setattr("monitor.collector.open_sink", lambda *_: opened)
    pipeline = cast("Any", SimpleNamespace(name="shop2", kafka=SimpleNamespace(client=dict)))
    with (
        LagCollector(pipeline, {"cache": RedisSettings()}) as collector,
        pytest.raises(LockstepError, match="is written by pipeline 'shop', not by 'shop2'"),
    ):
        collector._ask("cache", with_jobs=False)


def test_tables_that_patterns_take_in_are_asked_for_until_they_are_known_and_then_now_and_then(
    monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    monkeypatch.setattr("monitor.collector.TopicAdmin", lambda *_: None)
    monkeypatch.setattr("monitor.collector.OpenRejections", lambda *_: None)
    source = SourceSettings(dsn="dbname=d", tables=("public.*",))
    kafka = KafkaSettings(bootstrap_servers="k:9092")
    answers: list[list[TableName] | Unavailable] = [Unavailable("it is away"), [ORDERS], [ORDERS, _ITEMS]]

    def resolve(pipeline: Pipeline) -> Pipeline:
        assert not pipeline.source.is_resolved
        answer = answers.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return pipeline.capturing(answer)

    with LagCollector(Pipeline("shop", source, kafka, CaptureSettings()), {}, resolve=resolve) as collector:
        with pytest.raises(Unavailable):
            collector._look_for_tables()
        assert not collector.pipeline.source.is_resolved
        for _ in range(3):
            collector._look_for_tables()
        assert collector.pipeline.source.table_names == (ORDERS,)
        closed: list[object] = []
        collector._progress = cast("Any", SimpleNamespace(close=lambda: closed.append(1)))
        now[0] += 60
        collector._look_for_tables()
        assert collector.pipeline.source.table_names == (ORDERS, _ITEMS)
        assert closed == [1], "it follows the progress of another set of tables"
        assert collector._progress is None


def test_named_tables_are_asked_for_again_when_a_record_says_that_others_are_captured(
    monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    """Capture was started again with another configuration, without one that is named here."""
    monkeypatch.setattr("monitor.collector.TopicAdmin", lambda *_: None)
    monkeypatch.setattr("monitor.collector.OpenRejections", lambda *_: None)
    source = SourceSettings(dsn="dbname=d", tables=(str(ORDERS), str(_ITEMS)))
    kafka = KafkaSettings(bootstrap_servers="k:9092")
    captured = [[ORDERS, _ITEMS], [ORDERS, _ITEMS], [ORDERS]]

    def resolve(pipeline: Pipeline) -> Pipeline:
        return replace(pipeline, source=pipeline.source.only(captured.pop(0)))

    with LagCollector(Pipeline("shop", source, kafka, CaptureSettings()), {}, resolve=resolve) as collector:
        collector._look_for_tables()
        now[0] += 60
        collector._look_for_tables()
        assert len(captured) == 1, "before anything is published nobody says when there are others"
        for selection in ("ab", "ab"):
            collector._published = ProgressRecord(8, 80, {}, 0, selection=selection)
            now[0] += 60
            collector._look_for_tables()
        assert (captured, collector.pipeline.source.table_names) == ([], (ORDERS,))
        collector._published = ProgressRecord(9, 90, {}, 0, selection="")
        collector._look_for_tables()


def _complete_ms(collector: LagCollector, *, watermark: int, behind: int, now_ms: int, epoch: int = 1) -> int:
    """As of when the sink has everything, with Kafka complete up to LSN 800."""
    source = SourceFacts(1000, 900, 800, 0, slot_active=True, retained_bytes=0, complete_ms=now_ms)
    facts = SinkFacts("cache", 1, True, watermark, 0, behind, 0)
    return collector._since_when_complete(source, facts, epoch).complete_ms


def test_a_sink_keeps_the_time_as_of_which_it_had_everything(collector: LagCollector) -> None:
    assert _complete_ms(collector, watermark=800, behind=0, now_ms=5_000) == 5_000
    assert _complete_ms(collector, watermark=800, behind=3, now_ms=6_000) == 5_000
    assert _complete_ms(collector, watermark=900, behind=3, now_ms=7_000) == 5_000
    assert _complete_ms(collector, watermark=900, behind=0, now_ms=8_000) == 8_000


def test_a_sink_whose_store_was_put_back_does_not_look_up_to_date(collector: LagCollector) -> None:
    assert _complete_ms(collector, watermark=800, behind=0, now_ms=5_000) == 5_000
    assert _complete_ms(collector, watermark=300, behind=90, now_ms=6_000) == 0
    assert _complete_ms(collector, watermark=700, behind=9, now_ms=7_000) == 0
    assert _complete_ms(collector, watermark=800, behind=2, now_ms=8_000) == 5_000, "it has it all again"


def test_what_a_sink_had_of_another_epoch_counts_for_nothing(collector: LagCollector) -> None:
    assert _complete_ms(collector, watermark=800, behind=0, now_ms=5_000) == 5_000
    assert _complete_ms(collector, watermark=900, behind=9, now_ms=6_000, epoch=2) == 0


def test_kafka_is_asked_once_for_all_sinks_in_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    cluster = SimpleNamespace(
        partition_counts=lambda _: asked.append("partitions") or {_TOPIC: 2, "shop.public.other": 1},
        end_offsets=lambda partitions: asked.append("ends") or dict.fromkeys(partitions, 10),
    )
    monkeypatch.setattr("monitor.collector.TopicAdmin", lambda *_: cluster)
    monkeypatch.setattr("monitor.collector.OpenRejections", lambda *_: None)
    other = TableName("public", "other")
    pipeline: Any = SimpleNamespace(
        name="shop",
        slot="s",
        topics=lambda: {ORDERS: _TOPIC, other: "shop.public.other"},
        kafka=SimpleNamespace(client=dict),
        source=SimpleNamespace(keyed_names=[ORDERS, other]),
    )
    tables = {"all": (), "one": (str(other),)}
    sinks: Any = {
        name: RedisSettings(type="redis", url=SecretStr("redis://127.0.0.1"), tables=of) for name, of in tables.items()
    }
    with LagCollector(pipeline, sinks) as collector:
        progress = Progress({(_TOPIC, 0): 4}, 0, 0, 0, {})
        answers: Any = {name: [(Generation(1, True, None), progress, None, None, None, None, None)] for name in sinks}
        ends = collector._topic_ends(answers)
        facts = {name: next(collector._facts(name, answer, 0, ends)) for name, answer in answers.items()}
    assert asked == ["partitions", "ends"]
    assert {name: fact.records_behind for name, fact in facts.items()} == {"all": 26, "one": 10}
    cluster.partition_counts = lambda _: {_TOPIC: 2}
    ends = collector._topic_ends(answers)
    assert next(collector._facts("one", answers["one"], 0, ends)).records_behind is None


def test_a_kafka_that_hangs_is_not_waited_for_again_and_its_late_answer_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("monitor.collector.TopicAdmin", lambda *_: None)
    monkeypatch.setattr("monitor.collector.OpenRejections", lambda *_: None)
    monkeypatch.setattr("monitor.collector._ANSWER_TIMEOUT_S", 0.01)
    kafka = SimpleNamespace(client=dict, bootstrap_servers="k:9092")
    released = threading.Event()

    def look(*_: object, **__: object) -> str:
        assert released.wait(300)
        return "old"

    with LagCollector(cast("Any", SimpleNamespace(kafka=kafka)), {}) as collector:
        monkeypatch.setattr(collector, "_look_at_kafka", look)
        asked = set()
        for _ in range(2):
            silent = collector._ask_kafka({}, is_slot_lost=False)
            assert isinstance(silent, Unavailable)
            assert silent.message.startswith("Kafka at k:9092 hasn't answered")
            asked.add(collector._of_kafka)
        [question] = asked
        assert question is not None
        monkeypatch.setattr("monitor.collector._ANSWER_TIMEOUT_S", 60.0)
        monkeypatch.setattr(collector, "_look_at_kafka", lambda *_, **__: "new")
        released.set()
        assert question.wait(300) == cast("Any", "old")
        assert collector._ask_kafka({}, is_slot_lost=False) == cast("Any", "new")


def test_what_meets_a_bug_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.collector.TopicAdmin", lambda *_: None)
    monkeypatch.setattr("monitor.collector.OpenRejections", lambda *_: None)
    kafka = SimpleNamespace(client=dict, bootstrap_servers="k:9092")
    sinks: Any = {"cache": RedisSettings(type="redis", url=SecretStr("redis://127.0.0.1"))}

    def stumble(*_: object, **__: object) -> None:
        raise KeyError("x")

    with LagCollector(cast("Any", SimpleNamespace(kafka=kafka)), sinks) as collector:
        asks: dict[str, Any] = {
            "_collect": collector.collect,
            "_look_at_kafka": lambda: collector._ask_kafka({}, is_slot_lost=False),
            "_ask": lambda: collector._ask_sinks(with_jobs=False),
        }
        answers: dict[str, Any] = {"_collect": LagReport((), None, None, {}), "_look_at_kafka": "new", "_ask": []}
        for name, ask in asks.items():
            monkeypatch.setattr(collector, name, stumble)
            with pytest.raises(KeyError):
                ask()
            monkeypatch.setattr(collector, name, lambda *_, answer=answers[name], **__: answer)
            assert ask() in (answers[name], {"cache": []})
