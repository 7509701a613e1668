"""What every sink promises, in memory and against real servers. A new sink adds one ``Destination`` here."""

import random
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import duckdb
import orjson
import psycopg
import pyarrow.dataset as ds
import pytest
import redis
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opensearchpy import NotFoundError, OpenSearch
from pydantic import SecretStr

from cdc.model.errors import Fenced, LockstepError, Unavailable
from cdc.model.event import Events, JsonValue, RowEvent
from cdc.model.table import Table, TableName
from cdc.model.tag import Tag
from jobs.query.column_backfill import backfill_columns
from sinks.contract import AddedValues, Batch, OpenedSink, Outcome, Sink, TableVersions
from sinks.delta.sink import DeltaSettings, open_delta
from sinks.memory import MemorySink, MemoryStore, open_memory
from sinks.opensearch.settings import OpenSearchSettings
from sinks.opensearch.sink import open_opensearch
from sinks.redis.sink import RedisSettings, open_redis
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import open_warehouse
from sinks.wrappers.masks import Salt, Truncation
from sinks.wrappers.projecting import ProjectingSink
from sinks.wrappers.projection import Projection
from sinks.wrappers.renaming import Renaming
from sinks.wrappers.retrying import Retries, Waiting, retrying
from tests.builders import batch, column, delete, progress, table, tag, upsert
from tests.examples import examples

POISON = "poison"
MAX_VALUE_BYTES = 200_000

# One column that each destination refuses for its own reason: see Destination.poison.
ITEMS = table(column("id", "int8"), column("note"), column("number", "int4"), name=TableName("public", "items"))


Reader = Callable[[int], str | None]
"""Finds an item's note by its id, as applications do: by the name that readers know. Raises LookupError where that name
leads nowhere."""


@dataclass
class Destination:
    """One kind of sink: how to open it, how to read from it as applications do, how to break it, what it refuses for good."""

    open: Callable[[str, int], OpenedSink]
    reader: Callable[[str], AbstractContextManager[Reader]]
    poison: dict[str, JsonValue]
    everything: Callable[[str], str]
    """All that generation 1 of a sink holds, tables called values, as text."""
    server: str | None = None
    fences: bool = False
    folds_case: bool = False
    """Two tables whose names differ in nothing else are refused."""
    remove: Callable[[str], object] = lambda _: None
    """Removes all that a sink left behind, where the server takes so much only."""
    closing: list[Sink] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def sink(self, name: str, generation: int = 1, *tables: Table) -> Sink:
        """A sink of this kind, for tests that read and write rows only; prepared when tables are given."""
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


def _memory() -> Destination:
    stores: dict[str, MemoryStore] = {}

    def refuse(event: RowEvent) -> str | None:
        return "too long" if event.row is not None and len(str(event.row.get("note"))) > MAX_VALUE_BYTES else None

    def open_(name: str, generation: int) -> OpenedSink:
        return open_memory(stores.setdefault(name, MemoryStore()), generation, refuse=refuse)

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

    return Destination(open_, reader, {"note": POISON * MAX_VALUE_BYTES}, lambda name: repr(stores[name]), fences=True)


def _redis(endpoints: Any) -> Destination:
    return _redis_laid_out(endpoints, "public.items:{}", lambda row: str(orjson.loads(row[b"v"])["note"]))


def _redis_fields(endpoints: Any) -> Destination:
    """A field per column, names and keys of one's own, sets, and rows that expire."""
    layout: dict[str, Any] = {
        "names": {"public.items": "item"},
        "keys": {
            str(KEYED.name): "odd:{a}:{b}.",
            "public.single": "single:{k}",
            "public.keyed": "{k}",
        },
        "sets": {"public.items": ("items:of:{id}",), "public.values": ("values:by_mood:{mood}",)},
        "ttl_s": {"public.items": 3600},
    }
    return _redis_laid_out(endpoints, "item:{}", lambda row: row[b"note"].decode(), values="fields", **layout)


def _redis_laid_out(endpoints: Any, key: str, note: Callable[[dict[bytes, bytes]], str], **layout: Any) -> Destination:
    chosen = RedisSettings(url=SecretStr(endpoints.redis_url), max_value_bytes=MAX_VALUE_BYTES, timeout_s=5, **layout)

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
                    if key[-9:] != b".progress"
                ]
            )

    return Destination(
        lambda name, generation: open_redis(name, chosen, generation),
        reader,
        {"note": POISON * MAX_VALUE_BYTES},
        everything,
        "valkey",
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
            indexes = [found["index"] for found in client.cat.indices(index=f"{name}.*", format="json", h="index")]
            if indexes:
                client.indices.delete(index=",".join(indexes))

    return Destination(
        lambda name, generation: open_opensearch(name, chosen, generation),
        reader,
        {"number": 2**40},
        everything,
        "opensearch",
        remove=remove,
    )


def _opensearch_shaped(endpoints: Any) -> Destination:
    """With names, ids and routing of one's own, and deletes that leave markers."""
    return _opensearch(
        endpoints,
        items="items",
        values="all-values",
        names={"public.items": "items", "public.values": "all-values"},
        ids={"public.values": "value:{id}", "public.single": "{k}", str(KEYED.name): "{b}-{a}", "public.keyed": "{k}!"},
        routing={"public.items": ("id",), str(KEYED.name): ("a",), "public.single": ("k",)},
        shards=2,
        deletes="marker",
    )


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

    return Destination(
        lambda name, generation: open_warehouse(name, chosen, generation),
        reader,
        {"number": 2**40},
        everything,
        "warehouse",
        fences=True,
    )


def _warehouse_history(endpoints: Any) -> Destination:
    """With all versions kept, which a job would bring: each event of a batch is one."""
    return _versioned(_warehouse(endpoints, history=True))


def _versioned(plain: Destination) -> Destination:
    class Versioned:
        def __init__(self, sink: Sink) -> None:
            self._sink = sink

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sink, name)

        def apply(self, given: Batch) -> Outcome:
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


def _duckdb(_endpoints: Any) -> Destination:
    root = Path(tempfile.mkdtemp(prefix="lockstep-duckdb-"))
    url = f"duckdb:///{root}/contract.duckdb"
    chosen = WarehouseSettings(url=SecretStr(url), lock_timeout_s=5)
    turn = threading.Lock()

    def read(query: str) -> list[tuple[Any, ...]]:
        # One reader at a time, and for half of it the file is free: else they would never let go of it together.
        with turn:
            time.sleep(0.03)
            while True:
                try:
                    with duckdb.connect(f"{root}/contract.duckdb") as connection:
                        found = connection.sql(query).to_arrow_table().to_pylist()
                        return [tuple(row.values()) for row in found]
                except duckdb.Error as error:
                    if "file handle conflict" not in str(error):  # then the sink has the file
                        raise

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
        folds_case=True,
        remove=lambda _: shutil.rmtree(root, ignore_errors=True),
    )


def _delta(_endpoints: Any) -> Destination:
    root = Path(tempfile.mkdtemp(prefix="lockstep-lake-"))
    chosen = DeltaSettings(root=str(root), optimize_every_commits=20)

    @contextmanager
    def reader(name: str) -> Iterator[Reader]:
        def find(number: int) -> str | None:
            if not (root / f"{name}_live").exists():
                raise LookupError(name)
            listed = DeltaTable(root / f"{name}_live").to_pyarrow_table().to_pylist()
            paths = [one["path"] for one in listed if one["table_name"] == "items"]
            if not paths:
                raise LookupError(name)
            found = (
                DeltaTable(root / paths[0])
                .to_pyarrow_dataset()
                .to_table(filter=(ds.field("id") == number) & ~ds.field("_deleted"))
            )
            notes = found.column("note").to_pylist()
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
    )


_REAL = {
    "redis": _redis,
    "redis-fields": _redis_fields,
    "opensearch": _opensearch,
    "opensearch-shaped": _opensearch_shaped,
    "warehouse": _warehouse,
    "warehouse-history": _warehouse_history,
    "duckdb": _duckdb,
    "delta": _delta,
}
_SERVERLESS = ("duckdb", "delta")
_LIVE = [pytest.param(kind, marks=pytest.mark.live) for kind in _REAL]


