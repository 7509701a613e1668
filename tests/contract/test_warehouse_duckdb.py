"""The warehouse in a DuckDB file: who may use it when, what a crash leaves, values that no column can hold."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pydantic import SecretStr

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.event import JsonValue, RowEvent
from sinks.warehouse.duckdb.file import DuckDbFile
from sinks.warehouse.own_indexes import NAME_PREFIX
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.tables import WarehouseTables
from tests.builders import batch, column, table, upsert
from tests.contract.beside import generations_of
from tests.duckdb_files import Open, read, sinks_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "dwh.duckdb"


@pytest.fixture
def open_sink(file: Path) -> Iterator[Open]:
    with sinks_of(file, lock_timeout_s=0.5) as open_:
        yield open_


def other_process(program: str, *arguments: object) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# Whose turn it is

HOLDING = """
import sys, time, duckdb
held = duckdb.connect(sys.argv[1])
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


def test_a_sink_waits_for_another_process_that_has_the_file(file: Path, open_sink: Open) -> None:
    open_sink(table())
    sink = open_sink(lock_timeout_s=30)
    with other_process(HOLDING, file, 0.7) as holder:
        assert line_of(holder) == "held"
        assert sink.apply(batch(upsert({"id": 1, "note": "a"}, 1))).applied == 1
    assert read(file, "select * from shop.orders") == [(1, "a")]


def test_a_process_that_does_not_let_go_is_named_and_the_batch_can_be_tried_again(file: Path, open_sink: Open) -> None:
    sink = open_sink(table())
    with other_process(HOLDING, file, 600) as holder:
        assert line_of(holder) == "held"
        begin = time.monotonic()
        with pytest.raises(Unavailable, match=rf"process {holder.pid} .*dwh.duckdb.*one process at a time"):
            sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
        assert 0.3 < time.monotonic() - begin < 5
        holder.kill()
    assert sink.apply(batch(upsert({"id": 1, "note": "a"}, 1))).applied == 1


