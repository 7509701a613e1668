"""Empties the demo's own servers, so that every run begins alike whatever the last one left behind.

A killed run leaves a slot with a reader, topics with an open transaction, indexes, keys, tables. The stack in the
demo's directory belongs to the demo alone, so everything in it is deleted, and nothing can be overlooked. The pipeline
doesn't have these clients, since it never removes what it didn't make.
"""

import json
import time
import urllib.error
import urllib.request
from typing import Any

import psycopg
import redis
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc.model.errors import LockstepError
from cdc.model.timeouts import DEMO_ANSWERS_S
from stack.stack import Endpoints

_POLL_S = 0.1


def empty(endpoints: Endpoints) -> None:
    """Delete all databases' contents, topics, indexes and keys. Raises LockstepError if anything is left."""
    _recreate_database(endpoints.source_dsn)
    _recreate_database(endpoints.warehouse_dsn)
    _delete_topics(endpoints.kafka_bootstrap)
    _delete_indexes(endpoints.opensearch_url)
    with redis.Redis.from_url(endpoints.redis_url) as client:
        client.flushall()


def _recreate_database(dsn: str) -> None:
    name = str(conninfo_to_dict(dsn)["dbname"])
    with psycopg.connect(make_conninfo(dsn, dbname="postgres"), autocommit=True) as connection:
        _drop_slots(connection, name)
        connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))


def _drop_slots(connection: psycopg.Connection[Any], database: str) -> None:
    """A slot prevents its database from being dropped, and its reader prevents the slot from being dropped."""
    deadline = time.monotonic() + DEMO_ANSWERS_S
    while slots := connection.execute(
        "select slot_name, active_pid from pg_replication_slots where database = %s", (database,)
    ).fetchall():
        if time.monotonic() > deadline:
            names = ", ".join(slot for slot, _ in slots)
            raise LockstepError(f"another process keeps reading replication slots of the last run: {names}")
        for slot, pid in slots:
            if pid is not None:
                connection.execute("select pg_terminate_backend(%s)", (pid,))
                time.sleep(_POLL_S)
                continue
            try:
                connection.execute("select pg_drop_replication_slot(%s)", (slot,))
            except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
                time.sleep(_POLL_S)  # its reader came back, or it was temporary and is gone


def _delete_topics(bootstrap: str) -> None:
    """Delete all topics except Kafka's own, and wait until they are gone: only then are their names free."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + DEMO_ANSWERS_S
    try:
        while topics := [
            name for name in admin.list_topics(timeout=DEMO_ANSWERS_S).topics if not name.startswith("__")
        ]:
            if time.monotonic() > deadline:
                raise LockstepError(f"Kafka keeps {len(topics)} topics of the last run")
            for future in admin.delete_topics(topics, operation_timeout=DEMO_ANSWERS_S).values():
                future.exception()  # a topic that is being deleted already is listed again
            time.sleep(_POLL_S)
    except KafkaException as error:
        raise LockstepError(f"Kafka doesn't answer: {error.args[0].str()}") from error


def _delete_indexes(url: str) -> None:
    """Delete all indexes except OpenSearch's own, which begin with a dot; by name, since it may refuse wildcards."""
    indexes = json.loads(_request(f"{url}/_cat/indices?format=json&h=index&expand_wildcards=all"))
    for index in indexes:
        if not index["index"].startswith("."):
            _request(f"{url}/{index['index']}", method="DELETE")


def _request(url: str, *, method: str = "GET") -> bytes:
    request = urllib.request.Request(url, method=method)  # noqa: S310  an address of our own server
    try:
        with urllib.request.urlopen(request, timeout=DEMO_ANSWERS_S) as answer:  # noqa: S310  same
            content: bytes = answer.read()
            return content
    except (urllib.error.URLError, TimeoutError) as error:
        raise LockstepError(f"OpenSearch refuses {method} {url}: {error}") from error