@pytest.fixture(params=["memory", *_LIVE])
def destination(request: pytest.FixtureRequest) -> Iterator[Destination]:
    made = _memory() if request.param == "memory" else _REAL[request.param](request.getfixturevalue("endpoints"))
    yield made
    made.close()


def rows_of(sink: Sink, of: Table = ITEMS) -> dict[str, str]:
    """Live rows, as key -> note."""
    found = [(str(tuple(stored.key.values())), str(stored.row["note"])) for stored in sink.scan(of)]
    assert len(found) == len(dict(found)), "a row was found twice"
    return dict(found)


def item(number: int, note: str, at: int | str, **others: JsonValue) -> RowEvent:
    return upsert({"id": number, "note": note, "number": 1, **others}, at, of=ITEMS)


def gone(number: int, at: int | str) -> RowEvent:
    return delete({"id": number}, at, of=ITEMS)


def counts(outcome: Outcome) -> tuple[int, int, int]:
    return outcome.applied, outcome.stale, len(outcome.rejections)


# A batch's order


def test_the_same_batch_twice_changes_nothing(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    events = [item(1, "a", 1), item(2, "b", 1), gone(3, 1)]
    assert counts(sink.apply(batch(*events))) == (3, 0, 0)
    assert counts(sink.apply(batch(*events))) == (0, 3, 0)
    assert rows_of(sink) == {"(1,)": "a", "(2,)": "b"}


def test_an_older_batch_after_a_newer_one_changes_nothing(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "new", 2), item(2, "only", 2)))
    assert counts(sink.apply(batch(item(1, "old", 1), item(3, "other", 1)))) == (1, 1, 0)
    assert rows_of(sink) == {"(1,)": "new", "(2,)": "only", "(3,)": "other"}


def test_a_replay_replaces_rows_of_the_same_tag_and_never_newer_ones(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "as the bug made it", 1), item(2, "newer", 2), item(3, "a row that should not be", 1)))
    sink.apply(batch(gone(4, 1)))
    again = batch(
        item(1, "right", 1), item(2, "older", 1), gone(3, 1), item(4, "there after all", 1), item(5, "new", 1)
    )
    assert counts(sink.apply(replace(again, overwrite_equal_tags=True))) == (4, 1, 0)
    assert rows_of(sink) == {"(1,)": "right", "(2,)": "newer", "(4,)": "there after all", "(5,)": "new"}
    assert counts(sink.apply(batch(item(1, "wrong again", 1)))) == (0, 1, 0)
    assert rows_of(sink)["(1,)"] == "right"


def test_an_empty_batch_is_fine(destination: Destination, name: str) -> None:
    assert counts(destination.sink(name, 1, ITEMS).apply(batch())) == (0, 0, 0)


def test_a_deleted_row_stays_deleted_when_a_stale_write_comes(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "a", 1)))
    sink.apply(batch(gone(1, 3)))
    assert counts(sink.apply(batch(item(1, "stale", 2)))) == (0, 1, 0)
    assert rows_of(sink) == {}


def test_a_row_that_never_was_here_stays_deleted_too(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(gone(1, 3)))
    sink.apply(batch(item(1, "stale", 2)))
    assert rows_of(sink) == {}


def test_a_deleted_row_can_be_inserted_again(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "first", 1)))
    sink.apply(batch(gone(1, 2)))
    sink.apply(batch(item(1, "second", 3)))
    assert rows_of(sink) == {"(1,)": "second"}


def test_a_changed_key_moves_the_row(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "a", 1)))
    sink.apply(batch(gone(1, tag(2, 1)), item(7, "a", tag(2, 2))))
    assert rows_of(sink) == {"(7,)": "a"}


