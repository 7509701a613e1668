"""Warehouses in a DuckDB file: opened as a job does, and read as any reader does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
from pydantic import SecretStr

from cdc.model.table import Table
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.tables import WarehouseTables
from tests.contract.beside import WarehouseParts

Open = Callable[..., WarehouseParts]


@contextmanager
def sinks_of(file: Path, **settings: Any) -> Iterator[Open]:
    """Opens sinks of pipeline ``shop`` with their tables prepared, and closes them in the end."""
    opened = []

    def open_(*tables: Table, generation: int = 1, **more: Any) -> WarehouseParts:
        chosen = WarehouseSettings(**{"url": SecretStr(f"duckdb:///{file}"), **settings, **more})
        sink = WarehouseParts(WarehouseTables("shop", chosen, generation))
        opened.append(sink)
        if tables:
            sink.prepare(tables)
        return sink

    try:
        yield open_
    finally:
        for sink in opened:
            sink.close()


def read(file: Path, query: str) -> list[Any]:
    """Read as any reader does that knows nothing of us."""
    with duckdb.connect(str(file), read_only=True) as connection:
        connection.execute("set timezone = 'UTC'")
        return [tuple(row.values()) for row in connection.sql(query).to_arrow_table().to_pylist()]
