"""extensions.streams.jobs.rebuild, on a destination in memory."""

from pathlib import Path

import pytest

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import LockstepError
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.rebuild import begin_again
from extensions.streams.settings import StreamQuerySettings
from jobs.generations.record import Phase, Record, list_generations, save_record
from jobs.settings import SparkSettings
from sinks.memory import MemoryStore, open_memory
from sinks.redis.settings import RedisSettings
from tests.generations import prepared_store


def plan(store: MemoryStore) -> StreamQueryPlan:
    return StreamQueryPlan(
        name="recent",
        query=StreamQuerySettings(key=("id",), sql="x"),
        settings=RedisSettings(),
        streams={},
        pipeline="shop",
        kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"),
        spark=SparkSettings(checkpoint_directory=str(Path("checkpoints"))),
        once=True,
        open=lambda _name, _settings, number: open_memory(store, number),
    )


def store_with(*generations: int, live: int | None, pipeline: str = "shop") -> MemoryStore:
    store = prepared_store(*generations)
    store.live = live
    for number in generations:
        save_record(open_memory(store).records, number, Record(pipeline, {}))
    return store


def phases(store: MemoryStore) -> dict[int, Phase]:
    return {each.number: each.phase for each in list_generations(open_memory(store))}


def test_a_build_that_readers_had_before_stays_since_the_webhook_may_wait_for_its_rows() -> None:
    store = store_with(1, 2, live=2)
    assert begin_again(plan(store)) == 3
    assert phases(store) == dict.fromkeys((1, 2, 3), Phase.READY)


def test_where_readers_have_none_all_are_given_up() -> None:
    store = store_with(1, 2, live=None)
    assert begin_again(plan(store)) == 3
    assert phases(store) == {1: Phase.RETIRED, 2: Phase.RETIRED, 3: Phase.READY}


def test_builds_of_another_pipeline_are_left_alone() -> None:
    store = store_with(1, live=None, pipeline="other")
    with pytest.raises(LockstepError, match="is written by pipeline 'other'"):
        begin_again(plan(store))
    assert phases(store) == {1: Phase.READY}
