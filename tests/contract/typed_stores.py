"""Stores with typed columns, as a job opens them and as anybody reads them: a warehouse in PostgreSQL, one in a DuckDB
file, and a lake."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from deltalake import DeltaTable
from pydantic import SecretStr

from cdc.model.table import Table
from sinks.contract import OpenedSink
from sinks.delta.settings import DeltaSettings
from sinks.delta.sink import open_delta
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import open_warehouse
from tests.builders import progress

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LSN = 0x1000000
AT_ONCE = 1e-9  # of a day

POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.live)
WAREHOUSES = [POSTGRESQL, "duckdb"]
ALL = [*WAREHOUSES, "delta"]


@dataclass
class Store:
    """Sinks of one name."""

    kind: str
    name: str
    open_generation: Callable[[str, int, dict[str, Any]], OpenedSink]
    query: Callable[[str], list[Any]]
    """Answers SQL as readers of a warehouse get it."""
    read: Callable[[str, str], list[dict[str, Any]]]
    """All rows of a table in a directory or schema, with our own columns."""
    settings: dict[str, Any] = field(default_factory=dict)
    closing: ExitStack = field(default_factory=ExitStack)

    def open(self, *tables: Table, generation: int = 1, **settings: Any) -> OpenedSink:
        """A sink, prepared if tables are given."""
        opened = self.open_generation(self.name, generation, self.settings | settings)
        self.closing.callback(opened.sink.close)
        if tables:
            opened.sink.prepare(tables)
        return opened

    @contextmanager
    def another(self) -> Iterator["Store"]:
        """Sinks of another name in the same place."""
        made = replace(self, name=f"t{uuid.uuid4().hex[:12]}", closing=ExitStack())
        with made.closing:
            yield made

    def rows(self, table: str = "orders", generation: int = 1) -> list[dict[str, Any]]:
        return sorted(self.read(f"{self.name}_g{generation}", table), key=lambda row: str(row.get("id")))


def _of_warehouse(kind: str, name: str, url: str, query: Callable[[str], list[dict[str, Any]]]) -> Store:
    def open_(name: str, generation: int, settings: dict[str, Any]) -> OpenedSink:
        chosen = {"url": SecretStr(url), "lock_timeout_s": 1} | settings
        return open_warehouse(name, WarehouseSettings(**chosen), generation)

    return Store(
        kind,
        name,
        open_,
        lambda text: [tuple(row.values()) for row in query(text)],
        lambda schema, table: query(f"select * from {schema}.{table}"),
    )


def _ask_server(dsn: str, text: str) -> list[dict[str, Any]]:
    with psycopg.connect(dsn, autocommit=True, row_factory=psycopg.rows.dict_row) as connection:
        connection.execute("set timezone = 'UTC'")
        return connection.execute(text.encode()).fetchall()


def _ask_file(file: Path, text: str) -> list[dict[str, Any]]:
    with duckdb.connect(str(file), read_only=True) as connection:
        connection.execute("set timezone = 'UTC'")
        rows: list[dict[str, Any]] = connection.sql(text).to_arrow_table().to_pylist()
        return rows


def _of_lake(name: str, root: Path) -> Store:
    def open_(name: str, generation: int, settings: dict[str, Any]) -> OpenedSink:
        return open_delta(name, DeltaSettings(root=str(root), **settings), generation)

    def read(directory: str, table: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = DeltaTable(str(root / directory / table)).to_pyarrow_table().to_pylist()
        return rows

    return Store("delta", name, open_, lambda _: [], read)


def opened_store(kind: str, name: str, directory: Path, endpoints: Callable[[], Any]) -> Store:
    """The store of a kind. Asks for the servers only if it needs one."""
    if kind == "postgresql":
        ask = partial(_ask_server, endpoints().warehouse_dsn)
        return _of_warehouse(kind, name, endpoints().warehouse_url, ask)
    if kind == "duckdb":
        file = directory / "dwh.duckdb"
        return _of_warehouse(kind, name, f"duckdb:///{file}", partial(_ask_file, file))
    return _of_lake(name, directory)


def save(opened: OpenedSink, commit: int, *, whole: Any = None, **changes: Any) -> None:
    """Store that all of the ``commit``-th transaction is applied, and nothing more."""
    opened.generations.load_progress()
    reached = progress(**{"watermark_lsn": LSN + commit * 8 + 1, "epoch": 1, **changes})
    opened.generations.save_progress(reached, whole=whole)
