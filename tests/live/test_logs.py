"""``lockstep run`` with rows that are refused and a capture that is killed: its output holds no value of a row."""

import base64
import contextlib
import json
import os
import re
import secrets
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg import sql

from lockstep.config import load
from lockstep.log import LOG_FORMAT_VARIABLE
from monitor.collector import LagCollector
from monitor.metrics.endpoint import exposition
from monitor.metrics.pipeline import gauges_of
from stack.ports import pick
from stack.stack import Endpoints
from tests.pipeline import Pipeline, wait_until

pytestmark = [pytest.mark.live, pytest.mark.busy]

_MARK = "zq7mark"
_NUMBER = 770_770_770_770
_AMOUNT = 660_660_660
_SALT = "zq8salt"
_BYTES = f"{_MARK}-bytes".encode()
_TRACES = {
    *(_MARK, _SALT, str(_NUMBER), f"{_NUMBER:,}", str(_AMOUNT), f"{_AMOUNT:,}"),
    *(_BYTES.hex(), base64.b64encode(_BYTES).decode().rstrip("=")),
}
"""What no log may hold, in every form in which it could."""

_CACHE_BYTES_MAX = 10_000
_MESSAGE_BYTES_MAX = 1_500_000
_OF_THE_CONSOLE = re.compile(r"\d{4}-\d\d-\d\d \S+ (INFO|WARNING|ERROR) ")