def test_the_newest_of_many_changes_wins_whatever_their_order(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    changes = [item(1, f"v{n}", tag(n // 10, 1 + n % 10)) for n in range(1000)]
    random.Random(7).shuffle(changes)
    for change in changes:
        sink.apply(batch(change))
    assert rows_of(sink) == {"(1,)": "v999"}


def test_changes_beyond_4095_of_one_transaction_are_applied_in_order(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    for seq in (4000, 4095, 5000, 6000):
        sink.apply(batch(item(1, f"seq {seq}", tag(1, seq))))
    assert rows_of(sink) == {"(1,)": "seq 6000"}


def test_a_large_batch_is_applied_whole(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    events = [item(n, f"n{n}", 1) for n in range(5000)]
    assert counts(sink.apply(batch(*events))) == (5000, 0, 0)
    assert rows_of(sink) == {f"({n},)": f"n{n}" for n in range(5000)}


def test_two_writers_on_the_same_keys_end_with_the_newest(destination: Destination, name: str) -> None:
    destination.sink(name, 1, ITEMS)
    failures: list[BaseException] = []

    def write(seed: int) -> None:
        opened = destination.opened(name, 1)
        picks = random.Random(seed)
        patient = _patient(opened, []).sink
        try:
            for _ in range(30):
                keys = picks.sample(range(20), 10)
                at = picks.randrange(1, 500)
                patient.apply(batch(*(item(key, f"commit {at}", at) for key in keys)))
                written.extend((key, at) for key in keys)
        except BaseException as error:
            failures.append(error)

    written: list[tuple[int, int]] = []
    writers = [threading.Thread(target=write, args=(seed,)) for seed in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    newest_of = {key: max(at for other, at in written if other == key) for key, _ in written}
    assert rows_of(destination.sink(name, 1)) == {f"({key},)": f"commit {at}" for key, at in newest_of.items()}


# Poison


def test_a_poison_row_is_rejected_and_its_neighbours_are_applied(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    bad = item(50, "bad", 1)
    bad = replace(bad, row={**(bad.row or {}), **destination.poison})
    events = [item(n, f"n{n}", 1) for n in range(100) if n != 50]
    outcome = sink.apply(batch(*events[:40], bad, *events[40:]))
    assert counts(outcome) == (99, 0, 1)
    assert outcome.rejections[0].event == bad
    assert rows_of(sink) == {f"({n},)": f"n{n}" for n in range(100) if n != 50}


def test_a_rejection_has_a_reason_without_the_rows_values(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    bad = item(50, "secret-note", 1)
    bad = replace(bad, row={**(bad.row or {}), **destination.poison})
    (rejection,) = sink.apply(batch(bad)).rejections
    assert rejection.reason
    for secret in ("secret-note", POISON, str(2**40)):
        assert secret not in rejection.reason


def test_several_poison_rows_are_found(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    events = [item(n, f"n{n}", 1) for n in range(64)]
    for n in (0, 17, 18, 63):
        events[n] = replace(events[n], row={**(events[n].row or {}), **destination.poison})
    outcome = sink.apply(batch(*events))
    assert counts(outcome) == (60, 0, 4)
    assert sorted(rejection.event.key["id"] for rejection in outcome.rejections) == [0, 17, 18, 63]  # type: ignore[type-var]


# Generations


def test_the_first_generation_becomes_live_by_itself(destination: Destination, name: str) -> None:
    opened = destination.opened(name, 1)
    assert opened.generations.live() is None
    opened.sink.prepare([ITEMS])
    assert opened.generations.live() == 1


def test_a_second_generation_is_built_beside_the_first_and_switched(destination: Destination, name: str) -> None:
    old = destination.opened(name, 1, ITEMS)
    new = destination.opened(name, 2, ITEMS)
    old.sink.apply(batch(item(1, "old", 1)))
    assert counts(new.sink.apply(batch(item(1, "rebuilt", 1)))) == (1, 0, 0)
    assert (new.generations.live(), rows_of(old.sink), rows_of(new.sink)) == (1, {"(1,)": "old"}, {"(1,)": "rebuilt"})
    new.generations.switch()
    assert old.generations.live() == 2
    old.generations.switch()
    assert new.generations.live() == 1


def test_the_live_generation_is_not_dropped(destination: Destination, name: str) -> None:
    opened = destination.opened(name, 1, ITEMS)
    with pytest.raises(LockstepError, match="live"):
        opened.generations.drop()


def test_a_dropped_generation_leaves_the_others_alone(destination: Destination, name: str) -> None:
    old = destination.opened(name, 1, ITEMS)
    new = destination.opened(name, 2, ITEMS)
    old.sink.apply(batch(item(1, "old", 1)))
    old.generations.save_progress(progress())
    new.sink.apply(batch(item(1, "new", 1)))
    new.generations.switch()
    old.generations.drop()
    assert rows_of(new.sink) == {"(1,)": "new"}
    assert destination.opened(name, 1).generations.load_progress() is None
    with pytest.raises(LockstepError):
        destination.sink(name, 1).apply(batch(item(1, "late", 2)))


def test_a_generation_that_never_was_is_not_switched_to(destination: Destination, name: str) -> None:
    destination.sink(name, 1, ITEMS)
    with pytest.raises(LockstepError, match="doesn't exist"):
        destination.opened(name, 9).generations.switch()


def test_a_dropped_generation_can_be_built_again(destination: Destination, name: str) -> None:
    destination.sink(name, 1, ITEMS).apply(batch(item(1, "kept", 1)))
    second = destination.opened(name, 2, ITEMS)
    second.sink.apply(batch(item(1, "first try", 1)))
    second.generations.drop()
    again = destination.sink(name, 2, ITEMS)
    assert rows_of(again) == {}
    assert counts(again.apply(batch(item(1, "second try", 1)))) == (1, 0, 0)


def test_a_generation_that_may_not_go_live_does_not(destination: Destination, name: str) -> None:
    opened = destination.opened(name, 1)
    opened.sink.prepare([ITEMS], go_live=False)
    opened.sink.apply(batch(item(1, "a", 1)))
    opened.sink.prepare([ITEMS], go_live=False)
    assert opened.generations.live() is None
    with destination.reader(name) as find:
        with pytest.raises(LookupError):
            find(1)
        opened.generations.switch()
        assert (opened.generations.live(), find(1)) == (1, "a")


def test_a_live_generation_stays_live_whatever_is_prepared(destination: Destination, name: str) -> None:
    live = destination.opened(name, 1, ITEMS)
    destination.sink(name, 2).prepare([ITEMS], go_live=False)
    destination.sink(name, 3, ITEMS)
    live.sink.prepare([ITEMS], go_live=False)
    assert live.generations.live() == 1


def test_generations_are_listed_while_they_exist(destination: Destination, name: str) -> None:
    first = destination.opened(name, 1)
    assert first.generations.numbers() == []
    destination.sink(name, 10, ITEMS)
    destination.sink(name, 2, ITEMS)
    first.sink.prepare([ITEMS])
    assert (first.generations.numbers(), destination.opened(name, 99).generations.numbers()) == ([1, 2, 10], [1, 2, 10])
    destination.opened(name, 2).generations.drop()
    assert first.generations.numbers() == [1, 10]
    assert destination.opened(f"{name}x", 1).generations.numbers() == []


@pytest.mark.parametrize("columns", [ITEMS.columns, (column("note"), column("id", "int8"), column("extra"))])
def test_a_reader_misses_nothing_while_generations_are_switched(
    destination: Destination, name: str, columns: tuple[Any, ...]
) -> None:
    """Also when the other generation has other columns."""
    other = replace(ITEMS, columns=columns)
    sinks = [destination.opened(name, 1, ITEMS), destination.opened(name, 2, other)]
    sinks[0].sink.apply(batch(*(item(n, f"n{n}", 1) for n in range(20))))
    sinks[1].sink.apply(batch(*(upsert({"id": n, "note": f"n{n}"}, 1, of=other) for n in range(20))))
    patient = [_patient(opened, [], time.sleep) for opened in sinks]
    patient[0].generations.switch()
    failures: list[object] = []
    reads = [0, 0, 0]
    over = threading.Event()

    def poll(place: int) -> None:
        try:
            with destination.reader(name) as find:
                while not over.is_set():
                    number = reads[place] % 20
                    reads[place] += 1
                    note = find(number)
                    if note != f"n{number}":
                        failures.append((number, note))
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=poll, args=(place,)) for place in range(len(reads))]
    for reader in readers:
        reader.start()
    seen = 0
    for turn in range(20):
        patient[(turn + 1) % 2].generations.switch()
        assert sinks[0].generations.live() == (turn + 1) % 2 + 1
        seen = sum(reads)
        while sum(reads) < seen + 10 and not failures:
            time.sleep(0.001)
    over.set()
    for reader in readers:
        reader.join()
    assert failures == []


# Notes


def test_a_note_is_seen_by_every_generation_and_process(destination: Destination, name: str) -> None:
    writer, reader = destination.opened(name, 1), destination.opened(name, 2)
    assert reader.records.load("g2.state") is None
    writer.records.save("g2.state", "before prepare")
    assert reader.records.load("g2.state") == "before prepare"
    writer.sink.prepare([ITEMS])
    for text in ("", 'odd "text" with 100% \\ ü🙂\n', "x" * 100_000):
        writer.records.save("g2.state", text)
        assert reader.records.load("g2.state") == text
    assert destination.opened(f"{name}x", 2).records.load("g2.state") is None
    writer.records.save("g2.state", None)
    writer.records.save("g2.state", None)
    assert reader.records.load("g2.state") is None


def test_notes_and_progress_are_kept_apart(destination: Destination, name: str) -> None:
    opened = destination.opened(name, 1, ITEMS)
    for note in ("g1", "progress", "g1.progress", "live", "notes"):
        opened.records.save(note, f"note {note}")
    opened.generations.save_progress(progress(7))
    assert opened.generations.load_progress() == progress(7)
    assert opened.records.load("g1") == "note g1"
    assert opened.generations.live() == 1


def test_a_dropped_generation_takes_its_notes_along(destination: Destination, name: str) -> None:
    destination.sink(name, 1, ITEMS)
    dropped = destination.opened(name, 2, ITEMS)
    notes = ["g2.a", "g2.b.c", "g2", "g20.a", "g1.a", "other-g2.a", "g2_a", "g2-a"]
    for note in notes:
        dropped.records.save(note, note)
    dropped.generations.drop()
    assert {note for note in notes if dropped.records.load(note) is None} == {"g2.a", "g2.b.c"}


@pytest.mark.parametrize("note", ["first", "second"])
def test_a_note_is_created_by_one_of_many_at_once(destination: Destination, name: str, note: str) -> None:
    """Also where the sink has nothing yet."""
    if note == "second":
        destination.opened(name, 1).records.save("first", "there")
    together = threading.Barrier(4)
    created: list[str] = []
    failures: list[BaseException] = []

    def create(text: str) -> None:
        opened = _patient(destination.opened(name, 1), [], time.sleep)
        try:
            together.wait(30)
            if opened.records.create(note, text):
                created.append(text)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=create, args=(f"of {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(created) == 1
    assert destination.opened(name, 2).records.load(note) == created[0]


def test_a_note_is_created_again_once_it_was_removed(destination: Destination, name: str) -> None:
    opened = destination.opened(name, 1)
    assert opened.records.create("a", "first")
    assert not opened.records.create("a", "first")
    opened.records.save("a", "changed")
    assert not opened.records.create("a", "second")
    assert opened.records.load("a") == "changed"
    opened.records.save("a", None)
    assert opened.records.create("a", "third")
    assert opened.records.load("a") == "third"


# Tables that leave


OTHERS = replace(ITEMS, name=TableName("public", "item"))  # its name begins that of the other
HELD = TableName("public", "items*")


def test_tables_that_are_not_kept_are_gone_and_no_others(destination: Destination, name: str) -> None:
    held = replace(ITEMS, name=HELD)
    opened = destination.opened(name, 1, ITEMS, OTHERS, held)
    beside = destination.opened(name, 2, ITEMS, OTHERS, held)
    neighbour = destination.opened(f"{name}x", 1, ITEMS, OTHERS, held)
    for one in (opened, beside, neighbour):
        one.sink.apply(batch(*(_named(of) for of in (ITEMS, OTHERS, held)), fence=one.sink.claim()))
        one.records.save("g1.a", "kept")
    opened.generations.save_progress(progress(7))
    assert opened.generations.keep_only([ITEMS.name]) == [OTHERS.name, HELD]
    assert rows_of(opened.sink) == {"(1,)": "public.items"}
    assert opened.generations.live() == 1
    for of in (OTHERS, held):
        with pytest.raises(LockstepError):
            rows_of(destination.sink(name, 1), of)
        assert rows_of(beside.sink, of) == rows_of(neighbour.sink, of) == {"(1,)": str(of.name)}
    assert (opened.generations.load_progress(), opened.records.load("g1.a")) == (progress(7), "kept")
    assert destination.opened(name, 1).generations.keep_only([ITEMS.name]) == []
    with destination.reader(name) as find:
        assert find(1) == "public.items"


def test_a_table_that_comes_back_is_empty(destination: Destination, name: str) -> None:
    opened = destination.opened(name, 1, ITEMS, OTHERS)
    opened.sink.apply(batch(_named(ITEMS), _named(OTHERS), fence=opened.sink.claim()))
    assert opened.generations.keep_only([OTHERS.name]) == [ITEMS.name]
    with destination.reader(name) as find, suppress(LookupError):  # mostly the name that readers know is gone, too
        assert find(1) is None
    opened.sink.prepare([ITEMS, OTHERS])
    assert (rows_of(opened.sink), rows_of(opened.sink, OTHERS)) == ({}, {"(1,)": "public.item"})
    # Nothing is remembered of what was there, so an older event is taken, too.
    opened.sink.apply(batch(upsert({"id": 2, "note": "a", "number": 1}, 1, of=ITEMS), fence=opened.sink.claim()))
    assert rows_of(opened.sink) == {"(2,)": "a"}
    with destination.reader(name) as find:
        assert find(2) == "a"


def test_where_nothing_is_nothing_is_removed(destination: Destination, name: str) -> None:
    assert destination.opened(name, 1).generations.keep_only([]) == []
    destination.sink(name, 1, ITEMS)
    assert destination.opened(name, 2).generations.keep_only([]) == []
    assert rows_of(destination.sink(name, 1)) == {}


def _named(of: Table) -> RowEvent:
    return upsert({"id": 1, "note": str(of.name), "number": 1}, 5, of=of)


# Shapes


def test_prepare_twice_changes_nothing(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "a", 1)))
    sink.prepare([ITEMS])
    destination.sink(name, 1, ITEMS)
    assert rows_of(sink) == {"(1,)": "a"}


def test_a_new_column_is_added_before_the_first_row_that_has_it(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "a", 1)))
    wider = replace(ITEMS, columns=(*ITEMS.columns, column("added", "jsonb")))
    sink.prepare([wider])
    sink.apply(batch(upsert({"id": 2, "note": "b", "number": 1, "added": '{"x": 1}'}, 2, of=wider)))
    found = {stored.row["id"]: stored.row["added"] for stored in sink.scan(wider)}
    assert found == {1: None, 2: '{"x": 1}'}


GRADED = replace(ITEMS, columns=(*ITEMS.columns, column("grade", "int4")))


def _carried(sink: Sink, of: Table, left: AddedValues) -> int:
    """What a job does with what ``prepare`` leaves to it: how many rows it has carried over."""
    values = left.get(of.name, {})
    if not values:
        return 0
    carried = backfill_columns(sink, of, values, fence=0, enter=lambda: True, leave=lambda _: None)
    assert (carried.is_over, carried.refused) == (True, 0)
    return carried.rows


@pytest.mark.parametrize("in_bulk", [False, True], ids=["", "in bulk"])
def test_rows_that_are_there_get_what_a_column_was_added_with(
    destination: Destination, name: str, in_bulk: bool
) -> None:
    opened = destination.opened(name, 1)
    opened.sink.prepare([ITEMS], go_live=not in_bulk)
    if in_bulk:
        opened.generations.begin_bulk()
    opened.sink.apply(batch(item(1, "a", 1), item(2, "b", 1), item(3, "c", 1), item(4, "d", 1)))
    opened.sink.apply(batch(gone(4, 2)))
    added = {ITEMS.name: {"grade": 5}}
    _carried(opened.sink, GRADED, opened.sink.prepare([GRADED], go_live=not in_bulk, added=added))
    # Rows of the new shape say themselves what they have, null included.
    rows = [{"id": number, "note": "n", "number": 1, "grade": grade} for number, grade in ((2, None), (5, 7))]
    opened.sink.apply(batch(*(upsert(row, 3, of=GRADED) for row in rows)))
    assert _carried(opened.sink, GRADED, opened.sink.prepare([GRADED], go_live=not in_bulk, added=added)) == 0
    if in_bulk:
        opened.generations.end_bulk()
    assert {stored.row["id"]: stored.row["grade"] for stored in opened.sink.scan(GRADED)} == {1: 5, 2: None, 3: 5, 5: 7}
    assert rows_of(opened.sink) == {"(1,)": "a", "(2,)": "n", "(3,)": "c", "(5,)": "n"}


def test_a_newer_event_wins_over_a_row_that_is_carried_over(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(*(item(number, "old", 1) for number in range(6))))
    left = sink.prepare([GRADED], added={ITEMS.name: {"grade": 5}})

    class Overtaken:
        """Another job's newer events come when the rows have been read, and just before they are written."""

        def __getattr__(self, name: str) -> Any:
            return getattr(sink, name)

        def apply(self, given: Batch) -> Outcome:
            newer: dict[str, JsonValue] = {"id": 1, "note": "newer", "number": 1, "grade": 7}
            sink.apply(batch(upsert(newer, 2, of=GRADED), gone(2, 2)))
            return sink.apply(given)

    _carried(cast("Sink", Overtaken()), GRADED, left)
    found = {stored.row["id"]: (stored.row["note"], stored.row["grade"]) for stored in sink.scan(GRADED)}
    if left:
        assert found == {0: ("old", 5), 1: ("newer", 7), 3: ("old", 5), 4: ("old", 5), 5: ("old", 5)}
    else:
        assert found == dict.fromkeys(range(6), ("old", 5))


def test_what_a_column_was_added_with_is_the_same_value_in_every_type(destination: Destination, name: str) -> None:
    pairs = [pair for row in (PLAIN, *ODD) for pair in row.items()]
    values = [(of, value) for of, value in pairs if of != "id" and value is not None and len(str(value)) < 50_000]
    columns = [replace(VALUES.column(of), name=f"added {place}") for place, (of, _) in enumerate(values)]
    wider = replace(ITEMS, columns=(*ITEMS.columns, *columns))
    added = {f"added {place}": value for place, (_, value) in enumerate(values)}
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "from before", 1)))
    _carried(sink, wider, sink.prepare([wider], added={ITEMS.name: added}))
    sink.apply(batch(upsert({"id": 2, "note": "written", "number": 1, **added}, 2, of=wider)))
    before, written = sorted((dict(stored.row) for stored in sink.scan(wider)), key=lambda row: str(row["id"]))
    assert {name: before[name] for name in added} == {name: written[name] for name in added} == added


def test_a_row_with_null_is_told_from_one_that_lacks_the_column(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "a", 1)))
    wider = replace(ITEMS, columns=(*ITEMS.columns, column("number 2", "int4"), column("doc", "jsonb")))
    left = sink.prepare([wider], added={ITEMS.name: {"number 2": 5}})
    row: dict[str, JsonValue] = {"id": 2, "note": "b", "number": None, "number 2": None, "doc": None}
    sink.apply(batch(upsert(row, 2, of=wider)))
    lacks = {stored.row["id"]: sorted(stored.lacks) for stored in sink.scan(wider)}
    assert lacks == {1: ["doc", "number 2"] if left else [], 2: []}
    assert {stored.row["id"]: sorted(stored.lacks) for stored in sink.rows(wider, [{"id": 1}, {"id": 2}])} == lacks


