"""The destinations of the contract suite: a new sink adds one here."""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import duckdb
import orjson
import psycopg
import pyarrow.dataset as ds
import pytest
import redis
from deltalake import DeltaTable
from opensearchpy import NotFoundError, OpenSearch
from pydantic import SecretStr

from cdc.model.event import Events, JsonValue, RowEvent
from cdc.model.table import Table, TableName
from cdc.model.tag import Tag
from sinks.contract import Batch, OpenedSink, Outcome, Sink, TableVersions
from sinks.delta.settings import DeltaSettings
from sinks.delta.sink import open_delta
from sinks.memory import MemoryStore, open_memory
from sinks.opensearch.settings import OpenSearchSettings
from sinks.opensearch.sink import open_opensearch
from sinks.redis.settings import RedisSettings
from sinks.redis.sink import open_redis
from sinks.view_settings import ViewSettings
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import open_warehouse
from tests.builders import column, table
from tests.contract.copies import (
    PutBack,
    directory_copy,
    file_copy,
    memory_copy,
    opensearch_copy,
    postgres_copy,
    redis_copy,
)

POISON = "poison"


MAX_VALUE_BYTES = 200_000


# Each destination refuses one of these columns for its own reason: see Destination.poison.
ITEMS = table(column("id", "int8"), column("note"), column("number", "int4"), name=TableName("public", "items"))


KEYED = table(column("a"), column("b"), column("note"), name=TableName("My.Schema", "Odd: t%able_g1"), key=("b", "a"))


_VIEW = ViewSettings(name="items", key=("id",), sql="select id, note, number from items")


Reader = Callable[[int], str | None]
"""Finds an item's note by its id, as applications do: by the name that readers know. Raises LookupError if that name
leads nowhere."""


def _no_copy(_: str) -> PutBack:
    raise NotImplementedError


@dataclass
class Destination:
    """One kind of sink: how to open it, read from it as applications do, and break it, and what it refuses for good."""

    open: Callable[[str, int], OpenedSink]
    reader: Callable[[str], AbstractContextManager[Reader]]
    poison: dict[str, JsonValue]
    everything: Callable[[str], str]
    """All that generation 1 of a sink holds, except tables named values, as text."""
    server: str | None = None
    fences: bool = False
    folds_case: bool = False
    """Refuses two tables whose names differ in nothing else."""
    remove: Callable[[str], object] = lambda _: None
    """Removes everything that a sink left behind, for servers that take only so much."""
    remove_items: Callable[[str], object] = lambda _: None
    """Removes, as somebody does by hand, what tells readers or jobs of the table ``ITEMS`` in generation 1."""
    copy: Callable[[str], PutBack] = _no_copy
    """Copies all that a sink holds, and returns a function that puts the copy back."""
    keeps_offsets: bool = False
    """Next offsets are stored with the rows, so that lost rows of a batch can be noticed."""
    forgets: bool = False
    """A copy of it knows nothing of rows that were deleted before, except those of large transactions."""
    sets: Callable[[str], dict[str, set[str]]] | None = None
    """The sets of rows' keys that generation 1 has, if it has any, without the prefix of all keys."""
    names_keys: bool = False
    """Settings refer to key columns by their names."""
    query: Callable[[str], list[tuple[Any, ...]]] | None = None
    """Answers SQL, if the store speaks it."""
    closing: list[Sink] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def sink(self, name: str, generation: int = 1, *tables: Table) -> Sink:
        """A sink of this kind, for tests that only read and write rows. It is prepared if tables are given."""
        return self.opened(name, generation, *tables).sink

    def opened(self, name: str, generation: int = 1, *tables: Table) -> OpenedSink:
        """The same with its generations and coordination records."""
        opened = self.open(name, generation)
        self.closing.append(opened.sink)
        self.names.add(name)
        if tables:
            opened.sink.prepare(tables)
        return opened

    def close(self) -> None:
        for sink in self.closing:
            sink.close()
        for name in self.names:
            self.remove(name)


