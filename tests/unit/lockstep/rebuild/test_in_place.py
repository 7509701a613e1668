"""lockstep.rebuild.in_place: what can't be done in place, and what is removed there."""

from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import TypeAdapter

from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.table import TableName
from jobs.generations.record import Phase, Record, load_record, save_record, set_phase
from jobs.query.captured_tables import Captured
from lockstep import generations
from lockstep.config import Config, read
from lockstep.rebuild import in_place
from lockstep.rebuild.in_place import begin_in_place, check_in_place, deletes_of_extra_rows
from lockstep.verify.report import Difference, Kind, TableReport, VerifyReport
from sinks.contract import Progress
from sinks.memory import MemorySink, open_memory
from sinks.registry import SinkSettings, definition
from tests.builders import column, table
from tests.generations import prepared_store


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        ({"type": "redis"}, {"type": "redis", "keys": {"public.orders": "order:{id}"}}, ["keys"]),
        ({"type": "redis", "ttl_s": {"public.orders": 9}}, {"type": "redis", "values": "fields"}, ["ttl_s", "values"]),
        ({"type": "opensearch"}, {"type": "opensearch", "routing": {"public.orders": ["id"]}}, ["routing"]),
        (
            {"type": "warehouse", "url": "postgresql://w", "history": True},
            {"type": "warehouse", "url": "postgresql://w", "history": True, "exclude": ["public.orders.note"]},
            ["exclude"],
        ),
    ],
)
def test_what_would_leave_rows_behind_is_refused_in_place(
    before: dict[str, object], now: dict[str, object], named: list[str]
) -> None:
    adapter: TypeAdapter[SinkSettings] = TypeAdapter(SinkSettings)
    with pytest.raises(ConfigurationError) as raised:
        check_in_place(adapter.validate_python(now), adapter.validate_python(before))
    assert [problem.partition(":")[0] for problem in raised.value.problems] == named
    check_in_place(adapter.validate_python(now), adapter.validate_python(now))


ORDERS, LOG = TableName("public", "orders"), TableName("public", "log")


def test_rows_that_are_too_many_are_removed_but_for_those_that_a_retention_took_from_the_log() -> None:
    stray, twice = (
        Difference(Kind.EXTRA, b'{"id":1}', sink_tag="0" * 27 + "7"),
        Difference(Kind.EXTRA, b'{"id":2}', sink_tag="0" * 27 + "8", note="a second copy"),
    )
    missing = Difference(Kind.MISSING, b'{"id":3}', topic_tag="0" * 27 + "9")
    tables = (
        TableReport(ORDERS, differences=(stray, twice, missing)),
        TableReport(LOG, differences=(Difference(Kind.EXTRA, b'{"_tag":"1"}', sink_tag="0" * 27 + "1"),)),
    )
    deletes = deletes_of_extra_rows(VerifyReport("dwh", 1, "source", None, tables), append_only={LOG})
    assert [(delete.table, delete.key, delete.row, delete.tag) for delete in deletes] == [
        (ORDERS, {"id": 1}, None, "0" * 27 + "7")
    ]


def test_a_view_is_not_written_again_in_place() -> None:
    adapter: TypeAdapter[SinkSettings] = TypeAdapter(SinkSettings)
    view = {"name": "open", "sql": "select id from orders", "key": ["id"]}
    settings = adapter.validate_python({"type": "redis", "url": "redis://cache", "view": view})
    with pytest.raises(ConfigurationError, match="rows of a view"):
        check_in_place(settings, settings)


def test_a_consistent_sink_is_not_written_again_in_place() -> None:
    adapter: TypeAdapter[SinkSettings] = TypeAdapter(SinkSettings)
    settings = adapter.validate_python({"type": "warehouse", "url": "postgresql://w", "consistent": True})
    with pytest.raises(ConfigurationError, match="side by side"):
        check_in_place(settings, settings)


ITEMS = TableName("public", "items")