def test_a_job_that_runs_on_sees_a_column_that_another_one_added(destination: Destination, name: str) -> None:
    worker = destination.sink(name, 1, ITEMS)
    worker.apply(batch(item(1, "a", 1)))
    wider = replace(ITEMS, columns=(*ITEMS.columns, column("added", "text")))
    destination.sink(name, 1, wider)
    worker.apply(batch(upsert({"id": 2, "note": "b", "number": 1, "added": "x"}, 2, of=wider)))
    assert {stored.row["id"]: stored.row["added"] for stored in worker.scan(wider)} == {1: None, 2: "x"}


def test_rows_go_on_without_a_column_that_the_source_dropped(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    narrower = replace(ITEMS, columns=ITEMS.columns[:2])
    sink.prepare([narrower])
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1, of=narrower)))
    assert rows_of(sink, narrower) == {"(1,)": "a"}


@pytest.mark.parametrize(
    "other",
    [
        replace(ITEMS, key=("id", "note")),
        replace(ITEMS, columns=(column("id", "text"), *ITEMS.columns[1:])),
        replace(ITEMS, columns=(ITEMS.columns[0], column("renamed"), ITEMS.columns[2])),
    ],
    ids=["key", "type", "rename"],
)
def test_another_shape_needs_a_new_generation(destination: Destination, name: str, other: Table) -> None:
    sink = destination.sink(name, 1, ITEMS)
    with pytest.raises(LockstepError, match="lockstep rebuild"):
        sink.prepare([other])
    destination.sink(name, 2, other)