def refuse_long(event: RowEvent) -> str | None:
    """Refuses long values, like a store."""
    return "too long" if event.row is not None and len(str(event.row.get("note"))) > MAX_VALUE_BYTES else None


def _memory() -> Destination:
    stores: dict[str, MemoryStore] = {}

    def open_(name: str, generation: int) -> OpenedSink:
        return open_memory(stores.setdefault(name, MemoryStore()), generation, refuse=refuse_long)

    @contextmanager
    def reader(name: str) -> Iterator[Reader]:
        def find(number: int) -> str | None:
            store = stores[name]
            if store.live is None:
                raise LookupError(name)
            with store.lock:
                for event in store.generations[store.live].newest[ITEMS.name].values():
                    if event.key["id"] == number and event.row is not None:
                        return str(event.row["note"])
            return None

        yield find

    def remove_items(name: str) -> None:
        generation = stores[name].generations[1]
        for kept in (generation.shapes, generation.newest):
            kept.pop(ITEMS.name)

    return Destination(
        open_,
        reader,
        {"note": POISON * MAX_VALUE_BYTES},
        lambda name: repr(stores[name]),
        remove_items=remove_items,
        fences=True,
        copy=lambda name: memory_copy(stores[name]),
    )


def _redis(endpoints: Any) -> Destination:
    return _redis_laid_out(endpoints, "public.items:{}", lambda row: str(orjson.loads(row[b"v"])["note"]))


def _redis_fields(endpoints: Any) -> Destination:
    """A field per column, keys of one's own, sets, and rows that expire."""
    layout: dict[str, Any] = {
        "keys": {
            "public.items": "item:{id}",
            str(KEYED.name): "odd:{a}:{b}.",
            "public.single": "single:{k}",
            "public.keyed": "{k}",
        },
        "sets": {
            "public.items": ("items:of:{id}", "items:by_number:{number}"),
            "public.values": ("values:by_mood:{mood}",),
        },
        "ttl_s": {"public.items": 3600},
    }
    plain = _redis_laid_out(endpoints, "item:{}", lambda row: row[b"note"].decode(), values="fields", **layout)

    def sets(name: str) -> dict[str, set[str]]:
        begin = f"{name}:g1:"
        with redis.Redis.from_url(endpoints.redis_url, decode_responses=True) as client:
            return {
                key.removeprefix(begin): {member.removeprefix(begin) for member in client.smembers(key)}
                for key in client.scan_iter(f"{begin}*", count=10_000, _type="set")
            }

    return replace(plain, sets=sets, names_keys=True)


def _redis_view(endpoints: Any) -> Destination:
    """As a view's result is stored, with one writer at a time."""
    plain = _redis_laid_out(endpoints, "public.items:{}", lambda row: str(orjson.loads(row[b"v"])["note"]), view=_VIEW)
    return replace(plain, fences=True)


def _redis_laid_out(endpoints: Any, key: str, note: Callable[[dict[bytes, bytes]], str], **layout: Any) -> Destination:
    chosen = RedisSettings(url=SecretStr(endpoints.redis_url), max_value_bytes=MAX_VALUE_BYTES, **layout)

    @contextmanager
    def reader(name: str) -> Iterator[Reader]:
        with redis.Redis.from_url(endpoints.redis_url) as client:

            def find(number: int) -> str | None:
                live: Any = client.get(f"{name}:live")
                if live is None:
                    raise LookupError(name)
                row: Any = client.hgetall(f"{name}:{live.decode()}:{key.format(number)}")
                return note(row) if row.keys() - {b"t", b"x"} else None

            yield find

    def everything(name: str) -> str:
        with redis.Redis.from_url(endpoints.redis_url) as client:
            read: dict[bytes, Callable[[bytes], Any]] = {b"hash": client.hgetall, b"set": client.smembers}
            return repr(
                [
                    (key, read[client.type(key)](key))
                    for key in client.scan_iter(f"{name}:g1*", count=10_000)
                    if not key.endswith((b".progress", b".fence"))
                ]
            )

    def remove_items(name: str) -> None:
        with redis.Redis.from_url(endpoints.redis_url) as client:
            client.delete(f"{name}:g1.tables")

    return Destination(
        lambda name, generation: open_redis(name, chosen, generation),
        reader,
        {"note": POISON * MAX_VALUE_BYTES},
        everything,
        "valkey",
        remove_items=remove_items,
        copy=partial(redis_copy, endpoints.redis_url),
    )


