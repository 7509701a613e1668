"""lockstep.rebuild.beside: what it may drop by itself."""

from pathlib import Path

import pytest

from cdc.model.errors import LockstepError
from jobs.generations.record import Phase, Record, begin_generation, load_record
from lockstep.config import Config, load
from lockstep.rebuild.beside import drop_half_built
from sinks.memory import MemoryRecords, MemorySink, MemoryStore, open_memory
from tests.builders import column, table

ORDERS = table(column("id", "int8"), column("note"))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "lockstep.toml"
    path.write_text(
        '[pipeline]\nname = "shop"\n[source]\ndsn = "dbname=app"\ntables = ["public.orders"]\n'
        '[kafka]\nbootstrap_servers = "nowhere:1"\n'
    )
    return load(path)


@pytest.mark.parametrize(
    "record",
    [
        Record("shop", {}, Phase.READY),
        Record("shop", {}, Phase.REPLAYING),
        Record("shop", {}, Phase.BUILDING, exposed=True),
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
        drop_half_built(config, "cache", open_memory(store, number), number)
    assert (store.generations.keys(), load_record(MemoryRecords(store), number)) == ({1, number}, record)


def test_a_live_generation_is_not_dropped_whatever_its_record_says(config: Config) -> None:
    store = MemoryStore()
    record = Record("shop", {}, Phase.BUILDING)
    assert begin_generation(open_memory(store, 1), record) == 1
    MemorySink(store, 1).prepare([ORDERS])
    with pytest.raises(LockstepError, match="readers may have seen it"):
        drop_half_built(config, "cache", open_memory(store, 1), 1)
    assert load_record(MemoryRecords(store), 1) == record
