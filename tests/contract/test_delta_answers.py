"""The lake sink under concurrent writers, kills, leftovers, odd tables, and a store that isn't there."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.table import TableMerger
from pydantic import SecretStr

import sinks.delta.bulk_load
from cdc.model.errors import Fenced, LockstepError, Unavailable
from cdc.model.event import JsonValue
from cdc.model.table import Table, TableName
from sinks.access import Login
from sinks.columns.shape import Shape
from sinks.contract import CoordinationRecords, Generations
from sinks.delta.coordination import DeltaCoordination
from sinks.delta.merge import fill
from sinks.delta.settings import DeltaSettings
from sinks.delta.tables import DeltaTables
from tests.builders import batch, column, delete, progress, table, tag, upsert
from tests.contract.beside import DeltaParts, generations_of
from tests.contract.copies import directory_copy
from tests.examples import examples

ITEMS = table(column("id", "int8"), column("note"), name=TableName("public", "items"))


class Lake:
    """A root of this test's own."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def sink(self, generation: int = 1, *tables: Table, **settings: Any) -> DeltaParts:
        chosen = DeltaSettings(root=str(self.root), **settings)
        sink = DeltaParts(DeltaTables("shop", chosen, generation), chosen)
        if tables:
            sink.prepare(tables)
        return sink

    def generations(self, generation: int = 1) -> Generations:
        return generations_of(self.sink(generation))

    def records(self) -> CoordinationRecords:
        return DeltaCoordination(self.sink().tables)

    def rows(self, path: str = "shop_g1/items") -> list[dict[str, Any]]:
        """Everything that is stored, as any other reader finds it."""
        rows: list[dict[str, Any]] = DeltaTable(self.root / path).to_pyarrow_table().to_pylist()
        return sorted(rows, key=lambda row: str(row["id"]))

    def files(self, path: str = "shop_g1/items") -> list[Path]:
        """The files of rows, whether the table still needs them or not."""
        return sorted(file for file in (self.root / path).rglob("*.parquet") if "_delta_log" not in file.parts)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def item(number: int, note: str, at: int) -> Any:
    return upsert({"id": number, "note": note}, at, of=ITEMS)


def notes_of(sink: DeltaParts, of: Table = ITEMS) -> dict[JsonValue, JsonValue]:
    return {stored.key["id"]: stored.row["note"] for stored in sink.scan(of)}


class Interrupted(dict[str, JsonValue]):
    """A row during whose reading something else happens, once: between a writer's look at the table and its commit."""

    def __init__(self, row: dict[str, JsonValue], happen: Callable[[], object]) -> None:
        super().__init__(row)
        self._happen: Callable[[], object] | None = happen

    def get(self, name: str, default: Any = None) -> Any:
        happen, self._happen = self._happen, None
        if happen is not None:
            happen()
        return super().get(name, default)


def interrupted(number: int, note: str, at: int, happen: Callable[[], object]) -> Any:
    event = item(number, note, at)
    return replace(event, row=Interrupted(dict(event.row or {}), happen))


# Concurrent writers


def test_a_writer_that_is_replaced_in_the_middle_of_a_batch_commits_nothing(lake: Lake) -> None:
    zombie, heir = lake.sink(1, ITEMS), lake.sink(1)
    fence = zombie.claim()
    with pytest.raises(Fenced):
        zombie.apply(batch(interrupted(1, "zombie", 1, heir.claim), fence=fence))
    assert lake.rows() == []


@pytest.mark.soak
def test_a_writer_that_is_replaced_in_the_middle_of_a_bulk_load_commits_nothing(lake: Lake) -> None:
    lake.sink(1, ITEMS)
    zombie, heir = lake.sink(2, ITEMS), lake.sink(2)
    generations_of(zombie).begin_bulk()
    fence = zombie.claim()
    with pytest.raises(Fenced):
        zombie.apply(batch(interrupted(1, "zombie", 1, heir.claim), fence=fence))
    generations_of(heir).end_bulk()
    assert lake.rows("shop_g2/items") == []


