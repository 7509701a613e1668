"""Append-only tables end to end: each event once in every sink that takes them, and nothing from before a TRUNCATE."""

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from cdc.kafka.control_topics import read_tables
from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.model.append_only import stored_table
from cdc.model.table import TableName
from jobs.generations.record import list_generations
from lockstep.config import load
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.opened import closing_sink
from tests.pipeline import Pipeline, wait_until

pytestmark = [pytest.mark.live, pytest.mark.busy]

_ROWS_BEFORE = 3000
_numbers = count()


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline with a table ``log`` that has no key and already holds equal rows."""
    made = Pipeline(endpoints, tmp_path, f"append{os.getpid()}_{next(_numbers)}")
    name = made.name
    tables = f'tables = ["{name}.log", "{name}.account"]\n'
    text = made.path.read_text().replace(f'"{name}.entry"]', f'"{name}.entry", "{name}.log"]')
    made.path.write_text(
        f"{text}\n[source.options.'{name}.log']\nappend_only = true\n"
        f'[sinks.{name}_dwh]\ntype = "warehouse"\nurl = "{endpoints.warehouse_url}"\nhistory = true\n{tables}'
        f'[sinks.{name}_file]\ntype = "warehouse"\nurl = "duckdb:///{tmp_path}/dwh.duckdb"\n'
        f"lock_timeout_s = 30.0\n{tables}"
        f'[sinks.{name}_lake]\ntype = "delta"\nroot = "{tmp_path}/lake"\n{tables}'
    )
    made.config = load(made.path)
    with made.sql() as sql:
        sql.execute(f"create table {name}.log (at timestamptz, line text, detail jsonb)")
        sql.execute(f"insert into {name}.log select null, 'equal', '{{}}' from generate_series(1, {_ROWS_BEFORE})")
        sql.execute(f"insert into {name}.account (id, owner) values (1, 'keyed')")
    yield made
    made.close()


class _Inserts(threading.Thread):
    """Inserts one to three equal rows at a time until it is stopped."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(daemon=True)
        self._pipeline = pipeline
        self._over = threading.Event()
        self.transactions = self.rows = 0

    def run(self) -> None:
        with self._pipeline.sql() as sql:
            while not self._over.wait(0.03):
                rows = self.transactions % 3 + 1
                sql.execute(
                    f"insert into {self._pipeline.name}.log"
                    " select clock_timestamp(), %s, null from generate_series(1, %s)",
                    (f"line {self.transactions}", rows),
                )
                self.transactions += 1
                self.rows += rows

    def finish(self) -> None:
        self._over.set()
        self.join()


@contextmanager
def _inserts(pipeline: Pipeline) -> Iterator[_Inserts]:
    thread = _Inserts(pipeline)
    thread.start()
    try:
        yield thread
    finally:
        thread.finish()


def _source(pipeline: Pipeline) -> Counter[str]:
    with pipeline.sql() as sql:
        return Counter(line for (line,) in sql.execute(f"select line from {pipeline.name}.log"))


def _stored(pipeline: Pipeline, sink: str) -> Counter[str]:
    """What readers of the live generation see."""
    with closing_sink(open_sink(sink, pipeline.config.sinks[sink], 1)) as opened:
        live = next(generation.number for generation in list_generations(opened) if generation.is_live)
    table = stored_table(read_tables(pipeline.client, pipeline.name)[TableName(pipeline.name, "log")])
    with closing_sink(open_sink(sink, pipeline.config.sinks[sink], live)) as opened:
        return Counter(str(stored.row["line"]) for stored in opened.sink.scan(table))


def _assert_each_once(pipeline: Pipeline) -> None:
    expected = _source(pipeline)
    for sink in pipeline.config.sinks:
        assert _stored(pipeline, sink) == expected, sink


def test_each_event_is_in_every_sink_once_after_a_kill_of_capture_and_what_is_emptied_stays_empty(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    name = pipeline.name
    capture = pipeline.start_capture()
    pipeline.wait_streaming(capture)
    with _inserts(pipeline) as inserts:
        apply = pipeline.apply(spark)
        pipeline.wait_applied(apply)
        os.killpg(capture.pid, signal.SIGKILL)
        capture.wait()
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
        pipeline.wait_applied(apply)
        # Under inserts, so that there are rows before and after it everywhere.
        with pipeline.sql() as sql:
            sql.execute(f"truncate {name}.log")
        built = pipeline.rebuild(spark, f"{name}_dwh", switch_over=True).finish(900)
        assert (built.report.is_equal, built.generation, built.is_live) == (True, 2, True)
    pipeline.wait_applied(apply)
    _assert_each_once(pipeline)
    assert 0 < _source(pipeline).total() < inserts.rows  # otherwise nothing came before or after the TRUNCATE
    report = json.loads(pipeline.run("verify", f"{name}_dwh", "--json"))
    notes = {table["table"]: table["note"] for table in report["tables"]}
    assert (report["equal"], notes[f"{name}.account"]) == (True, None)
    assert "compared with its topic" in notes[f"{name}.log"]
    # A copy of the whole table replaces everything before it.
    pipeline.run("snapshot", "table", f"{name}.log")
    wait_until(lambda: f"copying {name}.log at" in capture.output(), what="the copy")
    pipeline.wait_published(capture)
    pipeline.wait_applied(apply)
    _assert_each_once(pipeline)
    pipeline.run("verify", f"{name}_file")
    assert apply.stop() == 0


def _trim(pipeline: Pipeline) -> None:
    """Delete the older half of the table's events, as retention does."""
    topic = pipeline.config.topics()[TableName(pipeline.name, "log")]
    cluster = TopicAdmin(pipeline.client)
    ends = cluster.end_offsets(partitions_of([topic], cluster.partition_counts([topic])))
    (at, end) = max(ends.items(), key=lambda item: item[1])
    admin = AdminClient(dict(pipeline.client))
    for future in admin.delete_records([TopicPartition(*at, end // 2)]).values():
        future.result(300)


@pytest.mark.soak
def test_a_rebuild_of_a_topic_that_lost_its_beginning_stops_and_a_copy_is_the_way_out(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    name, sink = pipeline.name, f"{pipeline.name}_dwh"
    capture = pipeline.start_capture()
    pipeline.wait_streaming(capture)
    pipeline.wait_published(capture)
    assert pipeline.apply(spark, sink, once=True).finish() == 0
    _trim(pipeline)
    refused = pipeline.rebuild(spark, sink).failed()
    assert (refused.hint or "").startswith(f"let capture copy what is missing: lockstep snapshot table {name}.log")
    # The rest says nothing of the earlier rows, so the report is that nothing was compared.
    built = pipeline.rebuild(spark, sink, trimmed=True).finish()
    notes = {str(table.table): table.not_compared for table in built.report.tables}
    assert (notes[f"{name}.account"], "was deleted" in notes[f"{name}.log"]) == ("", True)
    assert _stored(pipeline, sink) == _source(pipeline)  # the live one, which kept its rows
    pipeline.run("generations", sink, "--drop", "2", "--yes")
    pipeline.run("snapshot", "table", f"{name}.log")
    wait_until(lambda: f"copying {name}.log at" in capture.output(), what="the copy")
    pipeline.wait_published(capture)
    built = pipeline.rebuild(spark, sink, trimmed=True, switch_over=True).finish()
    assert (built.report.is_equal, built.is_live) == (True, True)
    assert [table.not_compared for table in built.report.tables] == ["", ""]
    assert _stored(pipeline, sink) == _source(pipeline)
