"""extensions.erase.sinks: what is said of sinks that aren't asked"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.model.table import TableName
from extensions.erase import sinks
from extensions.erase.sinks import SinkErasing
from jobs.generations.record import Generation
from lockstep.config import Config
from lockstep.erasing import DeletedRow, Place
from sinks.contract import OpenedSink, Progress
from sinks.memory import MemoryStore, open_memory
from tests.builders import column, progress, table, tag
from tests.configurations import CACHE, configured
from tests.duckdb_sink import open_duckdb

ORDERS = table(column("id", "int8"), name=TableName("public", "orders"))


def _config(tmp_path: Path, tables: str = "") -> Config:
    return configured(tmp_path, CACHE, tables, tables=["public.orders", "public.items"])


def _place(
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
    stored: Progress,
    opened_in: Callable[[Path], OpenedSink] = open_duckdb,
) -> Place:
    """What is said of a generation that has nothing of a row which was deleted by transaction 5."""
    with tempfile.TemporaryDirectory() as directory:
        opened = opened_in(Path(directory))
        opened.sink.prepare([ORDERS])
        opened.generations.save_progress(stored)
        generation = Generation(1, is_live=True, record=None)
        monkeypatch.setattr(sinks, "list_of", lambda *_: [generation])
        monkeypatch.setattr(sinks, "settings_of_generation", lambda config, sink, _: config.sinks[sink])
        monkeypatch.setattr(sinks, "open_sink", lambda *_: opened)
        erasing = SinkErasing(config, DeletedRow(ORDERS, {"id": 1}, tag(5), "orders"), timeout_s=0, check=lambda: None)
        (place,) = erasing.places("cache", only_look=False)
        return place


BEHIND, PAST = progress(0x1000000, epoch=1), progress(0x2000000, epoch=1)


def test_a_generation_that_has_not_applied_the_deletion_may_still_get_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job may have read the row already, and write it after this look."""
    place = _place(_config(tmp_path), monkeypatch, BEHIND)
    assert (place.is_proven, place.unasked) == (False, None)
    assert "hasn't applied all up to the deletion" in (place.why or "")
    assert _place(_config(tmp_path), monkeypatch, PAST).is_proven


def test_a_table_that_left_keeps_no_row_of_another_one_from_being_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(tmp_path)
    assert _place(config, monkeypatch, replace(PAST, left_at_ms={"items": 5}, joining=("late",))).is_proven
    assert not _place(config, monkeypatch, replace(PAST, left_at_ms={"orders": 5})).is_proven
    assert not _place(config, monkeypatch, replace(PAST, joining=("orders",))).is_proven


def test_a_sink_that_does_not_have_the_table_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _place(_config(tmp_path, 'tables = ["public.items"]'), monkeypatch, BEHIND).is_proven


def test_a_sink_that_is_not_able_to_erase_is_told_of_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = _place(_config(tmp_path), monkeypatch, PAST, lambda _: open_memory(MemoryStore()))
    assert (place.name, place.is_proven) == ("sink cache, generation 1 (live)", False)
    assert "can't erase here: a sink of type 'redis'" in (place.unasked or "")
