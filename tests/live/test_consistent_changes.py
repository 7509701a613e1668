"""A consistent warehouse behind a real source: readers see whole transactions through changes that aren't a row's."""

import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from psycopg import IsolationLevel, errors
from pyspark.sql import SparkSession

from cdc.postgres.slot import emit_heartbeat
from monitor.waits import Waits
from stack.stack import Endpoints
from tests.pipeline import Pipeline
from tests.polling import Poller
from tests.spark_here import Job

pytestmark = [pytest.mark.live, pytest.mark.busy, pytest.mark.soak]

ALL = Decimal(1000)
"""The sum over both tables at each commit."""


class Reader(Poller):
    """Polls both tables in one snapshot, with a statement for each. ``seen`` are the LSN that the warehouse states and
    the counts and sums of both tables, whenever these are new, in order."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self.seen: list[tuple[Any, ...]] = []
        self._dsn = pipeline.endpoints.warehouse_dsn
        self._schema, self._name = f"{pipeline.name}_warehouse", pipeline.name

    def _poll(self) -> None:
        queries = [
            f"select count(*), coalesce(sum({value}), 0) from {self._schema}.{self._name}__{table}"
            for table, value in (("account", "balance"), ("entry", "note::numeric"))
        ]
        record = "select content from lockstep.coordination_record where view_schema = %s and name = 'g1.consistent'"
        with psycopg.connect(self._dsn) as connection:
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            while not self.over.is_set():
                try:
                    with connection.transaction():
                        found = [connection.execute(query.encode()).fetchone() for query in queries]
                        known = connection.execute(record, (self._schema,)).fetchone()
                except (errors.UndefinedTable, errors.InvalidSchemaName):
                    continue  # nothing was prepared yet
                assert found[0] is not None
                assert found[1] is not None
                lsn = 0 if known is None else orjson.loads(known[0])["lsn"]
                state = (lsn, *found[0], *found[1])
                if lsn and state[1:] not in [each[1:] for each in self.seen[-1:]]:
                    self.seen.append(state)


def wait(pipeline: Pipeline, job: Job) -> None:
    """Wait until the warehouse has everything committed now."""
    sink = f"{pipeline.name}_warehouse"
    with pipeline.sql() as connection:
        lsn = emit_heartbeat(connection)
    with Waits(pipeline.config.as_pipeline(), {sink: pipeline.config.sinks[sink]}) as waits:
        while not (waited := waits.wait(lsn, timeout_s=2.0)).is_reached:
            assert job.poll() is None, f"{waited.late}\n{job.output()}"


def test_whole_transactions_are_seen_through_a_truncate_changes_of_columns_and_a_repair(
    endpoints: Endpoints, tmp_path: Path, spark: SparkSession
) -> None:
    name = f"whole{uuid.uuid4().hex[:8]}"
    settings = 'consistent = true\nschema_changes = "follow"'
    pipeline = Pipeline(endpoints, tmp_path, name, sinks=True, more={"warehouse": settings})
    reader = Reader(pipeline)

    def write(*statements: str) -> None:
        with pipeline.sql() as connection, connection.transaction():
            for statement in statements:
                connection.execute(statement.format(name=name).encode())

    def transfer(number: int) -> None:
        write(
            f"update {{name}}.account set balance = balance - 1 where id = {number % 5 + 1}",
            f"update {{name}}.entry set note = (note::numeric + 1)::text where account_id = {(number + 2) % 5 + 1}",
        )

    fill = (
        "insert into {name}.account (id, owner, balance) select n, 'x', 100 from generate_series(1, 5) n",
        "insert into {name}.entry (account_id, line, note) select n, 1, '100' from generate_series(1, 5) n",
    )
    try:
        write(*fill)
        pipeline.wait_streaming(pipeline.start_capture())
        with reader.polling(), pipeline.apply(spark, f"{name}_warehouse") as job:
            transfer(1)
            wait(pipeline, job)
            for number in range(4):
                transfer(number)
            write("truncate {name}.account, {name}.entry", *fill)
            transfer(5)
            wait(pipeline, job)
            # A column with a default comes to both tables within one transaction, with rows that have it.
            write(
                "alter table {name}.account add column grade int default 7",
                "alter table {name}.entry add column kind text default 'plain'",
                "update {name}.account set balance = balance - 5, grade = 8 where id = 1",
                "update {name}.entry set note = (note::numeric + 5)::text, kind = 'other' where account_id = 1",
            )
            transfer(6)
            write(
                "alter table {name}.account drop column owner",
                "update {name}.account set balance = balance - 2 where id = 2",
                "update {name}.entry set note = (note::numeric + 2)::text where account_id = 3",
            )
            transfer(7)
            wait(pipeline, job)
            # Damage outside the summed rows, and rows beside which it is repaired.
            with psycopg.connect(endpoints.warehouse_dsn) as warehouse:
                damage = f"update {name}_warehouse_g1.{name}__account set grade = 99 where id in (3, 4)"
                assert warehouse.execute(damage.encode()).rowcount == 2
            pipeline.run("verify", f"{name}_warehouse", "--repair")
            transfer(8)
            wait(pipeline, job)
            # The stored rows equal the source's, in the columns that they have.
            with pipeline.sql() as source, psycopg.connect(endpoints.warehouse_dsn) as warehouse:
                for table, columns in (("account", "id, balance, grade"), ("entry", "account_id, line, note, kind")):
                    expected = source.execute(f"select {columns} from {name}.{table} order by 1".encode()).fetchall()
                    held = f"select {columns} from {name}_warehouse.{name}__{table} order by 1"
                    assert warehouse.execute(held.encode()).fetchall() == expected
            assert job.stop() == 0
    finally:
        pipeline.close()
    wrong = [state for state in reader.seen if (state[1], state[3], state[2] + state[4]) != (5, 5, ALL)]
    assert not wrong, reader.seen
    assert len(reader.seen) > 2
