"""Options that can't be meant are refused before any server is asked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.table import TableName
from jobs.query.captured_tables import Captured
from lockstep import generations
from lockstep.config import Config
from lockstep.verify.options import SOURCE, VerifyOptions
from lockstep.verify.report import TableReport, VerifyReport
from lockstep.verify.result import VerifyOutcome
from lockstep.verify.verify import verify
from tests.configurations import CACHE, configured

SINKS = f"""{CACHE}tables = ["public.orders"]\n[sinks.all]\ntype = "redis"\nurl = "redis://127.0.0.1:1/0"\n"""
TABLES = ("public.orders", "public.items")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return configured(tmp_path, SINKS, tables=TABLES)


def compare(config: Config, options: VerifyOptions) -> VerifyReport:
    return verify(config, options, say=print, progress=lambda _: None, stopping=lambda: False)


def refused(config: Config, **changes: object) -> ConfigurationError:
    options = replace(VerifyOptions("all"), **changes)
    with pytest.raises(ConfigurationError) as caught:
        compare(config, options)
    return caught.value


def test_an_unknown_sink_is_refused_with_the_known_ones(config: Config) -> None:
    error = refused(config, sink="cash")

    assert "no such sink: cash" in error.message
    assert error.hint == "sinks of this configuration: cache, all"


def test_a_table_that_the_sink_does_not_have_is_refused(config: Config) -> None:
    error = refused(config, sink="cache", tables=("public.items",))

    assert "has no table public.items" in error.message
    assert error.hint == "its tables: public.orders"


ORDERS, ITEMS = TableName("public", "orders"), TableName("public", "items")


def test_a_sink_without_a_captured_table_has_nothing_to_compare(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generations, "captured_now", lambda _: Captured([ITEMS]))
    with pytest.raises(LockstepError, match=r"public\.orders isn't captured"):
        compare(config, VerifyOptions("cache"))


def test_a_view_one_of_whose_tables_left_capture_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for that table, so it would differ from its query, or be waited for in vain."""
    view = '[views.joined]\nsink = "all"\nkey = ["id"]\n'
    view += 'sql = "select o.id from public.orders o join public.items i on i.id = o.id"\n'
    monkeypatch.setattr(generations, "captured_now", lambda _: Captured([ITEMS]))
    with pytest.raises(LockstepError, match=r"view 'joined' reads public\.orders, which isn't captured") as refused:
        verify(
            configured(tmp_path, SINKS, view, tables=TABLES),
            VerifyOptions("joined"),
            say=print,
            progress=lambda _: None,
            stopping=lambda: False,
        )
    assert "lockstep doctor" in (refused.value.hint or "")


def test_a_table_that_is_named_and_not_captured_is_told_of_and_the_others_are_compared(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(*args: Any, **_: object) -> VerifyReport:
        names = args[3]
        assert names == [ITEMS]
        return VerifyReport("all", 1, SOURCE, 7, (TableReport(ITEMS),))

    monkeypatch.setattr(generations, "captured_now", lambda _: Captured([ITEMS]))
    monkeypatch.setattr("lockstep.verify.verify.compare_tables", found)
    report = compare(config, VerifyOptions("all"))
    assert [(table.table, bool(table.not_compared)) for table in report.tables] == [(ORDERS, True), (ITEMS, False)]
    assert report.outcome is VerifyOutcome.INCOMPLETE


def test_text_that_is_no_table_is_refused(config: Config) -> None:
    assert "--table" in refused(config, tables=("orders",)).message


def test_keys_need_one_table(config: Config) -> None:
    assert "--keys" in refused(config, keys=('{"id": 1}',)).message


@pytest.mark.parametrize("text", ["sauce", "0", "-1", "1.5", "²", ""])
def test_nothing_else_than_source_topic_and_a_number_is_compared_with(config: Config, text: str) -> None:
    assert "--against" in refused(config, against=text).message


def test_a_repair_needs_to_know_what_is_right(config: Config) -> None:
    assert "--repair" in refused(config, against="2", repair=True).message
