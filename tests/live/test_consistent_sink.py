"""A bank in a plain sink: a reader of both tables in one transaction sees what existed at some commit."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from psycopg import IsolationLevel, errors, sql
from pyspark.sql import SparkSession

from cdc.kafka.topic_names import PROGRESS, control_topic
from cdc.model.table import Table
from jobs.consistency import Consistency, load_consistency
from jobs.executor.task_input import StepsInput, Task
from jobs.generations.held_tables import Wish, give_order
from jobs.offsets import Offsets
from jobs.spark.source import portable_client
from sinks.registry import open_sink
from sinks.warehouse.settings import WarehouseSettings
from stack.stack import Endpoints
from tests.bank import CHECKING, SAVINGS, Bank, State
from tests.databases import until
from tests.events import Change, Log, kafka_settings
from tests.job_process import run_sinks, spark_settings
from tests.opened import closing_sink
from tests.polling import Poller
from tests.spark_here import Job
from tests.view_task_process import ENDED, KILLED, ViewTasks

pytestmark = [pytest.mark.live, pytest.mark.busy]


class Pipeline:
    """A log of the bank's tables, and a consistent warehouse that follows it. ``lsns`` are those of all commits."""

    def __init__(self, endpoints: Endpoints, directory: Path, *, partitions: int = 4, **settings: Any) -> None:
        self.name = f"bank{uuid.uuid4().hex[:8]}"
        self.sink = f"{self.name}w"
        self.dsn = endpoints.warehouse_dsn
        self.log = Log(kafka_settings(endpoints.kafka_bootstrap, partitions=partitions), self.name, [CHECKING, SAVINGS])
        self.lsns = [self.log.lsn]
        self.settings = WarehouseSettings.model_validate(
            {"url": endpoints.warehouse_url, "consistent": True} | settings
        )
        self._directory = directory

    def write(self, parts: list[list[Change]]) -> None:
        """Write one transaction, published in parts."""
        for part in parts[:-1]:
            self.log.commit_part(part)
        self.lsns.append(self.log.lsn + 8)  # before anybody can see it
        assert self.log.commit(parts[-1]) == self.lsns[-1]

    def job(self, spark: SparkSession, **more: Any) -> Job:
        return Job(spark, partial(run_sinks, **self.arguments(**more)))

    def apply_once(self, spark: SparkSession, *, consistent: bool) -> int:
        """Apply what the log holds now. Returns how many records were read."""
        settings = self.settings.model_copy(update={"consistent": consistent})
        job = Job(spark, partial(run_sinks, **self.arguments() | {"sinks": {self.sink: settings}}, once=True))
        job.finish()
        return sum(report["rows"] for report in job.reports if report["report"] == "BatchApplied")

    def consistency(self) -> Consistency | None:
        with closing_sink(open_sink(self.sink, self.settings, 1)) as opened:
            return load_consistency(opened.records, 1)

    def arguments(self, **more: Any) -> dict[str, Any]:
        return {
            "pipeline": self.name,
            "kafka": self.log.kafka,
            "tables": self.log.table_names,
            "sinks": {self.sink: self.settings},
            "spark": spark_settings(self._directory, **more),
        }

    def task(self, **more: Any) -> Task:
        """A task of generation 1, which this prepares."""
        with closing_sink(open_sink(self.sink, self.settings, 1)) as opened:
            opened.sink.prepare(self.log.tables)
            fence = opened.sink.claim()
        return Task(
            sink=self.sink,
            settings=self.settings,
            generation=1,
            fence=fence,
            tables={self.log.topic(table): table.name for table in self.log.tables},
            shapes={table.name: table for table in self.log.tables},
            window_bytes=1 << 26,
            retry_s=5.0,
            run=uuid.uuid4().hex,
            client=portable_client(self.log.kafka),
            steps=StepsInput(control_topic(self.name, PROGRESS), self.name),
        )

    def order(self, wish: Wish, of: Table) -> None:
        with closing_sink(open_sink(self.sink, self.settings, 1)) as opened:
            give_order(opened.records, 1, [of.name], wish, now_ms=1)

    def applied(self) -> Offsets:
        with psycopg.connect(self.dsn) as connection:
            rows = connection.execute(
                "select topic, partition, next_offset from lockstep.applied_offset where view_schema = %s", [self.sink]
            )
            return {(topic, partition): offset for topic, partition, offset in rows}


