"""A bank: transfers between accounts of two tables. Readers of the view see only what existed at some commit."""

import shutil
from collections.abc import Callable

import psycopg
import pytest
from psycopg import errors, sql
from pyspark.sql import SparkSession

from sinks.view_settings import ViewSettings
from tests.bank import CHECKING, SAVINGS, Bank, State
from tests.databases import until
from tests.polling import Poller
from tests.view_jobs import ViewPipeline
from tests.view_task_process import ENDED, KILLED, ViewTasks

pytestmark = [pytest.mark.live, pytest.mark.busy]

ACCOUNTS = ViewSettings(
    name="accounts",
    key=("kind", "id"),
    sql="select 'c' as kind, id, balance from checking union all select 's' as kind, id, balance from savings",
)


class Reader(Poller):
    """Polls the rows as any user of the warehouse would, in one statement. ``seen`` has each result that differs."""

    def __init__(self, pipeline: ViewPipeline) -> None:
        super().__init__()
        self.seen: list[State] = [frozenset()]
        self._rows = sql.SQL("select kind, id, balance from {}").format(
            sql.Identifier(pipeline.sink, f"views__{pipeline.view.name}")
        )
        self._dsn = pipeline.endpoints.warehouse_dsn

    def _poll(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self.over.is_set():
                try:
                    rows = connection.execute(self._rows).fetchall()
                except (errors.UndefinedTable, errors.InvalidSchemaName):
                    continue  # nothing was prepared yet
                if (state := frozenset(rows)) != self.seen[-1]:
                    self.seen.append(state)

    def check(self, states: list[State]) -> None:
        """Everything seen existed, and came in the order of the commits."""
        at = 0
        for state in self.seen:
            assert state in states, f"a state that never was: {sum(balance for *_, balance in state)} in all"
            assert state in states[at:], "a state from before"
            at = states.index(state, at)


@pytest.fixture
def pipeline(view_pipelines: Callable[..., ViewPipeline]) -> ViewPipeline:
    return view_pipelines(view=ACCOUNTS, query=ACCOUNTS.sql, tables=(CHECKING, SAVINGS))


@pytest.mark.soak
def test_a_reader_sees_whole_transactions_of_a_running_job(pipeline: ViewPipeline, spark: SparkSession) -> None:
    settings = pipeline.settings("warehouse")
    bank, reader = Bank(pipeline.write_in_parts, seed=1), Reader(pipeline)
    bank.work(8)
    with reader.polling(), pipeline.job(spark, settings) as job:
        job.wait_for("BatchApplied")
        bank.work(60)
        job.wait_until(lambda seen: seen.get("watermark_lsn") == pipeline.log.lsn)
        assert job.stop() == 0
        until(lambda: reader.seen[-1] == bank.states[-1])
    reader.check(bank.states)
    assert len(reader.seen) > 4


@pytest.mark.crash
def test_a_reader_sees_whole_transactions_of_tasks_that_are_killed_and_lose_their_state(
    pipeline: ViewPipeline, view_tasks: ViewTasks
) -> None:
    settings = pipeline.settings("warehouse")
    bank, reader = Bank(pipeline.write_in_parts, seed=2), Reader(pipeline)
    task = pipeline.task(settings)
    kills = 0
    with reader.polling():
        assert view_tasks.run(task) == ENDED
        for kill_at, is_lost in ((3, False), (5, False), (9, True), (12, True)):
            bank.work(4)
            if is_lost:
                shutil.rmtree(pipeline.directory / "state")
            kills += view_tasks.run(task, kill_at=kill_at) == KILLED
            bank.work(2)
            assert view_tasks.run(task) == ENDED
            until(lambda: reader.seen[-1] == bank.states[-1])
    reader.check(bank.states)
    assert kills == 4