def test_a_batch_that_is_overtaken_is_merged_with_what_the_other_one_wrote(lake: Lake) -> None:
    worker, other = lake.sink(1, ITEMS), lake.sink(1)
    other.apply(batch(item(0, "before", 1)))
    happened: list[Any] = []

    def happen() -> None:
        happened.append(other.apply(batch(item(1, "other's", 3), item(2, "other's", 1), item(3, "other's", 1))))

    outcome = worker.apply(batch(interrupted(1, "mine", 2, happen), item(2, "mine", 2)))
    assert (len(happened), outcome.applied, outcome.stale) == (1, 1, 1)
    assert notes_of(worker) == {0: "before", 1: "other's", 2: "mine", 3: "other's"}
    assert len(lake.rows()) == 4


def test_no_append_comes_after_the_end_of_a_bulk_load(lake: Lake) -> None:
    lake.sink(1, ITEMS)
    worker, other = lake.sink(2, ITEMS), lake.sink(2)
    generations_of(worker).begin_bulk()
    worker.apply(batch(item(1, "a", 1)))
    worker.apply(batch(interrupted(1, "b", 2, generations_of(other).end_bulk), item(2, "b", 1)))
    assert [(row["id"], row["note"]) for row in lake.rows("shop_g2/items")] == [(1, "b"), (2, "b")]