def _opensearch(
    endpoints: Any, items: str = "public.items", values: str = "public.values", **shaping: Any
) -> Destination:
    chosen = OpenSearchSettings(urls=(endpoints.opensearch_url,), replicas=0, timeout_s=10, **shaping)

    @contextmanager
    def reader(name: str) -> Iterator[Reader]:
        with OpenSearch(hosts=[endpoints.opensearch_url]) as client:

            def find(number: int) -> str | None:
                try:
                    answer = client.search(index=f"{name}.{items}", body={"query": {"term": {"id": number}}})
                except NotFoundError:
                    raise LookupError(name) from None
                hits = answer["hits"]["hits"]
                assert len(hits) <= 1, "a row was found twice"
                return hits[0]["_source"]["note"] if hits else None

            yield find

    def everything(name: str) -> str:
        with OpenSearch(hosts=[endpoints.opensearch_url]) as client:
            index = f"{name}.{values}_g1"
            client.indices.refresh(index=index)
            return repr((client.search(index=index, body={}), client.indices.get(index=index)))

    def remove(name: str) -> None:
        with OpenSearch(hosts=[endpoints.opensearch_url]) as client:
            indexes = [index["index"] for index in client.cat.indices(index=f"{name}.*", format="json", h="index")]
            if indexes:
                client.indices.delete(index=",".join(indexes))

    def remove_items(name: str) -> None:
        with OpenSearch(hosts=[endpoints.opensearch_url]) as client:
            client.indices.delete(index=f"{name}.{items}_g1")

    return Destination(
        lambda name, generation: open_opensearch(name, chosen, generation),
        reader,
        {"number": 2**40},
        everything,
        "opensearch",
        remove=remove,
        remove_items=remove_items,
        copy=partial(opensearch_copy, endpoints.opensearch_url),
        forgets=chosen.deletes == "versioned",
    )


def _opensearch_shaped(endpoints: Any) -> Destination:
    """With names, ids and routing of one's own, and deletes that leave markers."""
    shaped = _opensearch(
        endpoints,
        items="items",
        values="all-values",
        names={"public.items": "items", "public.values": "all-values"},
        ids={"public.values": "value:{id}", "public.single": "{k}", str(KEYED.name): "{b}-{a}", "public.keyed": "{k}!"},
        routing={"public.items": ("id",), str(KEYED.name): ("a",), "public.single": ("k",)},
        shards=2,
        deletes="marker",
    )
    return replace(shaped, names_keys=True)


def _opensearch_view(endpoints: Any) -> Destination:
    """See ``_redis_view``."""
    return replace(_opensearch(endpoints, view=_VIEW), fences=True)


