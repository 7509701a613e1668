"""Debezium's topic into three stores, as a team would write it by hand. Its arguments are those of `main`.

One process has a consumer per store. Each writes a batch as plain upserts and commits its offsets afterwards: at least
once. Rows carry no position, so a store that reads a topic again shows old values meanwhile.
"""

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import psycopg
import redis
from confluent_kafka import Consumer
from opensearchpy import OpenSearch

COLUMNS = ("id", "customer_id", "kind", "note", "address", "created_at", "amount", "flag")

_BATCH = 500
_WAIT_S = 0.1

Rows = Mapping[int, Mapping[str, Any] | None]
"""By key, the newest value; None for a deleted row."""

Apply = Callable[[Rows], None]


def newest(messages: list[tuple[bytes, bytes | None]]) -> Rows:
    """The newest value of each row in a batch of Debezium's records (key and value)."""
    rows: dict[int, Mapping[str, Any] | None] = {}
    for key, value in messages:
        rows[orjson.loads(key)["id"]] = None if value is None else orjson.loads(value)["after"]
    return rows


def to_redis(url: str, name: str) -> Apply:
    client: Any = redis.Redis.from_url(url)

    def apply(rows: Rows) -> None:
        pipeline = client.pipeline(transaction=False)
        for key, row in rows.items():
            if row is None:
                pipeline.delete(f"{name}:{key}")
            else:
                pipeline.set(f"{name}:{key}", orjson.dumps(row))
        pipeline.execute()

    return apply


def to_warehouse(dsn: str, name: str) -> Apply:
    connection = psycopg.connect(dsn)
    connection.execute(
        f"create table {name} (id bigint primary key, customer_id int, kind int, note text, address text,"
        " created_at timestamptz, amount numeric, flag bool)".encode()
    )
    connection.commit()
    changes = ", ".join(f"{column} = excluded.{column}" for column in COLUMNS[1:])
    upsert = (
        f"insert into {name} values ({', '.join(['%s'] * len(COLUMNS))}) on conflict (id) do update set {changes}"
    ).encode()
    delete = f"delete from {name} where id = any(%s)".encode()

    def apply(rows: Rows) -> None:
        deleted = [key for key, row in rows.items() if row is None]
        with connection.transaction(), connection.cursor() as cursor:
            cursor.executemany(upsert, [[row[column] for column in COLUMNS] for row in rows.values() if row])
            if deleted:
                cursor.execute(delete, (deleted,))

    return apply


def to_opensearch(url: str, name: str) -> Apply:
    client = OpenSearch(url)
    client.indices.create(index=name, body={"settings": {"number_of_replicas": 0}})

    def apply(rows: Rows) -> None:
        lines = []
        for key, row in rows.items():
            action = "delete" if row is None else "index"
            lines.append(orjson.dumps({action: {"_index": name, "_id": str(key)}}))
            if row is not None:
                lines.append(orjson.dumps(row))
        client.bulk(body=b"\n".join(lines) + b"\n")

    return apply


def follow(bootstrap_servers: str, topic: str, group: str, apply: Apply) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.subscribe([topic])
    while True:
        messages = [message for message in consumer.consume(_BATCH, _WAIT_S) if message.error() is None]
        if messages:
            apply(newest([(message.key() or b"", message.value()) for message in messages]))
            consumer.commit(asynchronous=False)


def main(
    bootstrap_servers: str, topic: str, redis_url: str, warehouse_dsn: str, opensearch_url: str, name: str
) -> None:
    """``name`` is the prefix of the keys, the table and the index. Ends with the first consumer that fails."""
    failed = threading.Event()

    def run(store: str, apply: Apply) -> None:
        try:
            follow(bootstrap_servers, topic, f"{name}-{store}", apply)
        finally:
            failed.set()

    stores = {
        "redis": to_redis(redis_url, name),
        "warehouse": to_warehouse(warehouse_dsn, name),
        "opensearch": to_opensearch(opensearch_url, name),
    }
    for store, apply in stores.items():
        threading.Thread(target=run, args=(store, apply), name=store, daemon=True).start()
    failed.wait()
    sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
