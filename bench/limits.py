"""What a store does by itself with the rows that a sink has written: limits of building and replaying, in rows/s.

The rows are first read from the sink and made into the store's own bytes; nothing is parsed, folded, compared or
encoded while it is measured. If there are several ways to write them, the fastest is the limit. Each limit writes
beside the sink's own data and removes what it wrote.
"""

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

import orjson
import psycopg
import redis
import urllib3
from deltalake import DeltaTable

from bench.rig import LAKE, WAREHOUSE, Pipeline, sink_name
from cdc.kafka.control_topics import read_tables
from cdc.model.errors import LockstepError
from jobs.batch_limits import RECORDS_MAX
from sinks.redis.scripts import PLAIN
from sinks.warehouse.names import listed
from sinks.warehouse.settings import WarehouseSettings

WRITERS = 2
"""As many as Spark's parallel tasks."""

_BULKS_AT_ONCE = (WRITERS, 2 * WRITERS)
"""Requests of OpenSearch. The sink has up to two of each task in flight."""

_INDEX_MEMORY = "256MB"
"""As the warehouse sink has it for building an index."""

NO_REFRESH = "-1"
"""As OpenSearch's refresh interval: only on request."""

_TOO_MANY_REQUESTS = 429
_PAUSE_S = 0.1
_BULK_BYTES = 5 * 1024 * 1024
_BLOCK_ROWS = 1_024  # of one write
# Rows of a call of the script, as in the Redis sink.
_CALL_ROWS = 64
_DELETION_TTL_MS = 24 * 60 * 60 * 1000

T = TypeVar("T")
_Row = tuple[bytes, bytes, bytes]


def portions_of(rows: Sequence[T], *, batch: int, tasks: int) -> list[Sequence[T]]:
    """Rows in log order, grouped as the tasks of batches apply them. Pure."""
    batches = [rows[start : start + batch] for start in range(0, len(rows), batch)]
    return [portion for of_batch in batches for task in range(tasks) if (portion := of_batch[task::tasks])]