def _warehouse(endpoints: Any, **shaping: Any) -> Destination:
    chosen = WarehouseSettings(url=SecretStr(endpoints.warehouse_url), lock_timeout_s=1, **shaping)

    @contextmanager
    def reader(name: str) -> Iterator[Reader]:
        with psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as connection:

            def find(number: int) -> str | None:
                try:
                    row = connection.execute(f"select note from {name}.items where id = %s", (number,)).fetchone()
                except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                    raise LookupError(name) from None
                return None if row is None else str(row[0])

            yield find

    def everything(name: str) -> str:
        with psycopg.connect(endpoints.warehouse_dsn) as connection:
            query = f"select row_to_json(held)::text from {name}_g1.values as held"
            return repr(connection.execute(query).fetchall())

    def remove_items(name: str) -> None:
        with psycopg.connect(endpoints.warehouse_dsn) as connection:
            connection.execute(f"drop table {name}_g1.items cascade".encode())

    def query(text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(endpoints.warehouse_dsn) as connection:
            return connection.execute(text.encode()).fetchall()

    return Destination(
        lambda name, generation: open_warehouse(name, chosen, generation),
        reader,
        {"number": 2**40},
        everything,
        "warehouse",
        fences=True,
        keeps_offsets=True,
        remove_items=remove_items,
        copy=partial(postgres_copy, endpoints.warehouse_dsn),
        query=query,
    )


def _warehouse_history(endpoints: Any) -> Destination:
    """With all versions, which a job would bring: each event of a batch is one. Rows have their time."""
    return _versioned(_warehouse(endpoints, history=True, synced_at=True))


def duckdb_history(endpoints: Any) -> Destination:
    """The same in a file. For tests that only look at rows it is no layout of its own."""
    return _versioned(_duckdb(endpoints, history=True, synced_at=True))


def _versioned(plain: Destination) -> Destination:
    class Versioned:
        def __init__(self, sink: Sink) -> None:
            self._sink = sink

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sink, name)

        def apply(self, given: Batch) -> Outcome:
            if given.versions:
                return self._sink.apply(given)
            versions = []
            for events in Events.of(given.events).tables:
                operations = ["d" if row is None else "u" for row in events.rows]
                times_ms = [Tag.parse(tag).commit_lsn for tag in events.tags]
                versions.append(TableVersions(events, operations, times_ms))
            return self._sink.apply(replace(given, versions=versions))

    def open_(name: str, generation: int) -> OpenedSink:
        opened = plain.open(name, generation)
        return replace(opened, sink=cast("Sink", Versioned(opened.sink)))

    return replace(plain, open=open_)


def _duckdb(_endpoints: Any, **shaping: Any) -> Destination:
    root = Path(tempfile.mkdtemp(prefix="lockstep-duckdb-"))
    url = f"duckdb:///{root}/contract.duckdb"
    chosen = WarehouseSettings(url=SecretStr(url), lock_timeout_s=5, **shaping)
    turn = threading.Lock()

    def read(query: str) -> list[tuple[Any, ...]]:
        # One reader at a time, with pauses in which the file is free: otherwise readers would always overlap.
        with turn:
            time.sleep(0.03)
            while True:
                try:
                    with duckdb.connect(f"{root}/contract.duckdb") as connection:
                        table_rows = connection.sql(query).to_arrow_table().to_pylist()
                        return [tuple(row.values()) for row in table_rows]
                except duckdb.Error as error:
                    if "file handle conflict" not in str(error):  # then the sink has the file
                        raise

    def write(statement: str) -> None:
        """While no sink has the file."""
        with duckdb.connect(f"{root}/contract.duckdb") as connection:
            connection.execute(statement)

    @contextmanager
    def reader(name: str) -> Iterator[Reader]:
        def find(number: int) -> str | None:
            try:
                rows = read(f"select note from {name}.items where id = {number}")
            except duckdb.CatalogException:
                raise LookupError(name) from None
            assert len(rows) <= 1, "a row was found twice"
            return str(rows[0][0]) if rows else None

        yield find

    def open_(name: str, generation: int) -> OpenedSink:
        return open_warehouse(name, chosen, generation)

    return Destination(
        open_,
        reader,
        {"number": 2**40},
        lambda name: repr((read(f"describe {name}_g1.values"), read(f"select * from {name}_g1.values"))),
        fences=True,
        keeps_offsets=True,
        folds_case=True,
        remove=lambda _: shutil.rmtree(root, ignore_errors=True),
        remove_items=lambda name: write(f"drop table {name}_g1.items"),
        copy=lambda _: file_copy(root / "contract.duckdb"),
        query=read,
    )


