"""Example queries, one per sink, as commands. ``python -m extensions.demo.examples`` runs them without a client."""

import argparse
import json
import shlex
import sys
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import redis

from cdc.model.table import TableName
from cdc.model.timeouts import DEMO_ANSWERS_S
from extensions.demo.settings import PIPELINE
from sinks.opensearch.names import alias_name
from sinks.redis.layout import escape_name, key_text
from stack.stack import Endpoints, Stack

_GENERATION = 1
_ORDERS = TableName("public", "orders")
_PRODUCTS = TableName("public", "products")
_SEARCH = "title:lamp AND price:[* TO 1500]"
_JOIN = (
    "select c.country, count(*) as orders, sum(o.total) as revenue"
    f" from {PIPELINE}.orders o join {PIPELINE}.customers c on c.id = o.customer_id"
    " group by c.country order by revenue desc limit 5"
)


@dataclass(frozen=True, slots=True)
class Example:
    """``command`` is for a shell; ``run`` returns the same answer as text, without the command's client."""

    title: str
    command: str
    run: Callable[[], str]


def examples(endpoints: Endpoints, *, order: int) -> list[Example]:
    url = (
        f"{endpoints.opensearch_url}/{alias_name(PIPELINE, _PRODUCTS)}/_search"
        f"?q={quote(_SEARCH)}&sort=price:desc&size=3&_source_includes=sku,title,price&pretty"
    )
    key = f"{PIPELINE}:g{_GENERATION}:{escape_name(_ORDERS.schema)}.{escape_name(_ORDERS.name)}:{key_text([order])}"
    port = urlsplit(endpoints.redis_url).port
    return [
        Example("search: lamps below 1500, in OpenSearch", f"curl {shlex.quote(url)}", lambda: _search(url)),
        Example(
            "cache: an order, in Valkey", f"valkey-cli -p {port} HGETALL {key}", lambda: _hash(endpoints.redis_url, key)
        ),
        Example(
            "warehouse: revenue by country, in SQL",
            f'psql "{endpoints.warehouse_dsn}" -c "{_JOIN}"',
            lambda: _query(endpoints.warehouse_dsn),
        ),
    ]


def some_order(connection: psycopg.Connection[Any]) -> int | None:
    """An order from the middle: old enough to have arrived everywhere, too new to be archived soon."""
    # With its schema: our sessions search only pg_catalog.
    query = f"select id from {_ORDERS} order by id offset (select count(*) / 2 from {_ORDERS}) limit 1"
    row = connection.execute(query.encode()).fetchone()
    return None if row is None else int(row[0])


def _search(url: str) -> str:
    with urllib.request.urlopen(url, timeout=DEMO_ANSWERS_S) as answer:  # noqa: S310  an address of our own server
        hits = json.load(answer)["hits"]["hits"]
    return "\n".join(json.dumps(hit["_source"], ensure_ascii=False) for hit in hits)


def _hash(url: str, key: str) -> str:
    with redis.Redis.from_url(url, decode_responses=True) as client:
        fields: Any = client.hgetall(key)
    return "\n".join(f"{field}: {value}" for field, value in fields.items())


def _query(dsn: str) -> str:
    with psycopg.connect(dsn) as connection:
        return "\n".join("  ".join(map(str, row)) for row in connection.execute(_JOIN).fetchall())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all of them; 1 when one had no answer. Raises StackError if the demo's servers have never run."""
    parser = argparse.ArgumentParser(
        prog="python -m extensions.demo.examples", description="run the demo's example queries"
    )
    parser.add_argument("--directory", type=Path, default=Path(".lockstep/demo"))
    endpoints = Stack(parser.parse_args(arguments).directory / "stack").endpoints()
    with psycopg.connect(endpoints.source_dsn) as connection:
        order = some_order(connection)
    answered = True
    for example in examples(endpoints, order=order or 1):
        answer = example.run()
        answered = answered and bool(answer)
        sys.stdout.write(f"{example.title}\n$ {example.command}\n{answer}\n\n")
    return 0 if answered else 1


if __name__ == "__main__":
    raise SystemExit(main())
