"""lockstep.erase.sinks: what is said of sinks that aren't asked"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.model.errors import Unavailable
from cdc.model.table import TableName
from jobs.generations.record import Generation, Record
from lockstep.config import Config, read
from lockstep.erase import sinks
from lockstep.erase.report import Place
from lockstep.erase.sinks import DeletedRow, SinkErasing
from sinks.contract import Progress
from sinks.memory import MemoryStore, open_memory
from sinks.registry import definition
from tests.builders import column, progress, table, tag

_FILE = """
[pipeline]
name = "shop"
[source]
dsn = "host=db dbname=shop user=me"
tables = ["public.orders", "public.items"]
[kafka]
bootstrap_servers = "127.0.0.1:9092"
[sinks.cache]
type = "redis"
url = "redis://127.0.0.1:1"
apply = false
[views.open]
sink = "cache"
key = ["id"]
sql = "select id from orders"
"""


@pytest.mark.parametrize(
    ("built_over", "table_name", "proven"),
    [
        ("orders", "orders", [("view open", False)]),
        ("orders", "items", []),
        ("items", "items", [("view open", False)]),
        (None, "items", [("view open", False)]),
    ],
)
def test_a_view_proves_nothing_of_the_tables_that_it_reads_or_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built_over: str | None, table_name: str, proven: Sequence[object]
) -> None:
    """Also where a generation that is kept was built with another query, and where nobody can say which one."""
    path = tmp_path / "lockstep.toml"
    path.write_text(_FILE)
    config = read(path)

    def generations(*_: object) -> list[Generation]:
        if built_over is None:
            raise Unavailable("redis doesn't answer")
        path.write_text(_FILE.replace("from orders", f"from {built_over}"))
        return [Generation(1, is_live=True, record=Record("shop", definition(read(path).sinks["open"])))]

    monkeypatch.setattr(sinks, "list_of", generations)
    deleted = table(column("id", "int8"), name=TableName("public", table_name))
    erasing = SinkErasing(config, DeletedRow(deleted, {"id": 1}, "", table_name), timeout_s=1, check=lambda: None)
    assert [(place.name, place.is_proven) for place in erasing.places("open", only_look=False)] == proven


ORDERS = table(column("id", "int8"), name=TableName("public", "orders"))


def _config(tmp_path: Path, tables: str = "") -> Config:
    (tmp_path / "lockstep.toml").write_text(_FILE.replace("apply = false", tables).split("[views")[0])
    return read(tmp_path / "lockstep.toml")


def _place(config: Config, monkeypatch: pytest.MonkeyPatch, stored: Progress) -> Place:
    """What is said of a generation that has nothing of a row which was deleted by transaction 5."""
    opened = open_memory(MemoryStore(), 1)
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