def test_what_was_committed_before_the_file_was_locked_stays(
    file: Path, open_sink: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB reads the headers before it has the lock. Here it reads those from before the last transaction."""
    sink = open_sink(table())
    headers = []
    for number in (1, 2):
        sink.apply(batch(upsert({"id": number, "note": "a"}, number)))
        headers.append(file.read_bytes()[: 3 * 4096])
    descriptor = os.open(file, os.O_RDWR)
    os.pwrite(descriptor, headers[0], 0)
    attach = DuckDbFile.attach

    def attach_late(self: DuckDbFile, execute: Callable[[str], object], *rest: Any) -> None:
        def execute_late(statement: str) -> None:
            execute(statement)
            if statement.startswith("attach"):
                os.pwrite(descriptor, headers[1], 0)

        attach(self, execute_late, *rest)

    monkeypatch.setattr(DuckDbFile, "attach", attach_late)
    sink.apply(batch(upsert({"id": 3, "note": "a"}, 3)))
    os.close(descriptor)
    assert read(file, "select id from shop.orders order by id") == [(1,), (2,), (3,)]


@pytest.mark.soak
def test_who_creates_the_file_second_leaves_what_is_in_it(
    file: Path, open_sink: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    open_sink(table()).apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    late = open_sink()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", lambda _: False)  # as it was a moment ago
        assert late.apply(batch(upsert({"id": 2, "note": "a"}, 2))).applied == 1
    assert read(file, "select id from shop.orders order by id") == [(1,), (2,)]
    assert list(tmp_path.iterdir()) == [file]


ADDING = """
import sys, time
from pydantic import SecretStr
from sinks.warehouse.duckdb import connection, file
from sinks.warehouse.own_indexes import NAME_PREFIX
from sinks.warehouse.settings import WarehouseSettings
file._FIRST_WAIT_S = file._WAIT_S_MAX = 0.0
settings = WarehouseSettings(url=SecretStr(f"duckdb:///{sys.argv[1]}"), lock_timeout_s=60)
opened = connection.DuckDbConnection(settings, views="v", generation=1)
print("ready", flush=True)
added, end = 0, time.monotonic() + 15
while time.monotonic() < end:
    with opened.transaction():
        opened.run("update counter set n = n + 1")
    added += 1
print(added)
"""


@pytest.mark.soak
def test_no_transaction_of_several_processes_is_lost(file: Path) -> None:
    with duckdb.connect(str(file)) as connection:
        connection.execute("create table counter as select 0 as n").fetchall()
    processes = [other_process(ADDING, file) for _ in range(8)]
    assert {line_of(process) for process in processes} == {"ready"}
    added = [int(process.communicate()[0]) for process in processes]
    assert read(file, "select n from counter") == [(sum(added),)]


def test_between_batches_the_file_is_free_and_whole(file: Path, open_sink: Open, tmp_path: Path) -> None:
    sink = open_sink(table())
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    assert list(tmp_path.iterdir()) == [file]
    copy = file.rename(tmp_path / "other name.duckdb")  # the views don't use the file's name
    assert read(copy, "select * from shop.orders") == [(1, "a")]
    copy.rename(file)
    rows = sink.scan(table())
    assert next(rows).key == {"id": 1}
    assert read(file, "select count(*) from shop.orders") == [(1,)], "a scan that isn't over holds nothing"


WRITING = """
import sys
from pydantic import SecretStr
from sinks.warehouse.own_indexes import NAME_PREFIX
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.tables import WarehouseTables
from tests.builders import batch, upsert
settings = WarehouseSettings(url=SecretStr("duckdb:///" + sys.argv[1]), lock_timeout_s=60)
sink = WarehouseSink(WarehouseTables("shop", settings, 1))
for at in range(1, 31):
    rows = ({"id": key, "note": f"{at} by {sys.argv[2]}"} for key in range(20))
    sink.apply(batch(*(upsert(row, 2 * at + int(sys.argv[2])) for row in rows)))
print("done", flush=True)
"""


@pytest.mark.soak
def test_writers_in_several_processes_take_turns(file: Path, open_sink: Open) -> None:
    open_sink(table())
    with other_process(WRITING, file, 0) as writer, other_process(WRITING, file, 1) as other:
        assert [line_of(writer), line_of(other)] == ["done", "done"]
    assert set(read(file, "select note, count(*) from shop.orders group by 1")) == {("30 by 1", 20)}


DYING = """
import sys, time
from pydantic import SecretStr
from sinks.warehouse.own_indexes import NAME_PREFIX
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.stored_progress import StoredProgress
from sinks.warehouse.tables import WarehouseTables
from tests.builders import batch, upsert
StoredProgress.save_offsets = lambda self, offsets: (print("written", flush=True), time.sleep(600))
sink = WarehouseSink(WarehouseTables("shop", WarehouseSettings(url=SecretStr("duckdb:///" + sys.argv[1])), 1))
sink.apply(batch(*(upsert({"id": key, "note": "half"}, 2) for key in range(50_000)), next_offsets={("t", 0): 9}))
"""


@pytest.mark.soak
def test_of_a_job_that_is_killed_in_a_transaction_nothing_is_left(file: Path, open_sink: Open) -> None:
    sink = open_sink(table(), lock_timeout_s=30)
    sink.apply(batch(upsert({"id": 1, "note": "whole"}, 1), next_offsets={("t", 0): 5}))
    with other_process(DYING, file) as job:
        assert line_of(job) == "written"
        job.send_signal(signal.SIGKILL)
    assert [dict(stored.row) for stored in sink.scan(table())] == [{"id": 1, "note": "whole"}]
    assert read(file, "select next_offset from lockstep.applied_offset") == [(5,)]
    assert sink.apply(batch(upsert({"id": 1, "note": "again"}, 2))).applied == 1


LOSING = """
import os, sys, duckdb
held = duckdb.connect(sys.argv[1])
held.execute("pragma disable_checkpoint_on_shutdown; set checkpoint_threshold = '1GB'")
held.execute("begin; insert into shop_g1.orders (id, note, _tag, _deleted) values (7, 'in the log', 'x', false)")
held.execute("commit")
held.execute("begin; insert into shop_g1.orders (id, note, _tag, _deleted) values (8, 'never', 'x', false)")
print("written", flush=True)
os.kill(os.getpid(), 9)
"""


def test_what_was_committed_and_not_yet_in_the_file_is_there_after_a_crash(file: Path, open_sink: Open) -> None:
    sink = open_sink(table(), lock_timeout_s=30)
    with other_process(LOSING, file) as job:
        assert line_of(job) == "written"
    assert Path(f"{file}.wal").exists()
    assert [stored.key["id"] for stored in sink.scan(table())] == [7]


GROWING = """
import os, sys
from pydantic import SecretStr
from sinks.warehouse.duckdb.file import DuckDbFile
from sinks.warehouse.own_indexes import NAME_PREFIX
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.tables import WarehouseTables
from tests.builders import column, table
DuckDbFile.detach = lambda *_: os.kill(os.getpid(), 9)
sink = WarehouseSink(WarehouseTables("shop", WarehouseSettings(url=SecretStr("duckdb:///" + sys.argv[1])), 1))
wider = table(*table().columns, column("grade", "int4"), column("quote"), column("until", "timestamptz"))
sink.prepare([wider], added={wider.name: {"grade": 5, "quote": "it's", "until": "2026-01-01T00:00:00.5Z"}})
"""


def test_what_a_column_was_added_with_is_there_after_a_crash(file: Path, open_sink: Open) -> None:
    """Then it is only in DuckDB's log, which another process reads again."""
    sink = open_sink(table(), lock_timeout_s=30)
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    with other_process(GROWING, file) as job:
        assert job.wait() == -signal.SIGKILL
    assert Path(f"{file}.wal").exists()
    wider = table(*table().columns, column("grade", "int4"), column("quote"), column("until", "timestamptz"))
    expected = {"id": 1, "note": "a", "grade": 5, "quote": "it's", "until": "2026-01-01T00:00:00.5Z"}
    assert [dict(stored.row) for stored in sink.scan(wider)] == [expected]
    sink.prepare([wider])
    sink.apply(batch(upsert({**dict.fromkeys(expected), "id": 2}, 2, of=wider)))
    assert {stored.row["id"]: stored.row["grade"] for stored in sink.scan(wider)} == {1: 5, 2: None}


def test_a_batch_that_fails_writes_nothing(file: Path, open_sink: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = open_sink(table())

    def fail(*_: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr("sinks.warehouse.stored_progress.StoredProgress.save_offsets", fail)
        with pytest.raises(RuntimeError):
            sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    assert read(file, "select * from shop_g1.orders") == []
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1), next_offsets={("t", 0): 5}))
    sink.apply(batch(next_offsets={("t", 0): 3}))
    assert read(file, "select topic, next_offset from lockstep.applied_offset") == [("t", 5)]


