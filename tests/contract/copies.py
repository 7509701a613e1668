"""Copies of all that a sink holds: with one, a test puts its store back to an earlier moment, as if it lost a second.

Each function makes a copy and returns a function that puts it back. Nobody may write to the sink meanwhile.
"""

import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import orjson
import psycopg
import redis
from opensearchpy import OpenSearch
from psycopg import sql

from sinks.memory import MemoryStore

PutBack = Callable[[], None]


def memory_copy(store: MemoryStore) -> PutBack:
    generations, live, records = deepcopy(store.generations), store.live, dict(store.records)

    def put_back() -> None:
        store.generations, store.live, store.records = deepcopy(generations), live, dict(records)

    return put_back


def redis_copy(url: str, name: str) -> PutBack:
    """Like an append-only file that has lost its last second. The server's own history stays."""
    with redis.Redis.from_url(url) as client:
        keys = list(client.scan_iter(f"{name}:*", count=10_000))
        copied = [(key, client.pttl(key), client.dump(key)) for key in keys]

    def put_back() -> None:
        with redis.Redis.from_url(url) as client:
            if keys := list(client.scan_iter(f"{name}:*", count=10_000)):
                client.delete(*keys)
            for key, lives_ms, dumped in copied:
                client.restore(key, max(lives_ms, 0), dumped)

    return put_back


def opensearch_copy(url: str, name: str) -> PutBack:
    """Like a snapshot of the indexes. Nothing remembers the versions of documents that were deleted before."""
    pattern = f"{name}.*"
    with OpenSearch(hosts=[url]) as client:
        client.indices.refresh(index=pattern)
        indexes = client.indices.get(index=pattern)
        documents = {
            index: client.search(index=index, body={"size": 10_000, "version": True})["hits"]["hits"]
            for index in indexes
        }

    def put_back() -> None:
        with OpenSearch(hosts=[url]) as client:
            if there := [row["index"] for row in client.cat.indices(index=pattern, format="json", h="index")]:
                client.indices.delete(index=",".join(there))
            for index, made in indexes.items():
                settings = dict(made["settings"]["index"])
                for chosen in ("creation_date", "uuid", "provided_name", "version"):
                    settings.pop(chosen)
                body = {"settings": {"index": settings}, "mappings": made["mappings"], "aliases": made["aliases"]}
                client.indices.create(index=index, body=body)
                _index(client, index, documents[index])

    return put_back


def _index(client: OpenSearch, index: str, hits: list[dict[str, Any]]) -> None:
    lines: list[bytes] = []
    for hit in hits:
        routing = {"routing": hit["_routing"]} if "_routing" in hit else {}
        version = {"version": hit["_version"], "version_type": "external"}
        lines += [orjson.dumps({"index": {"_id": hit["_id"], **version, **routing}}), orjson.dumps(hit["_source"])]
    if lines:
        answer = client.bulk(index=index, body=b"\n".join([*lines, b""]))
        assert not answer["errors"], answer


def postgres_copy(dsn: str, name: str) -> PutBack:
    """Like a volume that is put back: the timeline stays the same."""
    with psycopg.connect(dsn) as connection:
        tables = connection.execute(
            "select schemaname, tablename, schemaname = 'lockstep' from pg_tables where schemaname = %s"
            " or schemaname = 'lockstep' and tablename in"
            " (select table_name from information_schema.columns where column_name = 'view_schema')",
            (f"{name}_g1",),
        ).fetchall()
        copied = [
            (sql.Identifier(schema, table), whose, _copied(connection, sql.Identifier(schema, table), whose, name))
            for schema, table, is_shared in tables
            for whose in [sql.SQL("view_schema = {}").format(name) if is_shared else sql.SQL("true")]
        ]

    def put_back() -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute("set local session_replication_role = replica")  # no order among tables
            for table, whose, rows in copied:
                connection.execute(sql.SQL("delete from {} where {}").format(table, whose))
                with connection.cursor().copy(sql.SQL("copy {} from stdin").format(table)) as copy:
                    copy.write(rows)

    return put_back


def _copied(connection: psycopg.Connection[Any], table: sql.Identifier, whose: sql.Composable, name: str) -> bytes:
    query = sql.SQL("copy (select * from {} where {}) to stdout").format(table, whose)
    with connection.cursor().copy(query) as copy:
        return b"".join(copy)


def file_copy(path: Path) -> PutBack:
    """A database file that nobody has open."""
    copied = path.read_bytes()

    def put_back() -> None:
        path.with_name(path.name + ".wal").unlink(missing_ok=True)
        path.write_bytes(copied)

    return put_back


def directory_copy(root: Path, name: str, to: Path) -> PutBack:
    """The directories below ``root`` whose names begin with the sink's. ``to`` is a new directory."""
    for directory in root.glob(f"{name}_*"):
        shutil.copytree(directory, to / directory.name)

    def put_back() -> None:
        for directory in root.glob(f"{name}_*"):
            shutil.rmtree(directory)
        for directory in to.iterdir():
            shutil.copytree(directory, root / directory.name)

    return put_back
