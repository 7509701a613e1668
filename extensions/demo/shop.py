"""The sample shop in the source database, and the network beside it: tables and their first rows."""

import random
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

import psycopg
from psycopg import sql

from cdc.model.table import TableName
from extensions.demo import samples, timeline

TABLES = (
    *(TableName("public", name) for name in ("customers", "products", "orders", "order_items")),
    *timeline.TABLES,
)

_CUSTOMERS = 600
_PRODUCTS = 300
_ORDERS = 1500

# numeric values are passed as text, never as floats; the server converts them to the column's type.
_COUNT_SQL = "select count(*) from {}"


def create_shop(connection: psycopg.Connection[Any], *, seed: int) -> None:
    """Create the tables and fill them, in one transaction. The same seed gives the same rows."""
    rng = random.Random(seed)  # noqa: S311  sample data
    with connection.transaction():
        connection.execute("set local search_path = public")
        connection.execute(resources.files("extensions.demo").joinpath("shop.sql").read_bytes())
        customers = [samples.customer(rng) for _ in range(_CUSTOMERS)]
        products = list({row["sku"]: row for row in (samples.product(rng) for _ in range(_PRODUCTS))}.values())
        insert(connection, "customers", customers)
        insert(connection, "products", products)
        orders = [samples.order(rng, rng.choice(customers)["id"]) for _ in range(_ORDERS)]
        numbers = insert(connection, "orders", orders, returning="id")
        items = [
            samples.item(rng, number, line, rng.choice(products)["sku"])
            for number in numbers
            for line in range(1, rng.randint(1, 5) + 1)
        ]
        insert(connection, "order_items", items)
        connection.execute(
            "update orders set total = sums.total from"
            " (select order_id, sum(quantity * unit_price) as total from order_items group by order_id) as sums"
            " where orders.id = sums.order_id"
        )
        timeline.create_timeline(connection, rng)
    # The snapshot's progress bar shows the planner's estimate.
    connection.execute("analyze")


def insert(
    connection: psycopg.Connection[Any], table: str, rows: Sequence[samples.Row], *, returning: str | None = None
) -> list[Any]:
    """Insert rows with the same columns. With ``returning``, returns that column of the new rows, in order."""
    if not rows:
        return []
    columns = list(rows[0])
    statement = sql.SQL("insert into {} ({}) values ({})").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.SQL(", ").join(sql.Placeholder() * len(columns)),
    )
    if returning is not None:
        statement += sql.SQL(" returning {}").format(sql.Identifier(returning))
    with connection.cursor() as cursor:
        cursor.executemany(statement, [tuple(row.values()) for row in rows], returning=returning is not None)
        return [results.fetchone()[0] for results in _results(cursor)] if returning is not None else []


def _results(cursor: psycopg.Cursor[Any]) -> Iterable[Any]:
    """The cursor, positioned on each result of ``executemany`` in turn."""
    while True:
        yield cursor
        if not cursor.nextset():
            return


def count_rows(connection: psycopg.Connection[Any]) -> dict[str, int]:
    counts = {}
    for table in TABLES:
        row = connection.execute(sql.SQL(_COUNT_SQL).format(sql.Identifier(table.schema, table.name))).fetchone()
        assert row is not None
        counts[str(table)] = int(row[0])
    return counts
