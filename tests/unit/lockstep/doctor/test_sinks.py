"""What doctor says of sinks without asking a server."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc.model.errors import LockstepError
from cdc.model.finding import Severity
from cdc.model.table import TableName
from jobs.generations.record import Record, save_record
from lockstep.config import Config, load, read
from lockstep.doctor.sinks import append_only_findings, check_sink, check_view_topics, uncaptured_findings
from sinks.memory import MemoryStore, open_memory
from sinks.registry import definition
from tests.builders import column, table
from tests.duckdb_sink import open_duckdb
from tests.generations import prepared_store

_FILE = """
[pipeline]
name = "shop"
[source]
dsn = "host=db dbname=shop user=me"
tables = ["public.orders", "public.log", "public.clicks"]
[source.options."public.log"]
append_only = true
[source.options."public.clicks"]
append_only = true
[kafka]
bootstrap_servers = "127.0.0.1:9092"
"""
_SINKS = """
[sinks.cache]
type = "redis"
url = "redis://127.0.0.1"
[sinks.dwh]
type = "warehouse"
url = "postgresql://db/dwh"
tables = ["public.orders", "public.log"]
[sinks.lake]
type = "delta"
root = "/lake"
"""


def _config(directory: Path, text: str) -> Config:
    (directory / "lockstep.toml").write_text(text)
    return load(directory / "lockstep.toml")


def test_of_each_append_only_table_it_says_who_has_it_who_could_and_who_can_not(tmp_path: Path) -> None:
    findings = append_only_findings(_config(tmp_path, _FILE + _SINKS))
    assert [(finding.subject, finding.what) for finding in findings] == [
        (
            "append-only public.log",
            "its events go to dwh; lake would take them: name it in tables there; cache can't",
        ),
        (
            "append-only public.clicks",
            "no sink gets its events; dwh, lake would take them: name it in tables there; cache can't",
        ),
    ]


def test_of_each_append_only_table_it_says_which_views_read_it(tmp_path: Path) -> None:
    view = 'sink = "cache"\nkey = ["page"]\nsql = "select page, count(*) as n from clicks group by page"\n'
    text = _FILE + _SINKS + f"[views.hits]\n{view}[views.more]\n{view}"
    assert [finding.what for finding in append_only_findings(_config(tmp_path, text))][1] == (
        "no sink gets its events; the views hits, more read it; dwh, lake would take them: name it in tables there;"
        " cache can't"
    )


def test_without_sinks_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert append_only_findings(_config(tmp_path, _FILE)) == []


def test_a_sink_that_names_a_table_which_is_not_captured_is_told_of(tmp_path: Path) -> None:
    text = (_FILE + _SINKS).replace('"public.orders", "public.log", "public.clicks"]', '"public.*"]', 1)
    (tmp_path / "lockstep.toml").write_text(text)
    config = read(tmp_path / "lockstep.toml")
    orders, log = TableName("public", "orders"), TableName("public", "log")
    assert uncaptured_findings(config.capturing(config.source.resolved([orders, log]))) == []
    [finding] = uncaptured_findings(config.capturing(config.source.resolved([orders])))
    assert (finding.severity, finding.subject) == (Severity.WARNING, "sink dwh")
    assert finding.what == "names tables that aren't captured: public.log"


def test_what_another_pipeline_has_built_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after another name was given to a pipeline, whose sinks are where they were."""
    opened = open_memory(prepared_store(1))
    save_record(opened.records, 1, Record("shop_of_before", {}))
    monkeypatch.setattr("lockstep.doctor.sinks.open_sink", lambda *_: opened)
    [finding] = check_sink(_config(tmp_path, _FILE + _SINKS), name="cache", shapes={})
    assert finding.severity is Severity.ERROR
    assert finding.what == "generation 1 of sink 'cache' is written by pipeline 'shop_of_before', not by 'shop'"
    assert "lockstep generations cache --drop 1" in finding.fix


def test_a_sink_that_cant_notice_a_removed_table_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = open_memory(MemoryStore())
    monkeypatch.setattr("lockstep.doctor.sinks.open_sink", lambda *_: memory)
    (_, finding) = check_sink(_config(tmp_path, _FILE + _SINKS), name="cache", shapes={})
    assert (finding.severity, finding.subject) == (Severity.WARNING, "sink cache")
    assert "after a table was removed" in finding.why
    assert "lockstep rebuild cache --switch" in finding.fix
    able = replace(memory, identities=open_duckdb(tmp_path).identities)
    monkeypatch.setattr("lockstep.doctor.sinks.open_sink", lambda *_: able)
    (answers,) = check_sink(_config(tmp_path, _FILE + _SINKS), name="cache", shapes={})
    assert answers.severity is Severity.OK