def _delta(_endpoints: Any) -> Destination:
    root = Path(tempfile.mkdtemp(prefix="lockstep-lake-"))
    chosen = DeltaSettings(root=str(root))

    @contextmanager
    def reader(name: str) -> Iterator[Reader]:
        def find(number: int) -> str | None:
            if not (root / f"{name}_live").exists():
                raise LookupError(name)
            listed = DeltaTable(root / f"{name}_live").to_pyarrow_table().to_pylist()
            paths = [live_table["path"] for live_table in listed if live_table["table_name"] == "items"]
            if not paths:
                raise LookupError(name)
            matching = (
                DeltaTable(root / paths[0])
                .to_pyarrow_dataset()
                .to_table(filter=(ds.field("id") == number) & ~ds.field("_deleted"))
            )
            notes = matching.column("note").to_pylist()
            assert len(notes) <= 1, "a row was found twice"
            return str(notes[0]) if notes else None

        yield find

    def everything(name: str) -> str:
        directory = root / f"{name}_g1" / "values"
        log = [file.read_text() for file in (directory / "_delta_log").glob("*.json")]
        return repr((DeltaTable(directory).to_pyarrow_table().to_pylist(), log))

    return Destination(
        lambda name, generation: open_delta(name, chosen, generation),
        reader,
        {"number": 2**40},
        everything,
        fences=True,
        remove=lambda _: shutil.rmtree(root, ignore_errors=True),
        remove_items=lambda name: shutil.rmtree(root / f"{name}_g1" / "items"),
        copy=lambda name: directory_copy(root, name, Path(tempfile.mkdtemp(prefix="copy-", dir=root))),
    )


KINDS: dict[str, Callable[[Any], Destination]] = {
    "redis": _redis,
    "redis-fields": _redis_fields,
    "redis-view": _redis_view,
    "opensearch": _opensearch,
    "opensearch-shaped": _opensearch_shaped,
    "opensearch-view": _opensearch_view,
    "warehouse": _warehouse,
    "warehouse-history": _warehouse_history,
    "duckdb": _duckdb,
    "delta": _delta,
}
LAYOUTS = ("redis-fields", "opensearch-shaped", "warehouse-history")
"""Other layouts of rows on servers that have a kind above."""
VIEWS = ("redis-view", "opensearch-view")
"""Views' results on servers that fence nothing else, for tests of writers."""


CAN: dict[str, frozenset[str]] = {
    "memory": frozenset(),
    "redis": frozenset({"erasing", "identities"}),
    "opensearch": frozenset({"bulk", "erasing", "identities", "refreshing"}),
    "warehouse": frozenset({"bulk", "erasing", "identities", "whole"}),
    "duckdb": frozenset({"bulk", "erasing", "identities"}),
    "delta": frozenset({"bulk", "erasing", "identities"}),
}
"""Each kind's capabilities besides the contract, whatever its layout: fields of ``OpenedSink``."""


def able(kind: str) -> frozenset[str]:
    """The capabilities of a kind, in one of its layouts."""
    return CAN[kind.partition("-")[0]]


def real(*, views: bool = False, needs: Collection[str] = ()) -> list[Any]:
    """The kinds beside the one in memory that have these capabilities, as parameters. Other layouts are for
    ``make soak``."""

    def marks(kind: str) -> list[pytest.MarkDecorator]:
        return [pytest.mark.live, *([pytest.mark.soak] if kind in LAYOUTS else [])]

    kinds = [kind for kind in KINDS if (views or kind not in VIEWS) and able(kind).issuperset(needs)]
    return [pytest.param(kind, marks=marks(kind)) for kind in kinds]


def with_servers() -> list[Any]:
    """Those of them that need a server."""
    return [param for param in real() if param.values[0] not in ("duckdb", "delta")]


def opened_destination(kind: str, endpoints: Callable[[], Any]) -> Destination:
    """The destination of a kind. Asks for the servers only if it needs one."""
    return _memory() if kind == "memory" else KINDS[kind](endpoints())
