"""Tables of the source, any number of them, and rows that go to them in turn."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka.admin import AdminClient

from bench.rig import COLUMNS, ROW, Rig, drop_slots, tables_toml
from cdc.kafka.topic_admin import TopicAdmin
from lockstep.config import Config, load

_AT_ONCE = 200
"""Tables or topics in one statement or request: PostgreSQL has a lock for each table of a transaction."""

TRANSACTION_ROWS = 100
_STATEMENT_ROWS = 10
"""Each statement writes so many rows into one table, and the next one into the next table."""


class CostTables:
    """A pipeline's tables, all of one shape."""

    def __init__(self, config: Config, path: Path, connection: psycopg.Connection[Any]) -> None:
        self.config = config
        self.path = path
        self.connection = connection

    def load(self, *, first: int, rows: int) -> None:
        """Insert whole transactions of rows with ids from ``first`` on, evenly over the tables."""
        self.connection.execute(f"call {self.config.pipeline.name}_load(%s, %s)".encode(), (first, rows))


@contextmanager
def cost_tables(rig: Rig, *, tables: int, partitions: int) -> Iterator[CostTables]:
    """Create them, and a configuration with one topic for each. Slot, tables and topics go at the end."""
    name = f"cost_{tables}_{partitions}_{time.time_ns() // 1_000_000:x}"
    names = [f"{name}_{number}" for number in range(tables)]
    path = rig.directory / f"{name}.toml"
    captured = [f"public.{table}" for table in names]
    path.write_text(tables_toml(name, rig.endpoints, captured, partitions=partitions), encoding="utf-8")
    config = load(path)
    with psycopg.connect(rig.endpoints.source_dsn, autocommit=True) as connection:
        for start in range(0, tables, _AT_ONCE):
            several = names[start : start + _AT_ONCE]
            connection.execute("; ".join(f"create table {table} ({COLUMNS})" for table in several).encode())
        connection.execute(
            f"create procedure {name}_load(first bigint, rows bigint) language plpgsql as $load$"
            f" begin for k in 0 .. rows / {_STATEMENT_ROWS} - 1 loop"
            f" execute 'insert into {name}_' || k % {tables}"
            f" || $row$ select {ROW.replace('%%', '%')} from generate_series($1, $1 + {_STATEMENT_ROWS - 1}) i $row$"
            f" using first + k * {_STATEMENT_ROWS};"
            f" if (k + 1) % {TRANSACTION_ROWS // _STATEMENT_ROWS} = 0 then commit; end if;"
            " end loop; end $load$".encode()
        )
        try:
            yield CostTables(config, path, connection)
        finally:
            drop_slots(connection, config.slot)
            connection.execute(f"drop publication if exists {config.publication}".encode())
            connection.execute(f"drop procedure {name}_load".encode())
            for start in range(0, tables, _AT_ONCE):
                several = names[start : start + _AT_ONCE]
                connection.execute(f"drop table {', '.join(several)}".encode())
            delete_topics(config)


def delete_topics(config: Config) -> None:
    """Delete all topics of a pipeline, so that the broker doesn't look after them while others are measured."""
    client = config.kafka.client()
    prefix = f"{config.pipeline.name}."
    mine = [topic for topic in TopicAdmin(client).all_partition_counts() if topic.startswith(prefix)]
    admin = AdminClient(dict(client))
    for start in range(0, len(mine), _AT_ONCE):
        for deleted in admin.delete_topics(mine[start : start + _AT_ONCE], request_timeout=30).values():
            with suppress(Exception):  # gone already
                deleted.result(30)