def _config(path: Path, sink: str) -> Config:
    """Two tables are named, and capture was started without one of them."""
    path.write_text(
        '[pipeline]\nname = "shop"\n[source]\ndsn = "dbname=app"\ntables = ["public.orders", "public.items"]\n'
        '[kafka]\nbootstrap_servers = "nowhere:1"\n'
        f'[sinks.cache]\ntype = "redis"\nurl = "redis://cache"\n{sink}\n'
    )
    config = read(path)
    return config.capturing(config.source.only([ORDERS]))


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        ("", 'mask = { "public.items.note" = "drop" }', ["mask"]),
        ("", 'exclude = ["public.items.note"]', ["exclude"]),
        ('where = { "public.items" = "id > 1" }', 'rename = { "public.items.id" = "number" }', ["rename", "where"]),
        ("", 'mask = { "public.orders.note" = "drop" }', []),
        ('exclude = ["public.items.note"]', "exclude = ['\"public\".items.note']", []),
    ],
)
def test_settings_of_a_table_that_left_are_not_changed_in_place(
    before: str, now: str, named: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows stay and aren't written again: they would show what the generation is said to hide."""
    store = prepared_store(1)
    opened = open_memory(store, 1)
    monkeypatch.setattr(in_place, "open_generation", lambda *_: nullcontext(opened))
    for module in (in_place, generations):  # to see that nobody applies to it takes seconds
        monkeypatch.setattr(module, "is_running", lambda *_: False)
    built_with, config = _config(tmp_path / "before.toml", before), _config(tmp_path / "now.toml", now)
    record = Record("shop", definition(built_with.sinks["cache"]))
    save_record(opened.records, 1, record)
    sink = config.sinks["cache"]

    def begin() -> None:
        begin_in_place(config, "cache", sink, print)

    if named:
        begin()  # of that table there is no row
        assert begin_in_place(config, "cache", sink, print)[1].definition == definition(sink)
    topic = config.as_pipeline().topics()[ORDERS].replace("orders", "items")
    opened.sink.claim()
    opened.generations.save_progress(Progress({(topic, 0): 5}, 0, 0, 0, {topic: "id"}))
    for phase in (Phase.READY, Phase.REPLAYING):  # also where a replay has failed, or was interrupted
        if named:
            set_phase(opened.records, 1, phase)
            with pytest.raises(ConfigurationError) as refused:
                begin()
            assert [problem.partition(":")[0] for problem in refused.value.problems] == named
            assert "lockstep rebuild cache --switch" in (refused.value.hint or "")
        else:
            begin()


def test_a_replay_that_failed_leaves_on_record_what_rows_may_lack_until_one_has_ended_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a value that is to be hidden stays readable in some rows, and nothing says so."""
    opened = open_memory(prepared_store(1), 1)
    monkeypatch.setattr(in_place, "open_generation", lambda *_: nullcontext(opened))
    for module in (in_place, generations):
        monkeypatch.setattr(module, "is_running", lambda *_: False)
    before = _config(tmp_path / "before.toml", "")
    config = _config(tmp_path / "now.toml", 'mask = { "public.orders.note" = "drop" }')
    sink = config.sinks["cache"]
    save_record(opened.records, 1, Record("shop", definition(before.sinks["cache"])))
    context = cast("Any", SimpleNamespace(name="cache", observer=SimpleNamespace(say=print)))

    def replay(*, fails: bool) -> Record:
        _, begun = begin_in_place(config, "cache", sink, print)
        assert (begun.phase, begun.changed_settings(sink)) == (Phase.REPLAYING, ["mask"])
        with suppress(LockstepError), in_place._given_back(context, 1, begun, opened.records):
            if fails:
                raise LockstepError("the server is gone")
        record = load_record(opened.records, 1)
        assert record is not None
        assert (record.phase, record.definition) == (Phase.READY, definition(sink))
        return record

    for _ in range(2):
        assert replay(fails=True).changed_settings(sink) == ["mask"]
    assert replay(fails=False).changed_settings(sink) == []


def test_a_table_that_leaves_capture_while_all_is_written_again_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(tmp_path / "lockstep.toml", 'tables = ["public.orders", "public.items"]')
    begun = config.capturing(config.source.only([ORDERS, ITEMS]))
    store = prepared_store(1)
    MemorySink(store, 1).prepare(
        [table(column("id", "int8"), name=name) for name in (ITEMS, TableName("public", "gone"))]
    )
    monkeypatch.setattr(generations, "captured_now", lambda _: Captured([ORDERS]))
    said: list[str] = []
    context = cast(
        "Any",
        SimpleNamespace(
            config=begun, settings=begun.sinks["cache"], name="cache", observer=SimpleNamespace(say=said.append)
        ),
    )
    in_place._remove_tables_that_left(context, 1, open_memory(store, 1))
    assert set(store.generation(1).newest) == {ORDERS, ITEMS}
    assert said == ["removed tables that this sink doesn't have any more: public.gone"]
