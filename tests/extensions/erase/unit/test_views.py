"""extensions.erase.views: which views are looked at, and what is said of one whose job is behind"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from cdc.model.tag import Tag
from extensions.erase import views
from extensions.erase.topics import TopicErasing
from extensions.erase.views import ViewErasing
from jobs.generations.record import Generation, Phase, Record
from lockstep import erasing
from lockstep.config import Config, read
from lockstep.erasing import DeletedRow, Place
from sinks.contract import Progress
from sinks.registry import definition
from tests.builders import batch, column, delete, progress, table, upsert
from tests.configurations import CACHE, query, toml
from tests.duckdb_sink import open_duckdb

_VIEW = query("views.open", "select id from orders")
_FILE = toml(CACHE, "apply = false\n", _VIEW, tables=["public.orders", "public.items"])
_GONE_AT = str(Tag(1, 500, 0))
_RESULT = table(column("id", "int8"), name=TableName("views", "open"))


def _erasing(
    config: Config, table_name: str = "orders", published: Callable[[], str] = lambda: _GONE_AT
) -> ViewErasing:
    deleted = table(column("id", "int8"), name=TableName("public", table_name))
    row = DeletedRow(deleted, {"id": 1}, "", table_name, _GONE_AT)
    topics = cast("TopicErasing", None)  # no view of these tests has a topic
    return ViewErasing(config, row, topics, published=published, timeout_s=0.1, check=lambda: None, say=lambda _: None)


def _config(tmp_path: Path) -> Config:
    (tmp_path / "lockstep.toml").write_text(_FILE)
    return read(tmp_path / "lockstep.toml")


@pytest.mark.parametrize(
    ("built_over", "table_name", "expected"),
    [
        ("orders", "orders", [("open", [1])]),
        ("orders", "items", []),
        ("items", "items", [("open", [1])]),
        ("items", "orders", [("open", [])]),
        (None, "items", [("open", "redis doesn't answer")]),
    ],
)
def test_a_generation_that_was_built_with_another_query_counts_and_one_that_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built_over: str | None, table_name: str, expected: Sequence[object]
) -> None:
    config = _config(tmp_path)

    def generations(*_: object) -> list[Generation]:
        if built_over is None:
            raise Unavailable("redis doesn't answer")
        path = tmp_path / "other.toml"
        path.write_text(_FILE.replace("from orders", f"from {built_over}"))
        return [Generation(1, is_live=True, record=Record("shop", definition(read(path).sinks["open"])))]

    monkeypatch.setattr(views, "list_of", generations)

    def told(found: Sequence[Generation] | LockstepError) -> object:
        return found.message if isinstance(found, LockstepError) else [each.number for each in found]

    erasing = _erasing(config, table_name)
    assert [(name, told(found)) for name, found in erasing.reading] == expected
    if built_over is None:
        assert [place.is_proven for place in erasing.places(only_look=False)] == [False]


@pytest.mark.parametrize(
    ("topic", "table_name", "expected"),
    [
        ("shop.__views.open.g1", "orders", False),
        ("shop.__views.open.g1", "items", True),
        ("shop.__views.open.g2", "orders", True),
        ("shop.__views.open.g2", "items", False),
        ("shop.__views.open.g3", "items", True),
        ("shop.__views.gone.g1", "items", True),
        ("shop.public.items", "items", False),
        ("other.__views.open.g1", "items", False),
    ],
)
def test_a_views_topic_may_have_had_the_row_unless_its_generation_is_known_not_to_read_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str, table_name: str, expected: bool
) -> None:
    config = _config(tmp_path)
    path = tmp_path / "other.toml"
    path.write_text(_FILE.replace("from orders", "from items"))
    generations = [
        Generation(number, is_live=True, record=Record("shop", definition(read(at).sinks["open"])))
        for number, at in enumerate((path, tmp_path / "lockstep.toml"), 1)
    ]
    monkeypatch.setattr(views, "list_of", lambda *_: generations)
    assert _erasing(config, table_name).may_have_written(topic) is expected


def test_what_nobody_knows_of_a_view_may_have_had_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> list[Generation]:
        raise Unavailable("redis doesn't answer")

    monkeypatch.setattr(views, "list_of", gone)
    assert _erasing(_config(tmp_path)).may_have_written("shop.__views.open.g1")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Place]]:
    """What is said of a view that has a row, and the mark of one that is gone; its job is at some LSN.

    It goes on to ``until_lsn`` meanwhile, where all is published up to ``published_lsn``.
    """

    def of(
        *,
        at_lsn: int,
        until_lsn: int = 0,
        published_lsn: int = 0,
        phase: Phase = Phase.READY,
        only_look: bool = False,
        **more: Any,
    ) -> list[Place]:
        config = _config(tmp_path)
        opened = open_duckdb(directory := Path(tempfile.mkdtemp(dir=tmp_path)))
        opened.sink.prepare([_RESULT])
        opened.sink.apply(batch(upsert({"id": 1}, 1, of=_RESULT), delete({"id": 2}, str(Tag(1, 501, 1)), of=_RESULT)))
        reached: Progress = replace(progress(at_lsn), epoch=1, **more)
        opened.generations.save_progress(reached)
        opened.sink.close()

        def published() -> str:
            with closing((job := open_duckdb(directory)).sink):
                job.generations.save_progress(replace(reached, watermark_lsn=max(at_lsn, until_lsn)))
            return str(Tag(1, published_lsn, 0))

        record = Record("shop", definition(config.sinks["open"]), phase)

        monkeypatch.setattr(views, "list_of", lambda *_: [Generation(1, is_live=True, record=record)])
        monkeypatch.setattr(views, "open_sink", lambda *_: open_duckdb(directory))
        monkeypatch.setattr(views, "TopicAdmin", lambda _: SimpleNamespace(exists=lambda _: False))
        monkeypatch.setattr(erasing, "LOOK_EVERY_S", 0.01)
        return list(_erasing(config, published=published).places(only_look=only_look))

    return of


def test_what_a_view_keeps_of_rows_that_are_gone_is_removed_once_it_is_as_of_after_the_deletion(
    places: Callable[..., list[Place]],
) -> None:
    (place,) = places(at_lsn=502)
    assert (place.name, place.left, place.is_proven) == ("view open, generation 1 (live)", (), True)
    assert [leftover.what for leftover in place.found] == ["1 mark of deleted rows, with their keys"]


def test_a_mark_of_a_step_that_ended_at_a_record_which_the_driver_has_not_read_yet_is_removed_too(
    places: Callable[..., list[Place]],
) -> None:
    (place,) = places(at_lsn=500, until_lsn=502, published_lsn=502)
    assert (place.left, place.is_proven) == ((), True)
    (place,) = places(at_lsn=500, until_lsn=501, published_lsn=502)
    assert not place.is_proven


@pytest.mark.parametrize("behind", [{"at_lsn": 499}, {"at_lsn": 900, "left_at_ms": {"t": 5}}])
def test_nothing_is_proven_of_one_that_is_behind(places: Callable[..., list[Place]], behind: dict[str, Any]) -> None:
    (place,) = places(**behind)
    assert not place.is_proven
    assert "lockstep generations open --drop 1" in (place.why or "")
    assert place.left


def test_one_that_is_being_built_is_to_be_asked_again_and_one_is_looked_at_without_a_change(
    places: Callable[..., list[Place]],
) -> None:
    (place,) = places(at_lsn=900, phase=Phase.BUILDING)
    assert "it is building" in (place.unasked or "")
    (place,) = places(at_lsn=900, only_look=True)
    assert place.left == place.found != ()
