"""What every sink reports of tables that somebody has removed, emptied or put back by hand."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from opensearchpy import OpenSearch

from cdc.model.errors import DataLost
from cdc.model.table import TableName
from sinks.contract import OpenedSink
from sinks.delta.settings import DeltaSettings
from sinks.delta.sink import open_delta
from tests.builders import batch, column, delete, table, tag, upsert
from tests.contract.destinations import ITEMS, Destination, opened_destination
from tests.contract.items import item, rows_of

pytestmark = pytest.mark.needs("identities")

OTHERS = table(column("id", "int8"), column("note"), name=TableName("public", "others"))


def test_a_table_stays_the_same_one_whatever_is_written_to_it(destination: Destination, name: str) -> None:
    opened = destination.opened(name, 1, ITEMS, OTHERS)
    known = opened.identities.identities([ITEMS.name, OTHERS.name])
    assert known.keys() == {ITEMS.name, OTHERS.name}
    opened.sink.apply(batch(item(1, "a", 1), fence=opened.sink.claim()))
    wider = table(*ITEMS.columns, column("extra"), name=ITEMS.name)
    opened.sink.close()
    again = destination.opened(name, 1, wider)
    row = {"id": 2, "note": "b", "number": 3, "extra": "c"}
    again.sink.apply(batch(upsert(row, 2, of=wider), fence=again.sink.claim()))
    second = destination.opened(name, 2, ITEMS)
    second.generations.switch()
    assert again.identities.lost(known) == {}
    assert second.identities.lost(second.identities.identities([ITEMS.name])) == {}


def test_a_table_that_somebody_has_removed_is_lost(destination: Destination, name: str) -> None:
    opened = destination.opened(name, 1, ITEMS)
    opened.sink.apply(batch(item(1, "a", 1), fence=opened.sink.claim()))
    known = opened.identities.identities([ITEMS.name])
    opened.sink.close()
    destination.remove_items(name)
    assert opened.identities.lost(known).keys() == {ITEMS.name}
    assert opened.identities.lost({ITEMS.name: ""}).keys() == {ITEMS.name}, "so it is where nothing else is known"
    assert opened.identities.identities([ITEMS.name]) == {}


def test_nothing_is_lost_of_a_table_that_nobody_knows_more_of_than_that_it_is_there(
    destination: Destination, name: str
) -> None:
    opened = destination.opened(name, 1, ITEMS)
    assert opened.identities.lost({ITEMS.name: ""}) == {}


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Destination]:
    made = opened_destination(request.param, lambda: request.getfixturevalue("endpoints"))
    yield made
    made.close()


@pytest.mark.live
@pytest.mark.parametrize("store", ["opensearch"], indirect=True)
def test_an_index_that_was_made_again_is_another_one(store: Destination, name: str, client: OpenSearch) -> None:
    opened = store.opened(name, 1, ITEMS)
    known = opened.identities.identities([ITEMS.name])
    client.indices.close(index=f"{name}.public.items_g1")
    assert opened.identities.lost(known) == {}, "one that is closed is there"
    client.indices.open(index=f"{name}.public.items_g1")
    store.remove_items(name)
    opened.sink.prepare([ITEMS])
    assert "another one of its name" in opened.identities.lost(known)[ITEMS.name]


@pytest.mark.live
@pytest.mark.parametrize("store", ["opensearch"], indirect=True)
def test_an_index_that_was_put_back_in_place_is_lost(store: Destination, name: str, client: OpenSearch) -> None:
    opened, known = _filled(store, name)
    index = f"{name}.public.items_g1"
    client.snapshot.create_repository(repository=name, body={"type": "fs", "settings": {"location": name}})
    client.snapshot.create(repository=name, snapshot="s", body={"indices": index}, wait_for_completion=True)
    opened.sink.apply(batch(item(2, "b", 2), fence=opened.sink.claim()))
    client.indices.close(index=index)
    client.indices.open(index=index)
    client.indices.put_settings(index=index, body={"index": {"refresh_interval": "5s"}})
    assert opened.identities.lost(known) == {}
    client.indices.close(index=index)
    client.snapshot.restore(repository=name, snapshot="s", body={"indices": index}, wait_for_completion=True)
    for _ in range(2):
        assert "was put back in place" in opened.identities.lost(known)[ITEMS.name]
    client.snapshot.delete_repository(repository=name)


def test_a_delta_table_that_a_restore_has_put_back_is_lost_and_one_that_others_maintain_is_not(
    name: str, tmp_path: Path
) -> None:
    settings = DeltaSettings(root=str(tmp_path))
    opened = open_delta(name, settings, 1)
    opened.sink.prepare([ITEMS])
    fence = opened.sink.claim()
    opened.sink.apply(batch(item(1, "a", 1), fence=fence))
    known = opened.identities.identities([ITEMS.name])
    path = tmp_path / f"{name}_g1" / "items"
    DeltaTable(path).optimize.compact()
    DeltaTable(path).vacuum()
    opened.sink.apply(batch(item(2, "b", 2), fence=fence))
    assert opened.identities.lost(known) == {}
    DeltaTable(path).restore(DeltaTable(path).version() - 1)
    opened.sink.apply(batch(item(3, "c", 3), fence=fence))
    for identities in (opened.identities, open_delta(name, settings, 1).identities):
        for _ in range(2):
            assert "RESTORE" in identities.lost(known)[ITEMS.name]


@pytest.mark.live
@pytest.mark.parametrize("store", ["opensearch", "delta"], indirect=True)
def test_nothing_is_lost_where_the_whole_destination_was_put_back(store: Destination, name: str) -> None:
    """Progress is as old as the rows then, which other tests check."""
    opened, known = _filled(store, name)
    put_back = store.copy(name)
    opened.sink.close()
    put_back()
    assert store.opened(name, 1).identities.lost(known) == {}


def _filled(store: Destination, name: str) -> tuple[OpenedSink, Mapping[TableName, str]]:
    """A generation with a row, and its table's identity."""
    opened = store.opened(name, 1, ITEMS)
    opened.sink.apply(batch(item(1, "a", 1), fence=opened.sink.claim()))
    return opened, opened.identities.identities([ITEMS.name])