def test_what_is_wrong_in_a_view_is_said_of_its_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or of that of its sink, from which it takes over what it doesn't say itself."""
    view = """
[views.ids]
sink = "cache"
key = ["id"]
sql = "select id from orders"
sets = { "views.ids" = ["of:{nobody}"] }
"""
    orders = table(column("id", "int8"), name=TableName("public", "orders"))
    monkeypatch.setattr("lockstep.doctor.sinks.open_sink", lambda *_: open_memory(MemoryStore(), 1))
    config = _config(tmp_path, _FILE + _SINKS + view)
    findings = check_sink(config, name="ids", shapes={orders.name: orders})
    assert findings[-1].severity is Severity.ERROR
    assert findings[-1].fix == "mend it in [views.ids] or [sinks.cache]"


def test_expressions_that_cant_be_evaluated_are_errors_without_starting_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.doctor.sinks.open_sink", lambda *_: open_memory(MemoryStore(), 1))
    more = 'where = { "public.orders" = "missing > 1" }\ncomputed = { "public.orders.b" = { sql = "now()" } }\n'
    config = _config(tmp_path, _FILE + _SINKS.replace("[sinks.dwh]", more + "[sinks.dwh]"))
    orders = table(column("id", "int8"), name=TableName("public", "orders"))
    found = check_sink(config, name="cache", shapes={orders.name: orders})
    (finding,) = [each for each in found if each.severity is Severity.ERROR]
    for problem in ("computed column public.orders.b: ", "where of public.orders: "):
        assert problem in finding.what
    assert finding.fix == "mend computed and where in [sinks.cache]"


def test_an_expression_that_fails_one_table_of_a_job_holds_that_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = 'where = { "public.orders" = "missing > 1" }\n'
    file = _FILE.replace('"public.orders", ', '"public.orders", "public.items", ')
    config = _config(tmp_path, file + _SINKS.replace("[sinks.dwh]", more + "[sinks.dwh]"))
    store = prepared_store(1)
    open_memory(store).generations.switch()
    save_record(open_memory(store).records, 1, Record("shop", definition(config.sinks["cache"])))
    monkeypatch.setattr("lockstep.doctor.sinks.open_sink", lambda *_: open_memory(store, 1))
    names = config.source.keyed_names
    shapes = {name: table(column("id", "int8"), name=name) for name in names}
    found = [each for each in check_sink(config, name="cache", shapes=shapes) if each.severity is Severity.ERROR]
    assert [finding.why for finding in found] == ["its job holds this table, and goes on without it"]
    orders = TableName("public", "orders")
    alone = check_sink(config, name="cache", shapes={orders: shapes[orders]})
    assert alone[-1].why == "its job would stop there"


def test_doctor_says_what_the_job_of_a_view_may_not_do_with_its_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Brokers:
        def partition_counts(self, _: object) -> dict[str, int]:
            return {"shop.__views.hits.g1": 1, "shop.__views.hits.g3": 1, "shop.__views.hits.g4": 3}

        def setting(self, topic: str, name: str) -> str:
            return "delete" if (topic, name) == ("shop.__views.hits.g3", "cleanup.policy") else "compact"

        def lacking_rights(self, topics: Any, _: object) -> dict[str, list[str]]:
            return {"shop.__views.hits.g2": ["Describe"]} if "shop.__views.hits.g2" in topics else {}

        def why_not_created(self, plans: Any) -> dict[str, LockstepError]:
            refused = LockstepError("no right Create", hint="grant it")
            return {plan.name: refused for plan in plans if plan.name == "shop.__views"}

    store = prepared_store(1)
    for number in (2, 3, 4):
        open_memory(store, number).sink.prepare([table()], go_live=False)
    monkeypatch.setattr("lockstep.doctor.sinks.open_sink", lambda *_: open_memory(store, 1))
    monkeypatch.setattr("lockstep.doctor.sinks.TopicAdmin", lambda _: Brokers())
    view = (
        'sink = "cache"\ntopic = true\nkey = ["page"]\nsql = "select page, count(*) as n from clicks group by page"\n'
    )
    findings = check_view_topics(_config(tmp_path, _FILE + _SINKS + f"[views.hits]\n{view}"), name="hits")
    assert [(each.severity, each.what) for each in findings] == [
        (Severity.ERROR, "the right Describe on topic shop.__views.hits.g2 lacks"),
        (Severity.OK, "topic shop.__views.hits.g1 is there"),
        (Severity.ERROR, "no right Create"),
        (
            Severity.ERROR,
            "topic shop.__views.hits.g3 has cleanup.policy=delete: its records would expire",
        ),
        (Severity.ERROR, "topic shop.__views.hits.g4 has 3 partitions: its records need one order, so one partition"),
    ]