# Files that are none


@pytest.mark.soak
def test_a_file_that_cannot_be_used_stops_the_job(tmp_path: Path) -> None:
    def said(path: Path) -> str:
        sink = WarehouseSink(WarehouseTables("shop", WarehouseSettings(url=SecretStr(f"duckdb:///{path}")), 1))
        with pytest.raises(LockstepError) as raised:
            sink.prepare([table()])
        assert not isinstance(raised.value, Unavailable)
        assert raised.value.hint
        return str(raised.value)

    assert "its directory doesn't exist" in said(tmp_path / "missing" / "dwh.duckdb")
    (tmp_path / "directory").mkdir()
    assert "it is a directory" in said(tmp_path / "directory")
    (tmp_path / "other.duckdb").write_bytes(b"something else" * 1000)
    assert "it is no DuckDB file" in said(tmp_path / "other.duckdb")
    whole = tmp_path / "whole.duckdb"
    with duckdb.connect(str(whole)) as connection:
        connection.execute("create table t as select * from range(100000)")
    damaged = bytearray(whole.read_bytes())
    damaged[4096 + 100] ^= 0xFF
    damaged[8192 + 100] ^= 0xFF
    whole.write_bytes(damaged)
    assert "it was damaged" in said(whole)


# Values that a column can't hold


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