WAREHOUSES = pytest.mark.parametrize("store", ["warehouse", "warehouse-history"], indirect=True)


@pytest.mark.live
@WAREHOUSES
def test_a_table_of_a_warehouse_that_was_emptied_is_lost(
    store: Destination, name: str, warehouse: psycopg.Connection[Any]
) -> None:
    opened, known = _filled(store, name)
    warehouse.execute(f"truncate {name}_g1.items".encode())
    assert opened.identities.lost(known) == {ITEMS.name: "items was emptied"}


@pytest.mark.live
@WAREHOUSES
@pytest.mark.parametrize(
    "rewrite",
    [
        "vacuum full {}",
        "cluster {} using items_pkey",
        "vacuum full {}; vacuum freeze {}; analyze {}",
        "vacuum full {}; grant select on {} to public",
    ],
)
def test_a_table_of_a_warehouse_that_was_written_anew_as_a_whole_is_the_same_one(
    store: Destination, name: str, rewrite: str, warehouse: psycopg.Connection[Any]
) -> None:
    opened, known = _filled(store, name)
    for statement in rewrite.split("; "):
        warehouse.execute(statement.format(f"{name}_g1.items").encode())
    assert opened.identities.identities([ITEMS.name]) != known
    assert opened.identities.lost(known) == {}


@pytest.mark.live
@WAREHOUSES
@pytest.mark.parametrize(
    "reload",
    [
        "create table {0}.kept as table {0}.items; begin; truncate {0}.items; insert into {0}.items table {0}.kept;"
        " commit",
        "create table {0}.kept as table {0}.items; truncate {0}.items; insert into {0}.items table {0}.kept",
        "create table {0}.kept as table {0}.items; begin; truncate {0}.items; insert into {0}.items table {0}.kept;"
        " commit; grant select on {0}.items to public; alter table {0}.items set (fillfactor = 90)",
        "alter table {0}.items set unlogged",
    ],
)
def test_a_table_of_a_warehouse_of_which_no_row_is_as_old_as_before_is_lost_for_good(
    store: Destination, name: str, reload: str, warehouse: psycopg.Connection[Any]
) -> None:
    opened, known = _filled(store, name)
    for statement in reload.split("; "):
        warehouse.execute(statement.format(f"{name}_g1").encode())
    for _ in range(2):
        assert "was emptied and filled again" in opened.identities.lost(known)[ITEMS.name]


@pytest.mark.live
@WAREHOUSES
def test_a_table_of_a_warehouse_whose_deletions_were_all_removed_is_the_same_one(
    store: Destination, name: str, warehouse: psycopg.Connection[Any]
) -> None:
    opened = store.opened(name, 1, ITEMS)
    fence = opened.sink.claim()
    opened.sink.apply(batch(item(1, "a", 1), fence=fence))
    opened.sink.apply(batch(delete({"id": 1}, 2, of=ITEMS), fence=fence))
    opened.erasing.erase(ITEMS, {"id": 1}, below=tag(9))
    known = opened.identities.identities([ITEMS.name])
    warehouse.execute(f"vacuum full {name}_g1.items".encode())
    assert opened.identities.lost(known) == {}


@pytest.mark.live
@WAREHOUSES
def test_a_table_of_a_warehouse_that_was_put_back_alone_is_another_one(
    store: Destination, name: str, warehouse: psycopg.Connection[Any]
) -> None:
    opened, known = _filled(store, name)
    schema = f"{name}_g1"
    warehouse.execute(f"create table {schema}.kept (like {schema}.items including all)".encode())
    warehouse.execute(f"insert into {schema}.kept select * from {schema}.items".encode())
    store.remove_items(name)
    warehouse.execute(f"alter table {schema}.kept rename to items".encode())
    assert "another one of its name" in opened.identities.lost(known)[ITEMS.name]


@pytest.mark.live
@WAREHOUSES
def test_no_row_goes_to_a_table_of_a_warehouse_that_was_emptied_since_it_was_known(
    store: Destination, name: str, warehouse: psycopg.Connection[Any]
) -> None:
    """Otherwise it would have rows, and nobody could tell it from a new one."""
    opened = store.opened(name, 1, ITEMS)
    fence = opened.sink.claim()
    known = opened.identities.identities([ITEMS.name])
    opened.sink.apply(replace(batch(item(1, "a", 1), fence=fence), identities=known))
    warehouse.execute(f"truncate {name}_g1.items".encode())
    with pytest.raises(DataLost, match="was emptied"):
        opened.sink.apply(replace(batch(item(2, "b", 2), fence=fence), identities=known))
    assert rows_of(opened.sink) == {}
    assert opened.identities.lost(known) == {ITEMS.name: "items was emptied"}