def test_an_unprepared_table_is_an_error(destination: Destination, name: str) -> None:
    destination.sink(name, 1, ITEMS)
    with pytest.raises(LockstepError, match="not prepared"):
        destination.sink(name, 1).apply(batch(upsert({"id": 1, "note": "a"}, 1)))


def test_tables_of_the_same_name_in_two_schemas_are_kept_apart(destination: Destination, name: str) -> None:
    tables = [replace(ITEMS, name=TableName(schema, "items")) for schema in ("public", "sales", "Sales")]
    if destination.folds_case:
        with pytest.raises(LockstepError, match="same name"):
            destination.sink(name, 1, *tables)
        tables = tables[:2]
    sink = destination.sink(name, 1, *tables)
    for number, of in enumerate(tables):
        sink.apply(batch(upsert({"id": 1, "note": f"n{number}", "number": 1}, 1, of=of)))
    assert [rows_of(sink, of) for of in tables] == [{"(1,)": f"n{number}"} for number, _ in enumerate(tables)]


# Progress and fencing


def test_progress_comes_back_as_it_was_saved(destination: Destination, name: str) -> None:
    opened = destination.opened(name, 1, ITEMS)
    assert opened.generations.load_progress() is None
    opened.generations.save_progress(progress(1))
    opened.generations.save_progress(progress(0xFFFF_FFFF_FFFF_FFFF))
    assert destination.opened(name, 1).generations.load_progress() == progress(0xFFFF_FFFF_FFFF_FFFF)


def test_each_generation_has_its_own_progress(destination: Destination, name: str) -> None:
    destination.opened(name, 1, ITEMS).generations.save_progress(progress(1))
    second = destination.opened(name, 2, ITEMS)
    assert second.generations.load_progress() is None
    second.generations.save_progress(progress(2))
    assert destination.opened(name, 1).generations.load_progress() == progress(1)


def test_nothing_is_known_before_prepare(destination: Destination, name: str) -> None:
    assert destination.opened(name, 1).generations.load_progress() is None


def test_a_writer_that_was_replaced_is_fenced(destination: Destination, name: str) -> None:
    zombie = destination.opened(name, 1, ITEMS)
    old_fence = zombie.sink.claim()
    zombie.sink.apply(batch(item(1, "a", 1), fence=old_fence))
    fence = destination.sink(name, 1).claim()
    if destination.fences:
        with pytest.raises(Fenced):
            zombie.sink.apply(batch(item(1, "zombie", 2), fence=old_fence))
        with pytest.raises(Fenced):
            zombie.generations.save_progress(progress())
        assert rows_of(zombie.sink) == {"(1,)": "a"}
    else:
        assert (old_fence, fence) == (0, 0)
    assert counts(destination.sink(name, 1).apply(batch(item(1, "heir", 2), fence=fence))) == (1, 0, 0)


def test_who_writes_beside_the_writer_takes_nobodys_place(destination: Destination, name: str) -> None:
    writer, beside = destination.sink(name, 1, ITEMS), destination.sink(name, 1)
    held = writer.claim()
    assert beside.fence() == held
    assert counts(beside.apply(batch(item(1, "beside", 1), fence=beside.fence()))) == (1, 0, 0)
    assert counts(writer.apply(batch(item(2, "writer", 2), fence=held))) == (1, 0, 0)
    assert rows_of(writer) == {"(1,)": "beside", "(2,)": "writer"}
    assert destination.sink(name, 1).claim() == beside.fence()


# Values


VALUES = table(
    column("id", "int8"),
    column("a_uuid", "uuid"),
    column("a_numeric", "numeric"),
    column("an_instant", "timestamptz"),
    column("a_timestamp", "timestamp"),
    column("a_date", "date"),
    column("a_time", "time"),
    column("a_json", "jsonb"),
    column("words", "text", is_array=True),
    column("numbers", "int4", is_array=True),
    column("flags", "bool", is_array=True),
    column("mood", "text", type_name="mood"),
    column("flag", "bool"),
    column("bytes", "bytea"),
    column("a_float", "float8"),
    column("an_interval", "interval"),
    column("prose", "text"),
    column("boxes", "box", is_array=True),
    column("span", "int4range"),
    column("address", "inet"),
    column("bits", "bit"),
    column("cash", "money"),
    column("Ünïcode \"q\" 100%", "text"),
    column("dotted.name", "jsonb"),
    column("_id", "int4"),
    name=TableName("public", "values"),
)  # fmt: skip

PLAIN: dict[str, JsonValue] = {
    "id": 1,
    "a_uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "a_numeric": "12345678901234567890.10",
    "an_instant": "2016-11-04T13:51:30.123456Z",
    "a_timestamp": "2016-11-04T13:51:30",
    "a_date": "2016-11-04",
    "a_time": "24:00:00",
    "a_json": '{"a": 1.0, "b": [1, null, {"c": "é\\n"}], "d": 12345678901234567890.123}',
    "words": ["a", 'q"uo\\te', None, "NULL", "", "tab\tnl\n", "ü{},"],
    "numbers": [[1, 2], [3, 4]],
    "flags": [True, False, None],
    "mood": "so so",
    "flag": True,
    "bytes": "\\x00ff10",
    "a_float": 0.1,
    "an_interval": "1 year 2 mons 3 days 04:05:06.7",
    "prose": 'line\nbreak\ttab \\N back\\slash \\. "quotes" ü 🙂\r',
    "boxes": ["(1,1),(0,0)", "(2,2),(1,1)"],
    "span": "[1,5)",
    "address": "10.0.0.0/8",
    "bits": "10110",
    "cash": "$1,000.00",
    'Ünïcode "q" 100%': "yes :this %s",
    "dotted.name": '{"x": "y"}',
    "_id": 7,
}

ODD: list[dict[str, JsonValue]] = [
    {"id": 9223372036854775807},
    {"id": -9223372036854775808},
    {"a_float": "NaN"},
    {"a_float": "-Infinity"},
    {"a_float": 1e300},
    {"a_float": 5e-324},
    {"a_float": -0.0},
    {"a_numeric": "NaN"},
    {"a_numeric": "1" + "0" * 400},
    {"a_numeric": "0.00"},
    {"an_instant": "infinity"},
    {"an_instant": "21016-11-04T13:51:30Z"},
    {"an_instant": "0044-03-15T00:00:00Z BC"},
    {"a_timestamp": "-infinity"},
    {"a_timestamp": "0044-03-15T00:00:00 BC"},
    {"a_date": "21016-11-04"},
    {"a_date": "0044-03-15 BC"},
    {"a_json": "[1, 2]"},
    {"a_json": '"text"'},
    {"a_json": "null"},
    {"a_json": "1.50"},
    {"a_json": "{}"},
    {"a_json": '{"": 1, " ": 4, ".": 3, "a.b": 2}'},
    {"a_json": '{"a": null, "b": [], "c": {}, "d": [[1]]}'},
    {"a_json": '{"x": "' + "y" * 40_000 + '"}'},
    {"a_json": '{"a": ' * 30 + "1" + "}" * 30},
    {"words": []},
    {"words": "[0:1]={a,b}"},
    {"numbers": "[0:1]={7,8}"},
    {"numbers": [None]},
    {"prose": ""},
    {"prose": "x" * 100_000},
    {"prose": "\\N"},
    {"bytes": "\\x" + "ab" * 40_000},
    {name: None for name in PLAIN if name != "id"},
]


