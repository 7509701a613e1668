"""lockstep.rebuild.build: what it may drop by itself, and what can't be done in place."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from cdc.model.errors import ConfigurationError, LockstepError
from jobs.generations.record import Phase, Record, begin_generation, load_record
from lockstep.config import Config, load
from lockstep.rebuild.build import _drop_half_built, check_in_place
from sinks.memory import MemoryRecords, MemorySink, MemoryStore, open_memory
from sinks.registry import SinkSettings
from tests.builders import column, table

ORDERS = table(column("id", "int8"), column("note"))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "lockstep.toml"
    path.write_text(
        '[pipeline]\nname = "shop"\n[source]\ndsn = "dbname=app"\ntables = ["public.orders"]\n[kafka]\nbootstrap_servers = "nowhere:1"\n'
    )
    return load(path)


@pytest.mark.parametrize(
    "record",
    [
        Record("shop", {}, Phase.READY),
        Record("shop", {}, Phase.REPLAYING),
        Record("shop", {}, Phase.BUILDING, shown=True),
        Record("another", {}, Phase.BUILDING),
    ],
)
def test_a_generation_that_readers_may_have_seen_or_another_pipelines_is_not_dropped(
    config: Config, record: Record
) -> None:
    store = MemoryStore()
    MemorySink(store, 1).prepare([ORDERS])
    number = begin_generation(open_memory(store, 1), record)
    MemorySink(store, number).prepare([ORDERS])
    with pytest.raises(LockstepError, match="readers may have seen it"):
        _drop_half_built(config, "cache", open_memory(store, number), number)
    assert (store.generations.keys(), load_record(MemoryRecords(store), number)) == ({1, number}, record)


def test_a_live_generation_is_not_dropped_whatever_its_record_says(config: Config) -> None:
    store = MemoryStore()
    record = Record("shop", {}, Phase.BUILDING)
    assert begin_generation(open_memory(store, 1), record) == 1
    MemorySink(store, 1).prepare([ORDERS])
    with pytest.raises(LockstepError, match="readers may have seen it"):
        _drop_half_built(config, "cache", open_memory(store, 1), 1)
    assert load_record(MemoryRecords(store), 1) == record


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        ({"type": "redis"}, {"type": "redis", "keys": {"public.orders": "order:{id}"}}, ["keys"]),
        ({"type": "redis", "ttl_s": {"public.orders": 9}}, {"type": "redis", "values": "fields"}, ["ttl_s", "values"]),
        ({"type": "opensearch"}, {"type": "opensearch", "routing": {"public.orders": ["id"]}}, ["routing"]),
        (
            {"type": "warehouse", "url": "postgresql://w", "history": True},
            {"type": "warehouse", "url": "postgresql://w", "history": True, "exclude": ["public.orders.note"]},
            ["exclude"],
        ),
    ],
)
def test_what_would_leave_rows_behind_is_refused_in_place(
    before: dict[str, object], now: dict[str, object], named: list[str]
) -> None:
    adapter: TypeAdapter[SinkSettings] = TypeAdapter(SinkSettings)
    with pytest.raises(ConfigurationError) as raised:
        check_in_place(adapter.validate_python(now), adapter.validate_python(before))
    assert [problem.partition(":")[0] for problem in raised.value.problems] == named
    check_in_place(adapter.validate_python(now), adapter.validate_python(now))