def _once(happen: Callable[[], object], after: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does the same, and lets something else happen the first time."""
    pending = [happen]

    def both(*arguments: Any, **named: Any) -> Any:
        result = after(*arguments, **named)
        if pending:
            pending.pop()()
        return result

    return both


@pytest.mark.parametrize("point", ["written", "seen"])
def test_an_append_while_a_bulk_load_ends_is_no_second_version_of_a_row(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Between the newest rows' own commit and the commit that ends the appending: before or after the first is read."""
    lake.sink(1, ITEMS)
    worker, other = lake.sink(2, ITEMS), lake.sink(2)
    generations_of(worker).begin_bulk()
    worker.apply(batch(item(1, "a", 1)))
    worker.apply(batch(item(1, "b", 2)))

    def happen() -> None:
        other.apply(batch(item(1, "c", 3), item(2, "c", 3)))

    if point == "written":
        monkeypatch.setattr("deltalake.write_deltalake", _once(happen, write_deltalake))
    else:
        worker.tables.lake.commit = _once(happen, worker.tables.lake.commit)  # type: ignore[method-assign]
    generations_of(worker).end_bulk()
    assert [(row["id"], row["note"]) for row in lake.rows("shop_g2/items")] == [(1, "c"), (2, "c")]


@pytest.mark.parametrize("point", ["written", "seen"])
def test_a_row_that_comes_after_a_columns_default_gets_it_too(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    worker = lake.sink(1, ITEMS)
    worker.apply(batch(item(1, "before", 1)))
    wider = replace(ITEMS, columns=(*ITEMS.columns, column("n", "int4")))
    preparing = lake.sink(1)

    def happen() -> None:
        worker.apply(batch(item(2, "meanwhile", 1)))

    if point == "written":
        monkeypatch.setattr(TableMerger, "execute", _once(happen, TableMerger.execute))
    else:
        monkeypatch.setattr("sinks.delta.tables.fill", _once(happen, fill))
    preparing.prepare([wider], added={ITEMS.name: {"n": 7}})
    assert {stored.row["id"]: stored.row["n"] for stored in worker.scan(wider)} == {1: 7, 2: 7}


@pytest.mark.soak
def test_the_fence_of_a_claim_that_died_half_way_keeps_nobody_out_for_ever(lake: Lake) -> None:
    others = replace(ITEMS, name=TableName("public", "others"))
    first = lake.sink(1, ITEMS, others)
    first.claim()
    dying = lake.sink(1)
    # Killed after the first of two tables.
    dying.tables.bookkeeping.change(lambda state, _: state.with_build(1, replace(state.builds[1], fence=2)))
    opened = dying.tables.open(ITEMS.name)
    dying.tables.repeat(opened, lambda opened: dying.tables.raise_fence(opened, 2))
    fence = lake.sink(1).claim()
    assert fence == 3
    events = [item(1, "a", 1), upsert({"id": 1, "note": "a"}, 1, of=others)]
    assert lake.sink(1).apply(batch(*events, fence=fence)).applied == 2
    with pytest.raises(Fenced):
        first.apply(batch(*events, fence=1))


@pytest.mark.soak
def test_a_slow_prepare_never_takes_a_fence_back(lake: Lake) -> None:
    others = replace(ITEMS, name=TableName("public", "others"))
    slow, heir = lake.sink(1, ITEMS), lake.sink(1)
    seen = slow.tables.bookkeeping.read()
    heir.prepare([ITEMS, others])
    fence = heir.claim()
    slow.tables.create(seen, Shape.of(others))  # it had found the table missing, and the old fence
    event = upsert({"id": 1, "note": "a"}, 1, of=others)
    with pytest.raises(Fenced):
        slow.apply(batch(event, fence=fence - 1))
    assert heir.apply(batch(event, fence=fence)).applied == 1


def test_the_offsets_of_a_batch_are_in_the_commit_of_its_rows(lake: Lake) -> None:
    sink = lake.sink(1, ITEMS)
    sink.apply(batch(item(1, "a", 1), next_offsets={("shop.items", 0): 17, ("shop.items", 1): 4}))
    version = DeltaTable(lake.root / "shop_g1/items").version()
    sink.apply(batch(item(1, "b", 2), next_offsets={("shop.items", 0): 19}))
    read = DeltaTable(lake.root / "shop_g1/items").transaction_version
    assert [read(f"lockstep.offset:shop.items:{partition}") for partition in (0, 1, 2)] == [19, 4, None]
    before = DeltaTable(lake.root / "shop_g1/items", version=version)
    assert before.transaction_version("lockstep.offset:shop.items:0") == 17
    assert [row["note"] for row in before.to_pyarrow_table().to_pylist()] == ["a"]


_WRITER = """
import sys
from cdc.model.table import TableName
from sinks.delta.settings import DeltaSettings
from sinks.delta.sink import open_delta
from sinks.delta import sink as delta
from tests.builders import batch, column, table, upsert
delta.OPTIMIZE_EVERY_COMMITS = 7
items = table(column("id", "int8"), column("note"), name=TableName("public", "items"))
sink = open_delta("shop", DeltaSettings(root=sys.argv[1]), 1).sink
sink.prepare([items])
fence = sink.claim()
for at in range(int(sys.argv[2]), 1000000):
    # Every key's note is the number of the last batch that had it; a batch has a third of the keys.
    events = [upsert({"id": key, "note": str(at)}, at, of=items) for key in range(30) if (key + at) % 3 == 0]
    sink.apply(batch(*events, fence=fence, next_offsets={("t", 0): at + 1}))
    print(at, flush=True)
"""


def test_a_writer_that_is_killed_anywhere_leaves_whole_batches(lake: Lake) -> None:
    """Even while it merges files. What it had reported is there, and the next one goes on."""
    chance = random.Random(5)
    at = 1
    for _ in range(examples(2)):
        command = [sys.executable, "-c", _WRITER, str(lake.root), str(at)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            reported = at - 1
            for _ in range(chance.randrange(3, 25)):
                reported = int(child.stdout.readline())
            time.sleep(chance.random() / 20)  # anywhere in the next batch
            child.send_signal(signal.SIGKILL)
            reported = max([reported, *map(int, child.stdout.read().split())])
        stored = DeltaTable(lake.root / "shop_g1/items").transaction_version("lockstep.offset:t:0")
        assert stored in (reported + 1, reported + 2)
        notes = {row["id"]: int(row["note"]) for row in lake.rows()}
        assert len(lake.rows()) == len(notes) == 30
        assert notes == {key: max(n for n in range(max(1, stored - 3), stored) if (key + n) % 3 == 0) for key in notes}
        at = reported  # the last one again, as after a restart


# What other readers find


@pytest.mark.soak
def test_other_readers_find_typed_columns(lake: Lake) -> None:
    shape = table(
        column("id", "int8"),
        column("price", "numeric", type_modifier=(10 << 16 | 2) + 4),
        column("at", "timestamptz"),
        column("day", "date"),
        column("data", "bytea"),
        name=TableName("sales", "Odd: t%able"),
    )
    sink = lake.sink(1, shape)
    row: dict[str, JsonValue] = {
        "id": 1,
        "price": "1.10",
        "at": "2016-11-04T13:51:30.5Z",
        "day": "2016-11-04",
        "data": "\\x00ff",
    }
    sink.apply(batch(upsert(row, 1, of=shape), upsert({**row, "id": 2, "at": "infinity"}, 1, of=shape)))
    (live,) = DeltaTable(lake.root / "shop_live").to_pyarrow_table().to_pylist()
    path = "shop_g1/sales__Odd.3a.20t.25able"
    assert live == {"table_schema": "sales", "table_name": "Odd: t%able", "path": path, "generation": 1}
    first, second = lake.rows(path)
    assert first == {
        "id": 1,
        "price": Decimal("1.10"),
        "at": datetime(2016, 11, 4, 13, 51, 30, 500_000, UTC),
        "day": date(2016, 11, 4),
        "data": b"\x00\xff",
        "_exact": None,
        "_tag": tag(1),
        "_deleted": False,
    }
    assert (second["at"], second["_exact"]) == (None, '{"at":"infinity"}')


def test_rows_are_in_the_partitions_of_their_values_and_move_with_them(lake: Lake) -> None:
    shape = table(column("id", "int8"), column("region"), column("note"), name=TableName("public", "items"))
    sink = lake.sink(1, shape, partition_by={"public.items": ("region",)})
    texts = ["north", "", None, "a/b %", "line\nbreak", "..", "ü🙂", "=", "null", "__HIVE_DEFAULT_PARTITION__"]
    rows: list[dict[str, JsonValue]] = [
        {"id": number, "region": text, "note": f"n{number}"} for number, text in enumerate(texts)
    ]
    sink.apply(batch(*(upsert(row, 1, of=shape) for row in rows)))
    assert sorted((dict(stored.row) for stored in sink.scan(shape)), key=lambda row: str(row["id"])) == rows
    assert DeltaTable(lake.root / "shop_g1/items").metadata().partition_columns == ["region"]
    assert (lake.root / "shop_g1/items/region=north").is_dir()
    moved = [{**row, "region": rows[number - 1]["region"]} for number, row in enumerate(rows)]
    sink.apply(batch(*(upsert(row, 2, of=shape) for row in moved[:-1]), delete({"id": 9}, 2, of=shape)))
    assert sorted((dict(stored.row) for stored in sink.scan(shape)), key=lambda row: str(row["id"])) == moved[:-1]
    assert sink.apply(batch(*(upsert(row, 1, of=shape) for row in rows))).stale == len(rows)
    assert {stored.row["id"] for stored in sink.rows(shape, [{"id": number} for number in (1, 5, 9)])} == {1, 5}


@pytest.mark.parametrize("key_type", ["int8", "text", "bytea", "float8"])
@pytest.mark.soak
def test_a_bulk_load_in_many_portions_ends_in_the_newest_rows(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, key_type: str
) -> None:
    shape = table(column("id", key_type), column("part", "int4"), column("note"), key=("id", "part"))

    def key(number: int) -> JsonValue:
        return {"int8": number, "text": f"k/{number}", "bytea": f"\\x{number:04x}", "float8": number / 8}[key_type]

    sink = lake.sink(1)
    sink.prepare([shape], go_live=False)
    generations_of(sink).begin_bulk()
    monkeypatch.setattr(sinks.delta.bulk_load, "ROWS_AT_ONCE", 7)
    for at in (2, 1, 3):
        numbers = range(0, 200, at)
        sink.apply(batch(*(upsert({"id": key(n), "part": 1, "note": f"{n} {at}"}, at, of=shape) for n in numbers)))
    generations_of(sink).end_bulk()
    notes = {repr(stored.key["id"]): stored.row["note"] for stored in sink.scan(shape)}
    assert notes == {repr(key(n)): f"{n} {3 if n % 3 == 0 else 2 if n % 2 == 0 else 1}" for n in range(200)}
    assert sum(1 for _ in sink.scan(shape)) == 200


def test_rows_that_come_while_a_column_is_added_get_its_default_too(lake: Lake) -> None:
    worker = lake.sink(1, ITEMS)
    worker.apply(batch(item(1, "before", 1)))
    wider = replace(ITEMS, columns=(*ITEMS.columns, column("n", "int4")))

    happened: list[Any] = []

    class Values(dict[str, JsonValue]):
        """Values that are asked for after the column has been added, and before they are written."""

        def __getitem__(self, name: str) -> JsonValue:
            if not happened:
                happened.append(worker.apply(batch(item(2, "meanwhile", 1))))
            return super().__getitem__(name)

    lake.sink(1).prepare([wider], added={ITEMS.name: Values(n=7)})
    assert happened
    assert {stored.row["id"]: stored.row["n"] for stored in worker.scan(wider)} == {1: 7, 2: 7}


# Small files, and old ones


def test_small_files_are_put_together_and_old_ones_deleted_on_schedule(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.delta.sink.OPTIMIZE_EVERY_COMMITS", 10)
    sink = lake.sink(1, ITEMS, retention_hours=1)
    for number in range(8):
        sink.apply(batch(item(number, "a", 1)))
    assert len(DeltaTable(lake.root / "shop_g1/items").file_uris()) == 8
    orphans = [lake.root / "shop_g1/items" / name for name in ("part-old.parquet", "part-young.parquet")]
    for orphan in orphans:
        orphan.write_bytes(b"what a killed writer left")
    os.utime(orphans[0], (time.time() - 2 * 3600,) * 2)
    sink.apply(batch(item(8, "a", 1)))
    sink.apply(batch(item(9, "a", 1)))
    delta_table = DeltaTable(lake.root / "shop_g1/items")
    assert len(delta_table.file_uris()) == 1
    assert notes_of(sink) == dict.fromkeys(range(10), "a")
    assert [orphan.exists() for orphan in orphans] == [False, True]
    assert (
        len(DeltaTable(lake.root / "shop_g1/items", version=delta_table.version() - 3).to_pyarrow_table()) == 10
    )  # readable


def test_putting_files_together_brings_nothing_back_that_was_replaced_meanwhile(lake: Lake) -> None:
    sink = lake.sink(1, ITEMS)
    for number in range(6):
        sink.apply(batch(item(number, "old", 1)))
    late = DeltaTable(lake.root / "shop_g1/items")
    sink.apply(batch(item(1, "new", 2), delete({"id": 2}, 2, of=ITEMS)))
    with pytest.raises(CommitFailedError):
        late.optimize.compact()
    assert notes_of(sink) == {0: "old", 1: "new", 3: "old", 4: "old", 5: "old"}


def test_rows_that_are_replaced_while_files_are_put_together_are_there_once(lake: Lake) -> None:
    worker, other = lake.sink(1, ITEMS), lake.sink(1)
    for number in range(6):
        worker.apply(batch(item(number, "old", 1)))
    compact = DeltaTable(lake.root / "shop_g1/items").optimize.compact
    assert other.apply(batch(interrupted(1, "new", 2, compact), item(2, "new", 2))).applied == 2
    assert notes_of(worker) == {0: "old", 1: "new", 2: "new", 3: "old", 4: "old", 5: "old"}
    assert len(lake.rows()) == 6


# Leftovers


def test_what_a_killed_prepare_left_is_taken_over(lake: Lake) -> None:
    lake.sink(1, ITEMS)
    for file in sorted((lake.root / "shop_live").rglob("*"), reverse=True):  # the bookkeeping had no entry yet
        file.rmdir() if file.is_dir() else file.unlink()
    (lake.root / "shop_live").rmdir()
    wider = replace(ITEMS, columns=(*ITEMS.columns, column("added")))
    sink = lake.sink(1, wider)
    fence = sink.claim()
    assert sink.apply(batch(upsert({"id": 1, "note": "a", "added": "b"}, 1, of=wider), fence=fence)).applied == 1
    assert generations_of(sink).live() == 1


@pytest.mark.soak
def test_a_late_writer_of_a_dropped_generation_does_not_get_into_the_next_of_its_number(lake: Lake) -> None:
    lake.sink(1, ITEMS)
    late = lake.sink(2, ITEMS)
    late.apply(batch(item(1, "old", 1)))
    lake.generations(2).drop()
    assert not (lake.root / "shop_g2/items").exists()
    with pytest.raises(LockstepError):
        late.apply(batch(item(1, "late", 9)))
    again = lake.sink(2, ITEMS)
    with pytest.raises(LockstepError):
        late.apply(batch(item(1, "later", 9)))
    again.apply(batch(item(1, "new", 2)))
    assert notes_of(again) == {1: "new"}
    assert [row["note"] for row in lake.rows("shop_g2/items-1")] == ["new"]


def test_a_table_that_somebody_has_removed_is_an_error(lake: Lake) -> None:
    sink = lake.sink(1, ITEMS)
    sink.apply(batch(item(1, "a", 1)))
    for file in sorted((lake.root / "shop_g1").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    for writer in (sink, lake.sink(1)):
        with pytest.raises(LockstepError) as failure:
            writer.apply(batch(item(2, "b", 1)))
        assert "rebuild" in (failure.value.hint or "")


@pytest.mark.parametrize("others", [1, 8], ids=["behind it", "beyond it"])
@pytest.mark.soak
def test_a_writer_that_wakes_up_over_a_lake_that_was_put_back_and_went_on_is_fenced(
    lake: Lake, tmp_path: Path, others: int
) -> None:
    """It knows the table's log by commits that are gone, and others have their numbers."""
    old = lake.sink(1, ITEMS)
    old_fence = old.claim()
    put_back = directory_copy(lake.root, "shop", tmp_path / "copy")
    for number in range(3):
        old.apply(batch(item(number, "lost", 1), fence=old_fence))
    put_back()
    new = lake.sink(1, ITEMS)
    fence = new.claim()
    for number in range(others):
        new.apply(batch(item(number, "kept", 1), fence=fence))
    assert notes_of(old) == dict.fromkeys(range(others), "kept")
    with pytest.raises(Fenced):
        old.apply(batch(item(0, "late", 2), fence=old_fence))
    assert notes_of(lake.sink(1)) == dict.fromkeys(range(others), "kept")


# Tables that don't fit


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([column("_tag")], "a name that the Delta sink needs"),
        ([column("_Deleted")], "a name that the Delta sink needs"),
        ([column("a`b")], "a backtick"),
        ([column("size"), column("Size")], "the same for Delta"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.soak
def test_a_column_that_delta_cannot_have_is_refused_with_the_way_out(
    lake: Lake, columns: list[Any], message: str
) -> None:
    with pytest.raises(LockstepError, match=message) as failure:
        lake.sink(1, table(column("id", "int8"), *columns))
    assert "exclude" in (failure.value.hint or "")


# A store that isn't there


def test_a_store_that_does_not_answer_is_waited_for_and_no_secret_is_told() -> None:
    with socket.socket() as taken:  # bound and not listening: nobody else can take the port
        taken.bind(("127.0.0.1", 0))
        settings = DeltaSettings(
            root="s3://bucket/lake",
            login=Login(user="key-id", password=SecretStr("secret-word")),
            storage_options={
                "aws_endpoint_url": f"http://127.0.0.1:{taken.getsockname()[1]}",
                "aws_allow_http": "true",
                "aws_region": "us-east-1",
            },
        )
        sink = DeltaParts(DeltaTables("shop", settings, 1), settings)
        with pytest.raises(Unavailable) as failure:
            generations_of(sink).load_progress()
    assert "secret-word" not in str(failure.value)
    assert "\x1b" not in str(failure.value)


def test_readers_are_shown_the_rows_that_are_not_deleted(lake: Lake) -> None:
    sink = lake.sink(1, ITEMS)
    sink.apply(batch(item(1, "a", 1), item(2, "b", 1)))
    sink.apply(batch(delete({"id": 1}, 2, of=ITEMS)))
    generations_of(sink).save_progress(progress())
    dataset = DeltaTable(lake.root / "shop_g1/items").to_pyarrow_dataset()
    assert dataset.to_table(["id", "note"], filter=~ds.field("_deleted")).to_pylist() == [{"id": 2, "note": "b"}]
    assert [(row["id"], row["note"], row["_deleted"]) for row in lake.rows()] == [(1, None, True), (2, "b", False)]
