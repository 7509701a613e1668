"""A full disk under sinks that write to our own disk: reported, nothing half done, nothing lost once there is room.

OpenSearch blocks its indexes and Redis refuses to write before that happens; their own tests have these cases.
"""

import contextlib
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr
from sqlalchemy import make_url

from cdc.model.errors import LockstepError, StoreRefuses
from sinks.contract import Batch, Sink
from sinks.delta.settings import DeltaSettings
from sinks.delta.sink import open_delta
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.tables import WarehouseTables
from tests.builders import batch, table, upsert
from tests.services import temporary_directory

pytestmark = pytest.mark.live

_DISK_MB = 48


class Disk:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        with self._ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def make_room(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def disk() -> Iterator[Disk]:
    with temporary_directory() as directory:  # not pytest's own: as root, PostgreSQL's user couldn't enter it
        path = directory / "disk"
        path.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m,mode=755", "tmpfs", str(path)],
            capture_output=True,
            check=False,
        )
        if mounted.returncode:
            pytest.skip("only root may mount a file system")
        try:
            yield Disk(path)
        finally:
            subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def warehouse_url(endpoints: Any, disk: Disk) -> Iterator[SecretStr]:
    """A database whose tables are all on the small disk."""
    name = f"full_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as connection:
        row = connection.execute("show data_directory").fetchone()
        assert row is not None
        owner = Path(row[0]).stat()
        folder = disk.path / "tables"
        folder.mkdir()
        os.chown(folder, owner.st_uid, owner.st_gid)
        connection.execute(f"create tablespace {name} location '{folder}'".encode())
        connection.execute(f"create database {name} tablespace {name}".encode())
        try:
            url = make_url(endpoints.warehouse_url).set(database=name)
            yield SecretStr(url.render_as_string(hide_password=False))
        finally:
            connection.execute(f"drop database {name} with (force)".encode())
            connection.execute(f"drop tablespace {name}".encode())


def _batch(first: int, rows: int) -> Batch:
    return batch(*(upsert({"id": n, "note": uuid.uuid4().hex * 40}, 1) for n in range(first, first + rows)))


def _is_stopped_and_goes_on(sink: Sink, disk: Disk) -> None:
    sink.apply(_batch(0, 10))
    disk.fill()
    much = _batch(10, 2_000)
    with pytest.raises(LockstepError, match=r"(?i)no space left|could not extend|could not write") as caught:
        sink.apply(much)
    assert type(caught.value) is StoreRefuses, "not to be retried, and of no single table: somebody has to act"
    assert "free space" in (caught.value.hint or "")
    assert much.events[0].row is not None
    assert str(much.events[0].row["note"]) not in str(caught.value)
    disk.make_room()
    assert {row.key["id"] for row in sink.scan(table())} == set(range(10)), "nothing of the batch"
    outcome = sink.apply(much)
    assert (outcome.applied, outcome.rejections) == (2_000, [])
    assert {row.key["id"] for row in sink.scan(table())} == set(range(2_010))


def test_the_warehouses_disk_is_full(warehouse_url: SecretStr, disk: Disk) -> None:
    sink = WarehouseSink(WarehouseTables("shop", WarehouseSettings(url=warehouse_url), 1))
    try:
        sink.prepare([table()])
        _is_stopped_and_goes_on(sink, disk)
    finally:
        sink.close()


@pytest.mark.soak
def test_the_disk_of_a_warehouse_in_a_file_is_full(disk: Disk) -> None:
    sink = WarehouseSink(
        WarehouseTables("shop", WarehouseSettings(url=SecretStr(f"duckdb:///{disk.path}/warehouse.duckdb")), 1)
    )
    try:
        sink.prepare([table()])
        _is_stopped_and_goes_on(sink, disk)
    finally:
        sink.close()


@pytest.mark.soak
def test_the_lakes_disk_is_full(disk: Disk) -> None:
    with closing(open_delta("shop", DeltaSettings(root=str(disk.path / "lake")), 1).sink) as sink:
        sink.prepare([table()])
        _is_stopped_and_goes_on(sink, disk)