def test_every_value_comes_back_as_it_was_applied(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, VALUES)
    rows = [PLAIN, *({**PLAIN, "id": number, **odd} for number, odd in enumerate(ODD, 2))]
    outcome = sink.apply(batch(*(upsert(row, 1, of=VALUES) for row in rows)))
    assert [(rejection.reason, rejection.event.key) for rejection in outcome.rejections] == []
    found = {stored.key["id"]: stored for stored in sink.scan(VALUES)}
    for row in rows:
        stored = found.pop(row["id"])
        assert (dict(stored.row), stored.tag) == (row, tag(1))
        assert repr(stored.row["a_float"]) == repr(row["a_float"])  # -0.0 equals 0.0
    assert found == {}


KEYED = table(column("a"), column("b"), column("note"), name=TableName("My.Schema", "Odd: t%able_g1"), key=("b", "a"))


def test_odd_keys_stay_apart(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, KEYED)
    parts = ["a", "a:b", "b", ":", "/", "a/b", '"', "'", "a,b", "%3A", "ü", "🙂", "", " ", "*", "[x]", "\n", "x" * 600]
    rows: list[dict[str, JsonValue]] = [
        {"a": one, "b": other, "note": f"{one}|{other}"} for one in parts for other in parts
    ]
    assert counts(sink.apply(batch(*(upsert(row, 1, of=KEYED) for row in rows)))) == (len(rows), 0, 0)
    found = sorted((str(stored.key["b"]), str(stored.key["a"]), str(stored.row["note"])) for stored in sink.scan(KEYED))
    assert found == sorted((str(row["b"]), str(row["a"]), str(row["note"])) for row in rows)
    assert next(list(stored.key) for stored in sink.scan(KEYED)) == ["b", "a"]


def test_odd_single_keys_stay_apart(destination: Destination, name: str) -> None:
    single = table(column("k"), column("note"), name=TableName("public", "single"), key=("k",))
    sink = destination.sink(name, 1, single)
    long = "x" * 600
    keys = ["", "a", "a:b", "a/b", "42", "sha256:", long, long + "y", "ü", '"', "[1]", "%", ".", "..", "_x"]
    sink.apply(batch(*(upsert({"k": key, "note": f"note {key}"}, 1, of=single) for key in keys)))
    assert {stored.key["k"]: stored.row["note"] for stored in sink.scan(single)} == {k: f"note {k}" for k in keys}
    sink.apply(batch(*(delete({"k": key}, 2, of=single) for key in keys)))
    assert rows_of(sink, single) == {}


# Rows by key


def _found(sink: Sink, of: Table, keys: Sequence[Mapping[str, JsonValue]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.key.values()), dict(row.row), row.tag) for row in sink.rows(of, keys))


def test_rows_of_keys_are_the_live_ones_as_of_now(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(*(item(n, f"n{n}", 1) for n in range(5)), gone(7, 1)))
    sink.apply(batch(gone(1, 2), item(2, "newer", 2)))
    keys: list[dict[str, JsonValue]] = [{"id": number} for number in (0, 1, 2, 2, 7, 99)]
    expected = [
        ((0,), {"id": 0, "note": "n0", "number": 1}, tag(1)),
        ((2,), {"id": 2, "note": "newer", "number": 1}, tag(2)),
    ]
    assert _found(sink, ITEMS, keys) == expected
    assert list(sink.rows(ITEMS, [])) == []
    assert list(sink.rows(ITEMS, [{"id": 1}])) == []


def test_a_thousand_rows_are_found_by_their_keys(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(*(item(n, f"n{n}", 1) for n in range(3000))))
    assert len({row.key["id"] for row in sink.rows(ITEMS, [{"id": n} for n in range(1000, 2000)])}) == 1000


def test_rows_of_keys_have_the_values_that_a_scan_gives(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, VALUES)
    rows = [PLAIN, *({**PLAIN, "id": number, **odd} for number, odd in enumerate(ODD, 2))]
    sink.apply(batch(*(upsert(row, 1, of=VALUES) for row in rows)))
    found = list(sink.rows(VALUES, [{"id": row["id"]} for row in rows]))
    assert sorted(map(repr, found)) == sorted(map(repr, sink.scan(VALUES)))
    assert len(found) == len(rows)


def test_rows_of_odd_keys_are_found(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, KEYED)
    parts = ["a", "a:b", ":", '"', "'", "{a,b}", "%3A", "%s", "\\", "ü", "🙂", "", " ", "NULL", "\n", "x" * 600]
    rows: list[dict[str, JsonValue]] = [{"a": one, "b": other, "note": one} for one in parts for other in parts]
    sink.apply(batch(*(upsert(row, 1, of=KEYED) for row in rows)))
    wanted = rows[::3]
    found = _found(sink, KEYED, [{"b": row["b"], "a": row["a"]} for row in wanted])
    assert found == sorted(((row["b"], row["a"]), row, tag(1)) for row in wanted)


@pytest.mark.parametrize(
    ("of", "values"),
    [
        (column("k", "bool"), [True, False]),
        (column("k", "numeric"), ["1.10", "NaN", "12345678901234567890.12345"]),
        (column("k", "timestamptz"), ["2016-11-04T13:51:30.123456Z", "infinity", "0044-03-15T00:00:00Z BC"]),
        (column("k", "uuid"), ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
        (column("k", "bytea"), ["\\x00ff", "\\x"]),
        (column("k", "float8"), [0.1, "NaN", 1e300]),
        (column("k", "int4", is_array=True), [[], [1, 2], [[1], [2]], "[0:1]={7,8}"]),
        (column("k", "text", is_array=True), [["a", None, "NULL", 'q"'], [""]]),
        (column("k", "text", type_name="mood"), ["so so"]),
    ],
    ids=lambda of: getattr(of, "type_name", ""),
)
def test_rows_are_found_by_keys_of_any_type(
    destination: Destination, name: str, of: Any, values: list[JsonValue]
) -> None:
    keyed = table(of, column("note"), name=TableName("public", "keyed"), key=("k",))
    sink = destination.sink(name, 1, keyed)
    sink.apply(batch(*(upsert({"k": value, "note": str(value)}, 1, of=keyed) for value in values)))
    found = {str(row.key["k"]): row.row["note"] for row in sink.rows(keyed, [{"k": value} for value in values])}
    assert found == {str(value): str(value) for value in values}


# Bulk


@st.composite
def _histories(draw: st.DrawFn) -> tuple[list[RowEvent], list[list[RowEvent]]]:
    """Events of a few keys, and batches that hold all of them at least once, in any order."""
    changes = draw(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12))
    events = [
        gone(key, tag(n + 1)) if is_delete else item(key, f"v{n}", tag(n + 1))
        for n, (key, is_delete) in enumerate(changes)
    ]
    extra = draw(st.lists(st.sampled_from(events), max_size=8))
    shuffled = draw(st.permutations(events + extra))
    batches: list[list[RowEvent]] = [[]]
    for event in shuffled:
        # One event per key in a batch, as the contract says.
        if draw(st.booleans()) or any(other.key == event.key for other in batches[-1]):
            batches.append([])
        batches[-1].append(event)
    return events, batches


def _expected(events: Sequence[RowEvent]) -> dict[str, str]:
    last = {event.key["id"]: event for event in events}
    return {f"({key},)": str(event.row["note"]) for key, event in last.items() if event.row is not None}


def _in_bulk(destination: Destination, name: str, *tables: Table) -> OpenedSink:
    """A generation in which bulk has begun, beside another one that is live."""
    destination.sink(name, 1, ITEMS)
    opened = destination.opened(name, 2)
    opened.sink.prepare(tables or [ITEMS], go_live=False)
    opened.generations.begin_bulk()
    return opened


def _judged(outcome: Outcome) -> tuple[int, int]:
    """In bulk a sink needn't know yet which of the events are stale."""
    return outcome.applied + outcome.stale, len(outcome.rejections)


