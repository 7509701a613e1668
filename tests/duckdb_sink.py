"""A real destination that needs no server, for tests of what the one in memory can't do."""

from pathlib import Path

from pydantic import SecretStr

from sinks.contract import OpenedSink
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import open_warehouse


def open_duckdb(directory: Path, generation: int = 1) -> OpenedSink:
    """A warehouse in a file of this directory, opened for one generation."""
    settings = WarehouseSettings(url=SecretStr(f"duckdb:///{directory}/file.duckdb"))
    return open_warehouse("duck", settings, generation)