def opensearch(pipeline: Pipeline, *, refresh_interval: str) -> float:
    """Copy the documents into another index with the same mapping, as bulk bodies. ``NO_REFRESH`` means one refresh."""
    url = pipeline.endpoints.opensearch_url
    pool = urllib3.PoolManager(maxsize=max(_BULKS_AT_ONCE))
    index = f"{pipeline.name}.public.{pipeline.name}_g1"

    def call(method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else orjson.dumps(body)
        answer = pool.request(method, f"{url}{path}", body=data, headers={"content-type": "application/json"})
        if answer.status >= 300:
            raise LockstepError(f"opensearch: {answer.status} {answer.data[:300]!r}")
        return orjson.loads(answer.data)

    bodies: list[bytes] = []
    lines: list[bytes] = []
    rows = size = 0
    call("POST", f"/{index}/_refresh")
    page = call("POST", f"/{index}/_search?scroll=5m", {"size": 5000, "sort": ["_doc"]})
    while page["hits"]["hits"]:
        for hit in page["hits"]["hits"]:
            line = orjson.dumps({"index": {"_id": hit["_id"], "version": 1, "version_type": "external"}})
            lines += [line, orjson.dumps(hit["_source"])]
            rows += 1
            size += len(lines[-1]) + len(line)
            if size > _BULK_BYTES:
                bodies.append(b"\n".join(lines) + b"\n")
                lines, size = [], 0
        page = call("POST", "/_search/scroll", {"scroll": "5m", "scroll_id": page["_scroll_id"]})
    if lines:
        bodies.append(b"\n".join(lines) + b"\n")
    mapping = call("GET", f"/{index}/_mapping")[index]["mappings"]
    copy = f"{pipeline.name}_limit"
    settings = {"index": {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": refresh_interval}}

    def send(portions: Iterator[bytes]) -> None:
        headers = {"content-type": "application/x-ndjson"}
        for body in portions:
            while True:
                answer = pool.request("POST", f"{url}/{copy}/_bulk?filter_path=errors", body=body, headers=headers)
                if answer.status != _TOO_MANY_REQUESTS:
                    break
                time.sleep(_PAUSE_S)  # its memory is full: the sink waits, too
            if answer.status >= 300:
                raise LockstepError(f"opensearch: {answer.status} for a prepared bulk body")
            if orjson.loads(answer.data)["errors"]:
                raise LockstepError("opensearch refused a prepared document")

    def written(writers: int) -> float:
        call("PUT", f"/{copy}", {"mappings": mapping, "settings": settings})
        seconds = _in_parallel(send, bodies, writers=writers)
        if refresh_interval == NO_REFRESH:
            seconds += _timed(lambda: call("POST", f"/{copy}/_refresh"))
        call("DELETE", f"/{copy}")
        return seconds

    return rows / min(map(written, _BULKS_AT_ONCE))


def copied(pipeline: Pipeline, *, key_last: bool) -> float:
    """COPY the warehouse's rows straight into a like table with its key, or into one whose key is made at the end.

    They go over several connections, in log order, in groups of one transaction each.
    """
    key = listed(read_tables(pipeline.client, pipeline.name)[pipeline.table].key)
    dsn, limit = pipeline.endpoints.warehouse_dsn, "limit_of_copy"
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = _copied_out(connection, f"copy (select * from {_table(pipeline)} order by {key}) to stdout")
        connection.execute(f"create table {limit} (like {_table(pipeline)} including defaults)".encode())
        make_key = f"alter table {limit} add primary key ({key})".encode()
        batch, tasks = RECORDS_MAX, pipeline.config.kafka.topics.partitions
        prepared = [
            [b"".join(block) for block in _in_portions(list(portion), _BLOCK_ROWS)]
            for portion in portions_of(rows, batch=batch, tasks=tasks)
        ]
        if not key_last:
            connection.execute(make_key)

        def copy(taken: Iterator[list[bytes]]) -> None:
            with psycopg.connect(dsn, autocommit=True) as writer:
                for blocks in taken:
                    with writer.cursor() as cursor, cursor.copy(f"copy {limit} from stdin".encode()) as writing:
                        for block in blocks:
                            writing.write(block)

        seconds = _in_parallel(copy, prepared)
        if key_last:
            connection.execute(f"set maintenance_work_mem = '{_INDEX_MEMORY}'".encode())
            seconds += _timed(lambda: connection.execute(make_key))
        connection.execute(f"drop table {limit}".encode())
    return len(rows) / seconds


def written_to_redis(pipeline: Pipeline) -> float:
    """Write Redis's hashes under another prefix, already encoded. The faster rate of HSET and the sink's script."""
    rows = _hashes(pipeline)
    with _redis(pipeline) as client:
        digest = client.script_load(PLAIN).encode()
    plain = [
        (b"".join(_command(b"HSET", key, b"t", tag, b"v", value) for key, tag, value in part), b":2\r\n" * len(part))
        for part in _in_portions(rows, _BLOCK_ROWS)
    ]
    calls = [
        (
            _command(
                *(b"EVALSHA", digest, b"%d" % len(part), *(key for key, _, _ in part)),
                *(b"%d" % _DELETION_TTL_MS, b"0", *(tag + value for _, tag, value in part)),
            ),
            b"$%d\r\n%b\r\n" % (len(part), b"1" * len(part)),
        )
        for part in _in_portions(rows, _CALL_ROWS)
    ]
    # As many rows in flight as with the others.
    by_script = [
        (b"".join(sent for sent, _ in some), b"".join(reply for _, reply in some))
        for some in _in_portions(calls, _BLOCK_ROWS // _CALL_ROWS)
    ]
    address = urlsplit(pipeline.endpoints.redis_url)

    def send(taken: Iterator[tuple[bytes, bytes]]) -> None:
        with socket.create_connection((address.hostname, address.port)) as connection:
            for commands, expected in taken:
                connection.sendall(commands)
                reply = b""
                while len(reply) < len(expected):
                    received = connection.recv(1 << 16)
                    if not received:
                        break
                    reply += received
                if reply != expected:
                    raise LockstepError(f"redis didn't take a prepared row: {reply[:300]!r}")

    def written(portions: Sequence[tuple[bytes, bytes]]) -> float:
        seconds = _in_parallel(send, portions)
        _remove(pipeline, rows)
        return seconds

    return len(rows) / min(map(written, (plain, by_script)))


def merged_at_once(pipeline: Pipeline) -> float:
    """Merge the Delta table's rows, all in one Arrow table, into an empty table with its columns."""
    path = pipeline.lake / f"{sink_name(pipeline.name, LAKE)}_g1" / pipeline.table.name
    stored = DeltaTable(str(path))
    rows = stored.to_pyarrow_table()
    copy = pipeline.lake / "limit"
    empty = DeltaTable.create(str(copy), schema=stored.schema())

    def merge() -> None:
        writing = empty.merge(rows, "t.id = s.id", source_alias="s", target_alias="t", streamed_exec=False)
        writing.when_matched_update_all("s._tag > t._tag").when_not_matched_insert_all().execute()

    seconds = _timed(merge)
    shutil.rmtree(copy)
    return int(rows.num_rows) / seconds


def _timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _in_parallel(work: Callable[[Iterator[T]], None], portions: Iterable[T], *, writers: int = WRITERS) -> float:
    """Seconds that several writers take for all groups. Raises what one of them raises."""
    lock = threading.Lock()
    remaining = iter(portions)

    def take() -> Iterator[T]:
        while True:
            with lock:
                portion = next(remaining, None)
            if portion is None:
                return
            yield portion

    def run() -> None:
        with ThreadPoolExecutor(writers) as pool:
            for writer in [pool.submit(work, take()) for _ in range(writers)]:
                writer.result()

    return _timed(run)


def _in_portions(items: list[T], size: int) -> list[list[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _table(pipeline: Pipeline) -> str:
    settings = pipeline.config.sinks[sink_name(pipeline.name, WAREHOUSE)]
    assert isinstance(settings, WarehouseSettings)
    return f'"{settings.prefix}_g1"."{pipeline.table.name}"'


def _copied_out(connection: psycopg.Connection[Any], statement: str) -> list[bytes]:
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as reading:
        return b"".join(map(bytes, reading)).splitlines(keepends=True)


def _command(*arguments: bytes) -> bytes:
    return b"*%d\r\n" % len(arguments) + b"".join(b"$%d\r\n%b\r\n" % (len(text), text) for text in arguments)


def _redis(pipeline: Pipeline) -> Any:
    return redis.Redis.from_url(pipeline.endpoints.redis_url)


def _hashes(pipeline: Pipeline) -> list[_Row]:
    """The sink's rows: new key, tag, value."""
    rows: list[_Row] = []
    with _redis(pipeline) as client:
        cursor, done = 0, False
        while not done:
            cursor, keys = client.scan(cursor, match=f"{pipeline.name}:g1:*", count=5000)
            done = cursor == 0
            reading = client.pipeline(transaction=False)
            for key in keys:
                reading.hmget(key, "t", "v")
            rows += [(b"limit:" + key, tag, value) for key, (tag, value) in zip(keys, reading.execute(), strict=True)]
    # SCAN may return a key twice.
    return list({row[0]: row for row in rows}.values())


def _remove(pipeline: Pipeline, rows: list[_Row]) -> None:
    with _redis(pipeline) as client:
        for portion in _in_portions(rows, _BLOCK_ROWS):
            client.unlink(*(key for key, _, _ in portion))