def test_bulk_ends_in_the_newest_row_of_each_key(destination: Destination, name: str) -> None:
    opened = _in_bulk(destination, name)
    again = [item(1, "a", 2), item(2, "b", 2), gone(3, 2), item(4, "d", 1)]
    for events in (again, again, [item(1, "old", 1), item(3, "old", 1)], [item(2, "newest", 3), gone(4, 3)]):
        assert _judged(opened.sink.apply(batch(*events))) == (len(events), 0)
    opened.generations.end_bulk()
    assert rows_of(opened.sink) == {"(1,)": "a", "(2,)": "newest"}
    assert counts(opened.sink.apply(batch(item(1, "old", 1), item(3, "stale", 1), item(4, "stale", 2)))) == (0, 3, 0)
    assert counts(opened.sink.apply(batch(item(3, "again", 3)))) == (1, 0, 0)
    assert rows_of(opened.sink) == {"(1,)": "a", "(2,)": "newest", "(3,)": "again"}


def test_bulk_goes_on_in_another_process(destination: Destination, name: str) -> None:
    _in_bulk(destination, name).sink.apply(batch(item(1, "a", 1), item(2, "b", 1)))
    second = destination.opened(name, 2)
    second.sink.prepare([ITEMS], go_live=False)
    second.generations.begin_bulk()
    second.sink.apply(batch(item(1, "newer", 2), item(3, "c", 1)))
    third = destination.opened(name, 2)
    third.generations.end_bulk()
    third.generations.end_bulk()
    assert rows_of(third.sink) == {"(1,)": "newer", "(2,)": "b", "(3,)": "c"}
    assert counts(second.sink.apply(batch(item(1, "old", 1), item(2, "new", 2)))) == (1, 1, 0)


def test_bulk_without_duplicates_or_rows_ends_too(destination: Destination, name: str) -> None:
    other = replace(ITEMS, name=TableName("public", "others"))
    opened = _in_bulk(destination, name, ITEMS, other)
    opened.sink.apply(batch(*(item(n, f"n{n}", 1) for n in range(100))))
    opened.generations.end_bulk()
    assert rows_of(opened.sink) == {f"({n},)": f"n{n}" for n in range(100)}
    assert rows_of(opened.sink, other) == {}
    assert counts(opened.sink.apply(batch(item(1, "old", 1)))) == (0, 1, 0)


def test_bulk_that_was_not_begun_ends_without_harm(destination: Destination, name: str) -> None:
    destination.opened(name, 7).generations.end_bulk()
    opened = destination.opened(name, 1, ITEMS)
    opened.sink.apply(batch(item(1, "a", 1)))
    opened.generations.end_bulk()
    assert (rows_of(opened.sink), opened.generations.live()) == ({"(1,)": "a"}, 1)


def test_bulk_on_a_generation_that_readers_see_shows_them_nothing_else(destination: Destination, name: str) -> None:
    opened = destination.opened(name, 1, ITEMS)
    opened.generations.begin_bulk()
    opened.sink.apply(batch(item(1, "a", 1)))
    opened.sink.apply(batch(item(1, "b", 2), item(2, "b", 2)))
    assert rows_of(opened.sink) == {"(1,)": "b", "(2,)": "b"}
    with destination.reader(name) as find:
        deadline = time.monotonic() + 10
        while (find(1), find(2)) != ("b", "b"):
            assert time.monotonic() < deadline
    opened.generations.end_bulk()


def test_bulk_on_rows_that_are_there_keeps_them(destination: Destination, name: str) -> None:
    destination.sink(name, 1, ITEMS)
    opened = destination.opened(name, 2, ITEMS)
    opened.sink.apply(batch(item(1, "a", 2)))
    opened.generations.begin_bulk()
    opened.sink.apply(batch(item(1, "old", 1), item(2, "b", 1)))
    opened.generations.end_bulk()
    assert rows_of(opened.sink) == {"(1,)": "a", "(2,)": "b"}


def test_bulk_rejects_poison_and_applies_its_neighbours(destination: Destination, name: str) -> None:
    opened = _in_bulk(destination, name)
    events = [item(n, f"n{n}", 1) for n in range(64)]
    for n in (0, 17, 18, 63):
        events[n] = replace(events[n], row={**(events[n].row or {}), **destination.poison})
    outcome = opened.sink.apply(batch(*events))
    assert _judged(outcome) == (60, 4)
    assert sorted(rejection.event.key["id"] for rejection in outcome.rejections) == [0, 17, 18, 63]  # type: ignore[type-var]
    opened.generations.end_bulk()
    assert rows_of(opened.sink) == {f"({n},)": f"n{n}" for n in range(64) if n not in (0, 17, 18, 63)}


def test_bulk_goes_on_with_new_columns_and_tables(destination: Destination, name: str) -> None:
    opened = _in_bulk(destination, name)
    opened.sink.apply(batch(item(1, "a", 1)))
    wider = replace(ITEMS, columns=(*ITEMS.columns, column("added")))
    other = replace(ITEMS, name=TableName("public", "others"))
    destination.sink(name, 2).prepare([wider, other], go_live=False)
    for at in (1, 2):
        opened.sink.apply(batch(upsert({"id": 2, "note": "b", "number": 1, "added": f"x{at}"}, at, of=wider)))
        opened.sink.apply(batch(upsert({"id": 3, "note": f"o{at}", "number": 1}, at, of=other)))
    opened.generations.end_bulk()
    assert {stored.row["id"]: stored.row["added"] for stored in opened.sink.scan(wider)} == {1: None, 2: "x2"}
    assert rows_of(opened.sink, other) == {"(3,)": "o2"}


def test_bulk_keeps_every_value(destination: Destination, name: str) -> None:
    opened = _in_bulk(destination, name, VALUES)
    rows = [PLAIN, *({**PLAIN, "id": number, **odd} for number, odd in enumerate(ODD, 2))]
    for _ in range(2):
        assert _judged(opened.sink.apply(batch(*(upsert(row, 1, of=VALUES) for row in rows)))) == (len(rows), 0)
    opened.generations.end_bulk()
    found = {stored.key["id"]: dict(stored.row) for stored in opened.sink.scan(VALUES)}
    assert found == {row["id"]: row for row in rows}


def test_what_was_loaded_in_bulk_is_switched_to_at_its_end(destination: Destination, name: str) -> None:
    opened = _in_bulk(destination, name)
    opened.sink.apply(batch(item(1, "a", 1)))
    opened.generations.end_bulk()
    opened.generations.switch()
    with destination.reader(name) as find:
        assert find(1) == "a"


def test_a_fence_holds_in_bulk_too(destination: Destination, name: str) -> None:
    zombie = _in_bulk(destination, name)
    old_fence = zombie.sink.claim()
    fence = destination.sink(name, 2).claim()
    if destination.fences:
        with pytest.raises(Fenced):
            zombie.sink.apply(batch(item(1, "zombie", 2), fence=old_fence))
    opened = destination.opened(name, 2)
    opened.sink.apply(batch(item(1, "heir", 3), fence=fence))
    opened.generations.end_bulk()
    assert rows_of(opened.sink) == {"(1,)": "heir"}