class Reader(Poller):
    """Polls both tables, and the LSN that the warehouse states for them, in one snapshot with a statement for each."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self.seen: list[tuple[int, State]] = []
        tables = [("c", "checking"), ("s", "savings")]
        self._rows = [
            sql.SQL("select {}, id, balance from {}").format(kind, sql.Identifier(pipeline.sink, name))
            for kind, name in tables
        ]
        self._sink = pipeline.sink
        self._dsn = pipeline.dsn

    def has_seen(self, state: State) -> bool:
        return bool(self.seen) and self.seen[-1][1] == state

    def check(self, bank: Bank, lsns: list[int]) -> None:
        """Everything seen is as of the LSN seen with it, and no state is before an earlier one."""
        for lsn, state in self.seen:
            expected = bank.states[lsns.index(lsn)]
            assert state == expected, f"{lsn}: {sum(balance for *_, balance in state)} in all"
        assert [lsn for lsn, _ in self.seen] == sorted(lsn for lsn, _ in self.seen)

    def _poll(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            while not self.over.is_set():
                try:
                    with connection.transaction():
                        state = frozenset(row for query in self._rows for row in connection.execute(query))
                        known = connection.execute(
                            "select content from lockstep.coordination_record where view_schema = %s and name = %s",
                            [self._sink, "g1.consistent"],
                        ).fetchone()
                except (errors.UndefinedTable, errors.InvalidSchemaName):
                    continue  # nothing was prepared yet
                lsn = 0 if known is None else orjson.loads(known[0])["lsn"]
                if lsn and (lsn, state) not in self.seen[-1:]:
                    self.seen.append((lsn, state))


@pytest.fixture
def pipelines(endpoints: Endpoints, tmp_path: Path) -> Iterator[Callable[..., Pipeline]]:
    made: list[Pipeline] = []

    def make(**more: Any) -> Pipeline:
        made.append(Pipeline(endpoints, tmp_path, **more))
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.log.close()


@pytest.mark.soak
def test_readers_of_both_tables_see_whole_transactions_of_a_running_job(
    pipelines: Callable[..., Pipeline], spark: SparkSession
) -> None:
    pipeline = pipelines()
    bank, reader = Bank(pipeline.write, seed=1), Reader(pipeline)
    bank.work(8)
    with reader.polling(), pipeline.job(spark) as job:
        job.wait_for("BatchApplied")
        bank.work(60)
        job.wait_until(lambda seen: seen.get("watermark_lsn") == pipeline.lsns[-1])
        until(lambda: reader.has_seen(bank.states[-1]))
        assert job.stop() == 0
    reader.check(bank, pipeline.lsns)
    assert len(reader.seen) > 4


def test_filters_and_computed_columns_are_as_of_the_same_commit(
    pipelines: Callable[..., Pipeline], spark: SparkSession
) -> None:
    def seen(state: State) -> State:
        return frozenset(row for row in state if row[0] == "s" or row[2] % 2 == 0)

    twice = {f"{SAVINGS.name}.twice": {"sql": "balance * 2", "type": "int8"}}
    pipeline = pipelines(where={str(CHECKING.name): "balance % 2 = 0"}, computed=twice)
    bank, reader = Bank(pipeline.write, seed=5), Reader(pipeline)
    with reader.polling(), pipeline.job(spark) as job:
        job.wait_for("BatchApplied")
        bank.work(24)
        job.wait_until(lambda report: report.get("watermark_lsn") == pipeline.lsns[-1])
        until(lambda: reader.has_seen(seen(bank.states[-1])))
        assert job.stop() == 0
    assert len(reader.seen) > 2
    for lsn, state in reader.seen:
        assert state == seen(bank.states[pipeline.lsns.index(lsn)])
    with psycopg.connect(pipeline.dsn) as connection:
        savings = sql.Identifier(pipeline.sink, "savings")
        rows = connection.execute(sql.SQL("select balance, twice from {}").format(savings)).fetchall()
    assert rows
    assert all(computed == 2 * balance for balance, computed in rows)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("partitions", "window_bytes"),
    [pytest.param(1, 1 << 26, id="in memory", marks=pytest.mark.soak), pytest.param(6, 2_000, id="on disk")],
)
def test_readers_see_whole_transactions_of_tasks_that_are_killed_in_the_middle_of_steps(
    pipelines: Callable[..., Pipeline], view_tasks: ViewTasks, partitions: int, window_bytes: int
) -> None:
    pipeline = pipelines(partitions=partitions)
    bank, reader = Bank(pipeline.write, seed=2), Reader(pipeline)
    task = replace(pipeline.task(), window_bytes=window_bytes)
    assert task.steps is not None
    kills = 0
    with reader.polling():
        assert view_tasks.run(task) == ENDED
        for kill_at in range(1, 5):
            bank.work(4)
            # Some begin where the sink is, others at the log's beginning: the driver may know less than the sink.
            reached = pipeline.applied() if kill_at % 2 else {}
            of_now = replace(task, steps=replace(task.steps, reached=reached))
            kills += view_tasks.run(of_now, kill_at=kill_at) == KILLED
            bank.work(2)
            assert view_tasks.run(of_now) == ENDED
            until(lambda: reader.has_seen(bank.states[-1]))
    reader.check(bank, pipeline.lsns)
    assert kills == 4


@pytest.mark.soak
def test_a_paused_table_stays_as_of_its_pause_and_is_whole_with_the_others_when_it_comes_back(
    pipelines: Callable[..., Pipeline], spark: SparkSession
) -> None:
    pipeline = pipelines()
    bank, reader = Bank(pipeline.write, seed=3), Reader(pipeline)
    with pipeline.job(spark) as job:
        bank.work(8)
        with reader.polling():
            until(lambda: reader.has_seen(bank.states[-1]))
        reader.check(bank, pipeline.lsns)
        paused = bank.states[-1]
        pipeline.order(Wish.PAUSE, SAVINGS)
        job.wait_for("TablesHeld")
        bank.work(8)
        during = Reader(pipeline)
        with during.polling():
            until(lambda: during.has_seen(_mixed(bank.states[-1], paused)))
        at = len(job.reports)
        pipeline.order(Wish.APPLY, SAVINGS)
        after = Reader(pipeline)
        with after.polling():
            bank.work(8)
            until(lambda: after.has_seen(bank.states[-1]))
        job.wait_for("TablesHeld", since=at, sentences=[])
        assert job.stop() == 0
    whole = [index for index, (lsn, state) in enumerate(after.seen) if state == bank.states[pipeline.lsns.index(lsn)]]
    assert whole == list(range(whole[0], len(after.seen))), "whole once, it stays so"
    for _, state in after.seen[: whole[0]]:
        assert {row for row in state if row[0] == "s"} == {row for row in paused if row[0] == "s"}


def _mixed(checking: State, savings: State) -> State:
    return frozenset({row for row in checking if row[0] == "c"} | {row for row in savings if row[0] == "s"})


@pytest.mark.soak
def test_a_sink_that_was_plain_becomes_consistent_though_nothing_new_comes(
    pipelines: Callable[..., Pipeline], spark: SparkSession
) -> None:
    pipeline = pipelines()
    bank, reader = Bank(pipeline.write, seed=4), Reader(pipeline)
    bank.work(8)
    pipeline.apply_once(spark, consistent=False)
    assert pipeline.consistency() is None
    with pipeline.job(spark) as job, reader.polling():
        until(lambda: reader.has_seen(bank.states[-1]))
        bank.work(4)
        until(lambda: reader.has_seen(bank.states[-1]))
        assert job.stop() == 0
    reader.check(bank, pipeline.lsns)
    consistency = pipeline.consistency()
    assert consistency is not None
    assert (consistency.lsn, consistency.is_reached) == (pipeline.lsns[-1], True)
    bank.deposit()
    assert pipeline.apply_once(spark, consistent=False) == 1, "it goes on where the sink is"
    assert pipeline.consistency() is None, "nobody promises it any more"