ODD = table(
    column("id", "int8"),
    column("price", "numeric", type_modifier=numeric(6, 2)),
    column("at", "timestamptz"),
    column("grid", "int4", is_array=True),
    column("doc", "jsonb"),
)


def odd(number: int, **values: JsonValue) -> RowEvent:
    return upsert({"id": number, "price": "1.10", "at": None, "grid": [1, None], "doc": None, **values}, 1, of=ODD)


def test_what_a_column_cannot_hold_is_beside_it(file: Path, open_sink: Open) -> None:
    sink = open_sink(ODD)
    rows = [
        odd(1, at="infinity"),
        odd(2, price="NaN"),
        odd(3, price="123456.789"),  # after the source's column was widened
        odd(4, at="294276-12-31T23:59:59.999999Z"),
        odd(5, grid=[[1, 2], [3, 4]]),
        odd(6, grid="[0:1]={7,8}", price="NaN"),
    ]
    assert sink.apply(batch(*rows)).applied == 6
    assert [dict(stored.row) for stored in sorted(sink.scan(ODD), key=lambda stored: str(stored.key["id"]))] == [
        event.row for event in rows
    ]
    held = read(
        file,
        "select id, price::varchar as price, orders.at::varchar as moment, grid, _exact from shop_g1.orders"
        " order by id",
    )
    assert held == [
        (1, "1.10", "infinity", [1, None], None),
        (2, None, None, [1, None], '{"price":"NaN"}'),
        (3, None, None, [1, None], '{"price":"123456.789"}'),
        (4, "1.10", None, [1, None], '{"at":"294276-12-31T23:59:59.999999Z"}'),
        (5, "1.10", None, None, '{"grid":[[1,2],[3,4]]}'),
        (6, None, None, None, '{"price":"NaN","grid":"[0:1]={7,8}"}'),
    ]
    sink.apply(batch(upsert({**(rows[1].row or {}), "price": "2.00"}, 2, of=ODD)))
    assert read(file, "select price::varchar as price, _exact from shop_g1.orders where id = 2") == [("2.00", None)]


# Indexes


def indexes(file: Path) -> list[str]:
    """The expressions of our indexes, in SQL."""
    rows = read(file, f"select sql from duckdb_indexes() where starts_with(index_name, '{NAME_PREFIX}')")
    return sorted(row[0].partition(" ON ")[2].rstrip(";") for row in rows)


def declared(*given: dict[str, Any]) -> dict[str, Any]:
    return {"indexes": {"public.orders": given}}


def test_an_index_goes_with_its_declaration_and_one_that_cannot_be_made_stops(file: Path, open_sink: Open) -> None:
    open_sink(table(), **declared({"columns": ["note"]}))
    assert len(indexes(file)) == 1
    open_sink(table())
    assert indexes(file) == []
    grid = table(column("id", "int8"), column("grid", "int4", is_array=True))
    with pytest.raises(LockstepError, match="can't be made"):
        open_sink(grid, generation=2, **declared({"columns": ["grid"]}))


def test_a_generation_gets_its_indexes_after_its_bulk_load(file: Path, open_sink: Open) -> None:
    sink = open_sink(generation=2, **declared({"columns": ["note"]}))
    sink.prepare([table()], go_live=False)
    beside = generations_of(sink)
    beside.begin_bulk()
    assert indexes(file) == []
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    sink.apply(batch(upsert({"id": 1, "note": "b"}, 2)))
    beside.end_bulk()
    assert len(indexes(file)) == 1
    assert [dict(stored.row) for stored in sink.scan(table())] == [{"id": 1, "note": "b"}]
