"""What every destination says of data that another version of Lockstep has stored."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest
import redis
from deltalake import DeltaTable
from opensearchpy import OpenSearch
from pydantic import SecretStr

from cdc.model.errors import LockstepError
from sinks.contract import OpenedSink
from sinks.delta.settings import DeltaSettings
from sinks.delta.sink import open_delta
from sinks.opensearch.settings import OpenSearchSettings
from sinks.opensearch.sink import open_opensearch
from sinks.redis.settings import RedisSettings
from sinks.redis.sink import open_redis
from sinks.stored_format import STORED_FORMAT
from sinks.warehouse.bookkeeping_format import HEAD
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import open_warehouse
from tests.builders import batch, progress, table, upsert
from tests.opened import closing_sink

pytestmark = pytest.mark.live


@dataclass
class Store:
    """``set_format`` stores another number, ``make_earlier`` what the version before the numbers left."""

    open: Callable[[], OpenedSink]
    set_format: Callable[[int], object]
    known: int = STORED_FORMAT
    make_earlier: Callable[[], object] = lambda: None
    close: Callable[[], object] = lambda: None
    fences: bool = False
    loads_in_bulk: bool = True


def _redis(endpoints: Any, name: str) -> Store:
    client = redis.Redis.from_url(endpoints.redis_url)
    settings = RedisSettings(url=SecretStr(endpoints.redis_url))

    def make_earlier() -> None:
        client.delete(f"{name}:format")
        client.rename(f"{name}:coordination", f"{name}:notes")

    return Store(
        lambda: open_redis(name, settings, 1),
        lambda number: client.set(f"{name}:format", number),
        make_earlier=make_earlier,
        close=client.close,
        loads_in_bulk=False,
    )


def _opensearch(endpoints: Any, name: str) -> Store:
    client = OpenSearch(hosts=[endpoints.opensearch_url])
    settings = OpenSearchSettings(urls=(endpoints.opensearch_url,), replicas=0)
    index = f"{name}.lockstep_bookkeeping"

    def make_earlier() -> None:
        client.indices.delete(index=index)
        client.indices.create(index=f"{name}.lockstep_progress")

    def close() -> None:
        indexes = [index["index"] for index in client.cat.indices(index=f"{name}.*", format="json", h="index")]
        client.indices.delete(index=",".join(indexes))
        client.close()

    return Store(
        lambda: open_opensearch(name, settings, 1),
        lambda number: client.indices.put_mapping(index=index, body={"_meta": {"lockstep_stored_format": number}}),
        make_earlier=make_earlier,
        close=close,
    )


def _duckdb(_endpoints: Any, name: str) -> Store:
    root = Path(tempfile.mkdtemp(prefix="lockstep-format-"))
    file = root / "warehouse.duckdb"
    settings = WarehouseSettings(url=SecretStr(f"duckdb:///{file}"))

    def set_format(number: int) -> None:
        with duckdb.connect(file) as connection:
            connection.execute(f"update lockstep.schema_version set version_num = '{number:04}'")

    return Store(
        lambda: open_warehouse(name, settings, 1),
        set_format,
        known=HEAD,
        close=lambda: shutil.rmtree(root),
        fences=True,
    )


def _delta(_endpoints: Any, name: str) -> Store:
    root = Path(tempfile.mkdtemp(prefix="lockstep-format-"))
    settings = DeltaSettings(root=str(root))

    def change(**fields: Any) -> None:
        bookkeeping = DeltaTable(root / f"{name}_live")
        state = orjson.loads(bookkeeping.metadata().configuration["lockstep.state"])
        state = {key: value for key, value in {**state, **fields}.items() if value is not None}
        bookkeeping.alter.set_table_properties(
            {"lockstep.state": orjson.dumps(state).decode()}, raise_if_not_exists=False
        )

    return Store(
        lambda: open_delta(name, settings, 1),
        lambda number: change(format=number),
        make_earlier=lambda: change(format=None, coordination_records=None, notes={}),
        close=lambda: shutil.rmtree(root),
        fences=True,
    )


_WITHOUT_MIGRATIONS = (_redis, _opensearch, _delta)


@pytest.fixture(params=[*_WITHOUT_MIGRATIONS, _duckdb], ids=lambda make: make.__name__[1:])
def store(request: pytest.FixtureRequest, endpoints: Any, name: str) -> Iterator[Store]:
    made: Store = request.param(endpoints, name)
    opened = made.open()
    opened.sink.prepare([table()])
    opened.records.save("previous", "1")
    opened.sink.close()
    yield made
    made.close()


def _refusals(store: Store) -> Iterator[LockstepError]:
    """The error of each first call of a newly opened sink."""
    calls: list[Callable[[OpenedSink], object]] = [
        lambda opened: opened.sink.prepare([table()]),
        lambda opened: opened.sink.apply(batch(upsert({"id": 1, "note": "a"}, 1))),
        lambda opened: list(opened.sink.scan(table())),
        lambda opened: opened.generations.live(),
        lambda opened: opened.generations.numbers(),
        lambda opened: opened.generations.load_progress(),
        lambda opened: opened.generations.drop(),
        lambda opened: opened.records.load("previous"),
        lambda opened: opened.records.save("previous", "2"),
        lambda opened: opened.records.save("previous", None),
        lambda opened: opened.records.create("next", "1"),
        lambda opened: opened.generations.switch(),
        lambda opened: opened.generations.save_progress(progress()),
    ]
    if store.fences:
        calls.append(lambda opened: opened.sink.claim())
    if store.loads_in_bulk:
        calls += [lambda opened: opened.bulk.begin_bulk(), lambda opened: opened.bulk.end_bulk()]
    for call in calls:
        with closing_sink(store.open()) as opened:
            with pytest.raises(LockstepError, match="stored format") as raised:
                call(opened)
            yield raised.value


def test_the_format_is_stored_and_the_same_version_goes_on(store: Store) -> None:
    opened = store.open()
    assert opened.generations.live() == 1
    assert opened.records.load("previous") == "1"
    opened.sink.close()


@pytest.mark.soak
def test_what_a_newer_version_has_stored_is_left_alone(store: Store) -> None:
    store.set_format(store.known + 1)
    for refusal in _refusals(store):
        assert f"was written by a newer Lockstep: its stored format is {store.known + 1}" in refusal.message
        assert "upgrade Lockstep" in (refusal.hint or "")
    store.set_format(store.known)
    opened = store.open()
    assert opened.records.load("previous") == "1"
    opened.sink.close()


@pytest.mark.parametrize("store", _WITHOUT_MIGRATIONS, ids=lambda make: make.__name__[1:], indirect=True)
@pytest.mark.soak
def test_what_was_stored_before_the_numbers_is_refused_with_the_way_out(store: Store) -> None:
    store.make_earlier()
    for refusal in _refusals(store):
        assert "was written by an earlier Lockstep: its stored format is 1" in refusal.message
        assert "lockstep apply" in (refusal.hint or "")