@pytest.mark.live
@pytest.mark.parametrize("kind", _REAL)
@given(history=_histories(), restarts=st.sets(st.integers(0, 8)))
@settings(
    deadline=None,
    max_examples=examples(12),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_order_and_repetition_ends_in_the_same_rows_in_bulk(
    kind: str, endpoints: Any, history: tuple[list[RowEvent], list[list[RowEvent]]], restarts: set[int]
) -> None:
    events, batches = history
    destination = _REAL[kind](endpoints)
    name = f"t{uuid.uuid4().hex[:12]}"
    try:
        opened = _in_bulk(destination, name)
        for number, events_of_batch in enumerate(batches):
            if number in restarts:
                opened = destination.opened(name, 2)
                opened.sink.prepare([ITEMS], go_live=False)
                opened.generations.begin_bulk()
            opened.sink.apply(batch(*events_of_batch))
        opened.generations.end_bulk()
        assert rows_of(opened.sink) == _expected(events)
    finally:
        destination.close()


# Columns left out

PRIVATE = "secret-word"


def _projecting(destination: Destination, name: str, generation: int = 1) -> Sink:
    exclude = [f"public.values.{text}" for text in ("prose", "a_json", '"dotted.name"')]
    return ProjectingSink(destination.opened(name, generation), Projection.parse(exclude), generation)


def test_columns_that_are_left_out_never_reach_the_destination(destination: Destination, name: str) -> None:
    sink = _projecting(destination, name)
    sink.prepare([VALUES])
    private = {"prose": PRIVATE, "a_json": f'{{"a": "{PRIVATE}"}}', "dotted.name": f'{{"a": "{PRIVATE}"}}'}
    row = {**PLAIN, **private}
    sink.apply(batch(upsert(row, 1, of=VALUES), upsert({**row, "id": 2}, 1, of=VALUES)))
    sink.apply(batch(delete({"id": 2}, 2, of=VALUES)))
    expected = {key: value for key, value in row.items() if key not in private}
    assert [dict(stored.row) for stored in sink.scan(VALUES)] == [expected]
    assert [dict(stored.row) for stored in sink.rows(VALUES, [{"id": 1}, {"id": 2}])] == [expected]
    assert PRIVATE not in destination.everything(name)
    assert "bytes" in destination.everything(name)


def test_a_column_that_comes_later_passes_by_those_that_are_left_out(destination: Destination, name: str) -> None:
    _projecting(destination, name).prepare([VALUES])
    wider = replace(VALUES, columns=(*VALUES.columns, column("added")))
    sink = _projecting(destination, name)
    sink.prepare([wider])
    sink.apply(batch(upsert({**PLAIN, "prose": PRIVATE, "added": "x"}, 1, of=wider)))
    assert [stored.row["added"] for stored in sink.scan(wider)] == ["x"]
    assert PRIVATE not in destination.everything(name)


def test_what_a_column_was_added_with_stays_away_where_the_column_is_left_out(
    destination: Destination, name: str
) -> None:
    """One that was dropped and comes again, by a name that the sink leaves out."""
    narrower = replace(VALUES, columns=tuple(held for held in VALUES.columns if held.name != "prose"))
    _projecting(destination, name).prepare([VALUES])
    sink = _projecting(destination, name)
    sink.prepare([narrower])
    row = {key: value for key, value in PLAIN.items() if key not in ("prose", "a_json", "dotted.name")}
    sink.apply(batch(upsert(row, 1, of=VALUES)))
    wider = replace(VALUES, columns=(*VALUES.columns, column("added")))
    left = sink.prepare([wider], added={VALUES.name: {"prose": PRIVATE, "added": "x"}})
    _carried(sink, wider, left)
    assert [dict(stored.row) for stored in sink.scan(wider)] == [{**row, "added": "x"}]
    assert PRIVATE not in destination.everything(name)


def test_hidden_values_and_other_names_hold_in_every_way_a_row_comes(destination: Destination, name: str) -> None:
    """Applied, replaced, replayed and carried over: what is hidden once is hidden once, and asked for by the source's names."""
    masks: Any = {VALUES.name: {"prose": "hash", "a_json": Truncation(truncate=2)}}
    renaming = Renaming({VALUES.name: {"a_json": "shortened", "prose": "hidden"}})

    def opened() -> Sink:
        inner = destination.opened(name, 1)
        return ProjectingSink(inner, Projection(masks=masks, salt=Salt(b"salt")), 1, renaming=renaming)

    sink = opened()
    sink.prepare([VALUES])
    row = {**PLAIN, "prose": PRIVATE, "a_json": f'{{"a": "{PRIVATE}"}}'}
    seen = {**row, "prose": Salt(b"salt").hash(PRIVATE), "a_json": '{"'}
    sink.apply(batch(upsert(row, 1, of=VALUES), upsert({**row, "id": 2}, 1, of=VALUES)))
    sink.apply(replace(batch(upsert(row, 1, of=VALUES)), overwrite_equal_tags=True))
    sink.apply(batch(delete({"id": 2}, 2, of=VALUES)))
    assert [(dict(stored.key), dict(stored.row)) for stored in sink.scan(VALUES)] == [({"id": 1}, seen)]
    wider = replace(VALUES, columns=(*VALUES.columns, column("added")))
    sink = opened()
    left = sink.prepare([wider], added={VALUES.name: {"added": "x"}})
    _carried(sink, wider, left)
    expected = {**seen, "added": "x"}
    assert [dict(stored.row) for stored in opened().rows(wider, [{"id": 1}, {"id": 2}])] == [expected]
    everything = destination.everything(name)
    assert PRIVATE not in everything
    assert Salt(b"salt").hash(PRIVATE) in everything


def test_a_scan_may_be_left_early(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(*(item(n, "x" * 1000, 1) for n in range(3000))))
    rows = sink.scan(ITEMS)
    assert next(rows).tag == tag(1)
    rows.close()  # type: ignore[attr-defined]
    assert counts(sink.apply(batch(item(1, "after", 2)))) == (1, 0, 0)


# Any order


@given(history=_histories())
@settings(deadline=None)
def test_any_order_and_repetition_ends_in_the_same_rows(history: tuple[list[RowEvent], list[list[RowEvent]]]) -> None:
    events, batches = history
    sink = MemorySink(MemoryStore(), 1)
    sink.prepare([ITEMS])
    for events_of_batch in batches:
        sink.apply(batch(*events_of_batch))
    assert rows_of(sink) == _expected(events)


@pytest.mark.live
@pytest.mark.parametrize("kind", _REAL)
@given(history=_histories())
@settings(
    deadline=None,
    max_examples=examples(12),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_order_and_repetition_ends_in_the_same_rows_on_servers(
    kind: str, endpoints: Any, history: tuple[list[RowEvent], list[list[RowEvent]]]
) -> None:
    events, batches = history
    # One schema of tables for all examples; the key space is another one each time.
    destination = _REAL[kind](endpoints)
    sink = destination.sink(f"t{uuid.uuid4().hex[:12]}", 1, ITEMS)
    try:
        for events_of_batch in batches:
            sink.apply(batch(*events_of_batch))
        assert rows_of(sink) == _expected(events)
    finally:
        destination.close()


# Servers that go away


def _patient(opened: OpenedSink, waits: list[Waiting], sleep: Callable[[float], None] = lambda _: None) -> OpenedSink:
    clock = iter(range(1_000_000))
    retries = Retries(sleep=sleep, monotonic=lambda: float(next(clock)), random=lambda: 0.0, on_wait=waits.append)
    return retrying(opened, retries)


@contextmanager
def _knocking(make: Callable[[], Sink]) -> Iterator[list[Exception]]:
    """New sinks all the time, as a job makes them after a failure, that try to write; what they are told."""
    heard: list[Exception] = []
    over = threading.Event()

    def knock() -> None:
        while not over.wait(0.003):
            sink = make()
            try:
                sink.apply(batch(item(1, "knocking", 2)))
            except Exception as error:
                heard.append(error)
            finally:
                sink.close()

    thread = threading.Thread(target=knock)
    thread.start()
    try:
        yield heard
    finally:
        over.set()
        thread.join()


# It stops a server that others use at the same time.
@pytest.mark.live
@pytest.mark.busy
@pytest.mark.parametrize("kind", [kind for kind in _REAL if kind not in _SERVERLESS])
def test_a_job_waits_while_the_server_is_away_and_goes_on(kind: str, stack: Any, endpoints: Any, name: str) -> None:
    destination = _REAL[kind](endpoints)
    opened = destination.opened(name, 1, ITEMS)
    sink = opened.sink
    sink.apply(batch(item(1, "before", 1)))
    assert destination.server is not None
    stack.stop(destination.server)
    try:
        with pytest.raises(Unavailable):
            sink.apply(batch(item(1, "away", 2)))
        with pytest.raises(Unavailable):
            destination.opened(name, 1).generations.load_progress()
    finally:
        # A server that is coming back may say anything but that it holds nothing.
        with _knocking(lambda: destination.sink(name, 1)) as heard:
            stack.start(destination.server)
    assert {type(error) for error in heard} == {Unavailable}, heard[-3:]
    waits: list[Waiting] = []
    patient = _patient(opened, waits, lambda seconds: time.sleep(min(seconds, 0.5))).sink
    outcome = patient.apply(batch(item(1, "after", 3)))
    assert outcome.applied + outcome.stale == 1
    sink.prepare([ITEMS])
    sink.apply(batch(item(2, "new", 1)))
    assert rows_of(sink)["(2,)"] == "new"
    sink.close()