@pytest.fixture
def pipeline(stack: Any, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(stack.endpoints(), tmp_path, f"logs{os.getpid()}", sinks=True)
    name = made.name
    with made.sql() as connection:
        connection.execute(
            f"create table {name}.person (code text primary key, note text, doc jsonb, tags text[], photo bytea,"
            " big text)".encode()
        )
        connection.execute(f"alter table {name}.person alter big set storage external".encode())
    yield made
    made.close()


def _write_config(pipeline: Pipeline) -> list[str]:
    """One more table, values that the stores will refuse, logs in JSON, and metrics at the returned addresses."""
    addresses = [f"127.0.0.1:{pick(None, taken=())}" for _ in range(2)]
    salt = pipeline.directory / "salt"
    salt.write_text(_SALT * 3, encoding="utf-8")
    name = pipeline.name
    text = pipeline.path.read_text(encoding="utf-8")
    for where, more in {
        f'"{name}.entry"': f', "{name}.person"',
        "topics = { ": f"max_message_bytes = {_MESSAGE_BYTES_MAX}, ",
        # Text in a field of numbers, and an expression that fails on text.
        'type = "opensearch"': f"""
fields = {{ "{name}.person.note" = {{ type = "long" }} }}
computed = {{ "{name}.account.number" = {{ sql = "cast(owner as bigint)", type = "int8" }} }}""",
        'type = "redis"': f"\nmax_value_bytes = {_CACHE_BYTES_MAX}",
        'type = "warehouse"': f"""
mask = {{ "{name}.person.note" = "hash" }}
mask_salt_file = "{salt}\"""",
    }.items():
        assert text.count(where) == 1
        text = text.replace(where, where + more)
    text += f'[metrics]\ncapture = "{addresses[0]}"\napply = "{addresses[1]}"\n'
    pipeline.path.write_text(text, encoding="utf-8")
    pipeline.config = load(pipeline.path)
    return addresses


def _insert(pipeline: Pipeline, code: str, note: str, doc: str, *, big: str = _MARK) -> None:
    with pipeline.sql() as connection:
        connection.execute(
            f"insert into {pipeline.name}.person values (%s, %s, %s, %s, %s, %s)".encode(),
            (code, note, json.dumps({"inner": [doc, _NUMBER]}), [_MARK, None], _BYTES, big),
        )


def _refuse_equal_documents(endpoints: Endpoints, name: str) -> None:
    """An index of the warehouse whose errors quote its content."""
    with psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as warehouse:
        tables = warehouse.execute(
            "select table_schema, table_name from information_schema.columns natural join information_schema.tables"
            " where table_type = 'BASE TABLE' and table_schema like %s and column_name = 'photo'",
            (f"{name}%",),
        ).fetchall()
        ((schema, table),) = tables
        warehouse.execute(sql.SQL("create unique index on {} (doc)").format(sql.Identifier(schema, table)))


def _metrics(addresses: list[str]) -> str:
    """Those of all processes that answer."""
    texts = []
    for address in addresses:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            texts.append(answer.read().decode())
    return "\n".join(texts)


def _rejected(text: str, sink: str) -> float:
    found = re.search(rf'^lockstep_sink_rows_rejected_total{{[^}}]*sink="{sink}"[^}}]*}} (\S+)$', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_no_value_of_a_row_is_in_logs_or_metrics_whatever_is_refused_and_a_killed_member_is_started_again(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG_FORMAT_VARIABLE, "json")
    addresses = _write_config(pipeline)
    _insert(pipeline, f"{_MARK}-copied", "1", f"{_MARK}-copied")
    group = pipeline.start("lockstep", "run", "--config", str(pipeline.path))
    pipeline.wait_applied(group)
    _refuse_equal_documents(pipeline.endpoints, pipeline.name)
    next(member for member in psutil.Process(group.pid).children() if "capture" in member.cmdline()).kill()

    _insert(pipeline, f"{_MARK}-text", f"{_MARK}-note", f"{_MARK}-text")  # not a number, which the search refuses
    _insert(pipeline, f"{_MARK}-equal", "2", f"{_MARK}-copied")  # the warehouse's index
    _insert(pipeline, f"{_MARK}-large", "3", f"{_MARK}-large", big=_MARK * _CACHE_BYTES_MAX)  # the cache's limit
    _insert(pipeline, _MARK + secrets.token_hex(1_300), "4", f"{_MARK}-key")  # longer than the search's ids may be
    with pipeline.sql() as connection:
        for statement in (
            f"insert into {pipeline.name}.account values ({_NUMBER}, '{_MARK}', {_AMOUNT}.5, '{{{_MARK}}}')",
            # The large value isn't in the WAL again.
            f"update {pipeline.name}.person set tags = '{{{_MARK}}}' where code = '{_MARK}-large'",
        ):
            connection.execute(statement.encode())
    pipeline.wait_applied(group)
    metrics = _metrics(addresses)
    for kind in ("search", "cache", "warehouse"):
        assert _rejected(metrics, f"{pipeline.name}_{kind}") > 0, f"{kind}\n{group.output()[-8000:]}"
    with pipeline.sql() as connection:  # not before: with it in one batch, the warehouse refuses no equal document
        connection.execute(f"delete from {pipeline.name}.person where code = '{_MARK}-copied'".encode())
    pipeline.wait_applied(group)
    metrics += _metrics(addresses)
    with LagCollector(pipeline.config.as_pipeline(), pipeline.config.sinks) as collector:
        metrics += exposition(gauges_of(collector.collect(), now_s=1.0)).decode()

    _insert(pipeline, f"{_MARK}-message", "5", f"{_MARK}-message", big=_MARK * _MESSAGE_BYTES_MAX)
    wait_until(lambda: "more than max_message_bytes" in group.output(), what="capture stops")
    metrics += _metrics(addresses)
    members = psutil.Process(group.pid).children()
    assert pipeline.stop(group) == 0, group.output()[-8000:]
    assert (bool(members), [member for member in members if member.is_running()]) == (True, [])

    told = group.output()
    for trace in _TRACES:
        assert trace not in told.lower(), [line for line in told.splitlines() if trace in line.lower()]
        assert trace not in metrics.lower()
    lines = told.splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{")]
    assert {record["logger"] for record in records} >= {"lockstep.run", "lockstep.capture", "jobs.report", "lockstep"}
    killed = next(record for record in records if record["event"] == "process ended")
    assert (killed["process"], killed["exit_code"]) == ("capture", -9)
    assert any(record["event"] == "batch applied" and record["rejected"] > 0 for record in records)
    assert any("more than max_message_bytes" in record["event"] for record in records if record["level"] == "error")
    assert not [line for line in lines if _OF_THE_CONSOLE.match(line)]
