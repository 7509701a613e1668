"""A bank: transfers between accounts of two tables. Who reads the view's rows sees only what existed at some commit."""

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import errors, sql
from pyspark.sql import SparkSession

from sinks.view_settings import ViewSettings
from tests.databases import until
from tests.events import Change, Delete, Put
from tests.view_jobs import ViewPipeline
from tests.view_queries import column, shape
from tests.view_task_process import ENDED, KILLED, ViewTasks

pytestmark = [pytest.mark.live, pytest.mark.busy]

CHECKING = shape("checking", ["id"], column("id", "int4"), column("balance", "int8"))
SAVINGS = shape("savings", ["id"], column("id", "int4"), column("balance", "int8"))
ACCOUNTS = ViewSettings(
    name="accounts",
    key=("kind", "id"),
    sql="select 'c' as kind, id, balance from checking union all select 's' as kind, id, balance from savings",
)
OPENED = 40
State = frozenset[tuple[str, int, int]]


class Bank:
    """The accounts, and how they change. ``states`` has what existed, commit by commit."""

    def __init__(self, pipeline: ViewPipeline, seed: int) -> None:
        self.pipeline = pipeline
        self._chance = random.Random(seed)
        self._balances: dict[tuple[str, int], int] = {}
        self.states: list[State] = [frozenset()]
        self._write([[self._set("c", number, 100) for number in range(OPENED)]])

    @property
    def lsn(self) -> int:
        return self.pipeline.log.lsn

    def transfer(self) -> None:
        """From a checking account to a savings account, which may be a new one, or back. All of it closes the first."""
        here = self._chance.choice([account for account, balance in self._balances.items() if balance])
        there = "s" if here[0] == "c" else "c", self._chance.randrange(OPENED)
        amount = self._chance.choice([self._balances[here], self._chance.randint(1, self._balances[here])])
        left = self._balances[here] - amount
        received = self._set(*there, self._balances.get(there, 0) + amount)
        self._write([[self._set(*here, left) if left else self._close(*here), received]])

    def transfer_everything(self) -> None:
        """A part of each account goes to another one, in one transaction that is published in parts."""
        accounts = list(self._balances)
        self._chance.shuffle(accounts)
        moved = [self._chance.randint(0, self._balances[account]) for account in accounts]
        changes = [
            self._set(*account, self._balances[account] - moved[at] + moved[at - 1])
            for at, account in enumerate(accounts)
        ]
        size = max(1, len(changes) // 5)
        self._write([changes[at : at + size] for at in range(0, len(changes), size)])

    def deposit(self) -> None:
        """More money."""
        account = self._chance.choice(list(self._balances))
        self._write([[self._set(*account, self._balances[account] + 1)]])

    def work(self, transactions: int) -> None:
        for number in range(transactions):
            (self.transfer, self.transfer, self.transfer_everything, self.deposit)[number % 4]()

    def _set(self, kind: str, number: int, balance: int) -> Put:
        self._balances[kind, number] = balance
        return Put(CHECKING if kind == "c" else SAVINGS, {"id": number, "balance": balance})

    def _close(self, kind: str, number: int) -> Delete:
        del self._balances[kind, number]
        return Delete(CHECKING if kind == "c" else SAVINGS, {"id": number})

    def _write(self, parts: list[list[Change]]) -> None:
        # Before anybody can see it.
        self.states.append(frozenset((*account, balance) for account, balance in self._balances.items()))
        self.pipeline.write_in_parts(parts)


class Reader:
    """Polls the rows as any user of the warehouse would, in one statement. ``seen`` has each that differs."""

    def __init__(self, pipeline: ViewPipeline) -> None:
        self.seen: list[State] = [frozenset()]
        self._rows = sql.SQL("select kind, id, balance from {}").format(
            sql.Identifier(pipeline.sink, f"views__{pipeline.view.name}")
        )
        self._dsn = pipeline.endpoints.warehouse_dsn
        self._over = threading.Event()

    @contextmanager
    def polling(self) -> Iterator[None]:
        thread = threading.Thread(target=self._poll)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _poll(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._over.is_set():
                try:
                    rows = connection.execute(self._rows).fetchall()
                except (errors.UndefinedTable, errors.InvalidSchemaName):
                    continue  # nothing was prepared yet
                if (state := frozenset(rows)) != self.seen[-1]:
                    self.seen.append(state)

    def check(self, states: list[State]) -> None:
        """All that was seen existed, and came in the order of the commits."""
        at = 0
        for state in self.seen:
            assert state in states, f"a state that never was: {sum(balance for *_, balance in state)} in all"
            assert state in states[at:], "a state from before"
            at = states.index(state, at)


@pytest.fixture
def pipeline(view_pipelines: Callable[..., ViewPipeline]) -> ViewPipeline:
    return view_pipelines(view=ACCOUNTS, query=ACCOUNTS.sql, tables=(CHECKING, SAVINGS))


@pytest.mark.parametrize("trigger", ["micro-batch", "continuous"])
def test_a_reader_sees_whole_transactions_of_a_running_job(
    pipeline: ViewPipeline, spark: SparkSession, trigger: str
) -> None:
    settings = pipeline.settings("warehouse")
    bank, reader = Bank(pipeline, seed=1), Reader(pipeline)
    bank.work(8)
    with reader.polling(), pipeline.job(spark, settings, trigger=trigger) as job:
        job.wait_for("StatusReport")
        bank.work(60)
        job.wait_until(lambda seen: seen.get("watermark_lsn") == bank.lsn)
        assert job.stop() == 0
        until(lambda: reader.seen[-1] == bank.states[-1])
    reader.check(bank.states)
    assert len(reader.seen) > 4


@pytest.mark.crash
def test_a_reader_sees_whole_transactions_of_tasks_that_are_killed_and_lose_their_state(
    pipeline: ViewPipeline, view_tasks: ViewTasks
) -> None:
    settings = pipeline.settings("warehouse")
    bank, reader = Bank(pipeline, seed=2), Reader(pipeline)
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
