"""What a look at a sink asks, and what it makes of the answer."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from jobs.generations.lease import Clock, GenerationLease
from jobs.generations.record import Generation, Record, save_record
from jobs.generations.status import JobState
from monitor.lag import SinkFacts, SourceFacts
from monitor.sink_look import OfGeneration, SinkLook
from sinks.contract import Progress
from sinks.memory import MemoryStore, open_memory
from sinks.redis.settings import RedisSettings
from tests.builders import ORDERS
from tests.generations import prepared_store

_OTHER = TableName("public", "other")
_TOPICS = {ORDERS: "shop.public.orders", _OTHER: "shop.public.other"}
_PIPELINE: Any = SimpleNamespace(topics=lambda: _TOPICS, source=SimpleNamespace(keyed_names=[ORDERS, _OTHER]))

OpenLook = Callable[[MemoryStore], SinkLook]


@pytest.fixture
def open_look(monkeypatch: pytest.MonkeyPatch) -> OpenLook:
    """At a sink that is in memory."""

    def opened(store: MemoryStore, *, pipeline: str = "shop") -> SinkLook:
        monkeypatch.setattr("monitor.background_question.ANSWER_TIMEOUT_S", 300.0)
        monkeypatch.setattr("monitor.sink_look.open_sink", lambda _, __, generation: open_memory(store, generation))
        return SinkLook("cache", RedisSettings(), pipeline)

    return opened


def test_nobody_waits_for_signs_of_life_who_does_not_ask_about_jobs(
    open_look: OpenLook, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = prepared_store(1)
    GenerationLease(open_memory(store), 1, clock=Clock(now_ms=lambda: 0)).heartbeat()  # killed long ago
    asked: list[list[int]] = []

    def running_of(_: object, doubtful: list[int], __: object) -> frozenset[int]:
        asked.append(doubtful)
        return frozenset()

    monkeypatch.setattr("jobs.generations.status.running_of", running_of)
    look = open_look(store)
    [of] = look.ask(with_jobs=False)
    assert (of.job, asked) == (None, [])
    [of] = look.ask(with_jobs=True)
    assert of.job is not None
    assert (of.job.state, asked) == (JobState.SILENT, [[1]])


def test_another_pipelines_progress_does_not_pass_for_ones_own(open_look: OpenLook) -> None:
    """As after another name was given to a pipeline, whose sinks are where they were."""
    store = prepared_store(1)
    save_record(open_memory(store).records, 1, Record("shop2", {}))
    with pytest.raises(LockstepError, match="is written by pipeline 'shop2', not by 'shop'"):
        open_look(store).ask(with_jobs=False)


def test_what_meets_a_bug_is_asked_again(open_look: OpenLook, monkeypatch: pytest.MonkeyPatch) -> None:
    look = open_look(prepared_store(1))
    with monkeypatch.context() as patched:
        patched.setattr("monitor.sink_look.list_generations", lambda _: {}["x"])
        look.begin(with_jobs=False)
        with pytest.raises(KeyError):
            look.answer(time.monotonic())
    look.begin(with_jobs=False)
    answer = look.answer(time.monotonic())
    assert not isinstance(answer, LockstepError)
    assert len(answer) == 1


@pytest.mark.parametrize(
    ("tables", "listed", "expected"),
    [
        ((), _TOPICS.values(), 16),
        ((str(_OTHER),), _TOPICS.values(), 10),
        ((), ["shop.public.other"], None),
        ((str(_OTHER),), ["shop.public.other"], 10),
        ((str(_OTHER),), ["shop.public.orders"], None),
    ],
)
def test_records_are_left_up_to_the_end_of_each_topic_that_it_reads_where_all_are_listed(
    tables: tuple[str, ...], listed: list[str], expected: int | None
) -> None:
    look = SinkLook("cache", RedisSettings(tables=tables), "shop")
    answer = [OfGeneration(Generation(1, True, None), Progress({("shop.public.orders", 0): 4}, 0, 0, 0, {}))]
    [facts] = look.facts(answer, _PIPELINE, 0, {(topic, 0): 10 for topic in listed})
    assert facts.records_behind == expected


@pytest.fixture
def look() -> SinkLook:
    return SinkLook("cache", RedisSettings(), "shop")


def _complete_ms(look: SinkLook, *, watermark: int, behind: int, now_ms: int, epoch: int = 1) -> int:
    """As of when the sink has everything, with Kafka complete up to LSN 800."""
    source = SourceFacts(1000, 900, 800, 0, slot_active=True, retained_bytes=0, complete_ms=now_ms)
    facts = SinkFacts("cache", 1, True, watermark, 0, behind, 0)
    return look.since_when_complete(source, facts, epoch).complete_ms


def test_a_sink_keeps_the_time_as_of_which_it_had_everything(look: SinkLook) -> None:
    assert _complete_ms(look, watermark=800, behind=0, now_ms=5_000) == 5_000
    assert _complete_ms(look, watermark=800, behind=3, now_ms=6_000) == 5_000
    assert _complete_ms(look, watermark=900, behind=3, now_ms=7_000) == 5_000
    assert _complete_ms(look, watermark=900, behind=0, now_ms=8_000) == 8_000


def test_a_sink_whose_store_was_put_back_does_not_look_up_to_date(look: SinkLook) -> None:
    assert _complete_ms(look, watermark=800, behind=0, now_ms=5_000) == 5_000
    assert _complete_ms(look, watermark=300, behind=90, now_ms=6_000) == 0
    assert _complete_ms(look, watermark=700, behind=9, now_ms=7_000) == 0
    assert _complete_ms(look, watermark=800, behind=2, now_ms=8_000) == 5_000, "it has it all again"


def test_what_a_sink_had_of_another_epoch_counts_for_nothing(look: SinkLook) -> None:
    assert _complete_ms(look, watermark=800, behind=0, now_ms=5_000) == 5_000
    assert _complete_ms(look, watermark=900, behind=9, now_ms=6_000, epoch=2) == 0
