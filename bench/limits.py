"""What a store does by itself with the rows that a sink has written: limits of building and of replaying, in rows/s.

The rows are read from the sink and prepared first; nothing is parsed, folded or compared while it is measured.
Each limit writes beside the sink's own data and removes what it wrote.
"""

import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import orjson
import psycopg
import redis
import urllib3
from deltalake import DeltaTable

from bench.rig import LAKE, WAREHOUSE, Pipeline, sink_name
from cdc.kafka.control_topics import read_tables
from cdc.model.errors import LockstepError
from sinks.columns.exact_columns import DELETED_COLUMN, TAG_COLUMN
from sinks.columns.shape import Shape
from sinks.redis.scripts import PLAIN
from sinks.warehouse.names import listed
from sinks.warehouse.postgres.staging import Staging
from sinks.warehouse.postgres.tables import Statements
from sinks.warehouse.settings import WarehouseSettings

WRITERS = 2
"""As many as Spark has tasks at once."""

NO_REFRESH = "-1"
"""As OpenSearch's refresh interval: only when asked to."""

_TOO_MANY_REQUESTS = 429
_PAUSE_S = 0.1
_BULK_BYTES = 5 * 1024 * 1024
_PIPELINE_COMMANDS = 1_000
# As the Redis sink: rows of a call of its script, and of a pipeline.
_CALL_ROWS = 64
_PIPELINE_ROWS = 1_024
_DELETION_TTL_MS = 24 * 60 * 60 * 1000

T = TypeVar("T")
_Row = tuple[bytes, bytes, bytes]


def portions_of(rows: Sequence[T], *, batch: int, tasks: int) -> list[Sequence[T]]:
    """Rows in the order of the log, in the portions in which the tasks of batches apply them. Pure."""
    batches = [rows[start : start + batch] for start in range(0, len(rows), batch)]
    return [portion for of_batch in batches for task in range(tasks) if (portion := of_batch[task::tasks])]


def opensearch(pipeline: Pipeline, *, refresh_interval: str) -> float:
    """Copy the documents into another index with the same mapping, as bulk bodies. ``NO_REFRESH`` means one refresh."""
    url = pipeline.endpoints.opensearch_url
    pool = urllib3.PoolManager(maxsize=WRITERS)
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
    call("PUT", f"/{copy}", {"mappings": mapping, "settings": settings})

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

    seconds = _in_parallel(send, bodies)
    if refresh_interval == NO_REFRESH:
        seconds += _timed(lambda: call("POST", f"/{copy}/_refresh"))
    call("DELETE", f"/{copy}")
    return rows / seconds


def copied(pipeline: Pipeline) -> float:
    """COPY the warehouse's rows, in the order of their place, into another table like it."""
    with psycopg.connect(pipeline.endpoints.warehouse_dsn, autocommit=True) as connection:
        rows = _copied_out(connection, f"copy {_table(pipeline)} to stdout")
        connection.execute(f"create table limit_of_copy (like {_table(pipeline)} including all)".encode())
        blocks = [
            b"".join(rows[start : start + _PIPELINE_COMMANDS]) for start in range(0, len(rows), _PIPELINE_COMMANDS)
        ]
        seconds = _timed(lambda: _copy_in(connection, "copy limit_of_copy from stdin", blocks))
        connection.execute("drop table limit_of_copy")
    return len(rows) / seconds


def merged(pipeline: Pipeline) -> float:
    """COPY the warehouse's rows into staging tables and merge them into a like table, with the sink's own SQL."""
    table = read_tables(pipeline.client, pipeline.name)[pipeline.table]
    shape = Shape.of(table)
    columns = listed((*(column.name for column in shape.columns), TAG_COLUMN, DELETED_COLUMN))
    order = listed(table.key)
    dsn = pipeline.endpoints.warehouse_dsn
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = _copied_out(connection, f"copy (select {columns} from {_table(pipeline)} order by {order}) to stdout")
        connection.execute(f"create table limit_of_merge (like {_table(pipeline)} including all)".encode())
        batch, tasks = pipeline.config.spark.max_offsets_per_trigger, pipeline.config.kafka.topics.partitions
        prepared = [
            [
                b"".join(portion[start : start + _PIPELINE_COMMANDS])
                for start in range(0, len(portion), _PIPELINE_COMMANDS)
            ]
            for portion in portions_of(rows, batch=batch, tasks=tasks)
        ]

        def merge(taken: Iterator[list[bytes]]) -> None:
            staging = Staging("limit_staging", "limit_of_merge")
            statements = Statements("limit_of_merge", shape, staging)
            with psycopg.connect(dsn, autocommit=True) as writer:
                writer.execute(staging.create.encode())
                for blocks in taken:
                    with writer.transaction():
                        _copy_in(writer, statements.copy, blocks)
                        writer.execute(statements.merge.encode())
                        writer.execute(staging.emptying(sum(map(len, blocks))).encode())

        seconds = _in_parallel(merge, prepared)
        connection.execute("drop table limit_of_merge")
    return len(rows) / seconds


def loaded(pipeline: Pipeline) -> float:
    """Write Redis's hashes under another prefix, with HSET."""
    rows = _hashes(pipeline)

    def load(taken: Iterator[list[_Row]]) -> None:
        with _redis(pipeline) as client:
            for portion in taken:
                pipe: Any = client.pipeline(transaction=False)
                for key, tag, value in portion:
                    pipe.hset(key, mapping={"t": tag, "v": value})
                pipe.execute()

    seconds = _in_parallel(load, _in_portions(rows, _PIPELINE_COMMANDS))
    _remove(pipeline, rows)
    return len(rows) / seconds


def compared_and_set(pipeline: Pipeline) -> float:
    """Write Redis's hashes under another prefix, with the script of the sink."""
    rows = _hashes(pipeline)
    with _redis(pipeline) as client:
        digest = client.script_load(PLAIN)
    calls = [
        (
            "EVALSHA",
            digest,
            len(part),
            *(key for key, _, _ in part),
            _DELETION_TTL_MS,
            "0",
            *(t + v for _, t, v in part),
        )
        for part in _in_portions(rows, _CALL_ROWS)
    ]

    def load(taken: Iterator[list[tuple[Any, ...]]]) -> None:
        with _redis(pipeline) as client:
            for portion in taken:
                pipe: Any = client.pipeline(transaction=False)
                for call in portion:
                    pipe.execute_command(*call)
                for (_, _, count, *_), reply in zip(portion, pipe.execute(), strict=True):
                    if reply != b"1" * count:
                        raise LockstepError(f"redis didn't take a prepared row: {reply!r}")

    seconds = _in_parallel(load, _in_portions(calls, _PIPELINE_ROWS // _CALL_ROWS))
    _remove(pipeline, rows)
    return len(rows) / seconds


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


def _in_parallel(work: Callable[[Iterator[T]], None], portions: Iterable[T]) -> float:
    """Seconds that several writers take for all portions. Raises what one of them raises."""
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
        with ThreadPoolExecutor(WRITERS) as pool:
            for writer in [pool.submit(work, take()) for _ in range(WRITERS)]:
                writer.result()

    return _timed(run)


def _in_portions(items: list[T], size: int) -> list[list[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _table(pipeline: Pipeline) -> str:
    """The warehouse sink's table."""
    settings = pipeline.config.sinks[sink_name(pipeline.name, WAREHOUSE)]
    assert isinstance(settings, WarehouseSettings)
    return f'"{settings.schema_name}_g1"."{pipeline.table.name}"'


def _copied_out(connection: psycopg.Connection[Any], statement: str) -> list[bytes]:
    """The rows as lines of COPY."""
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as reading:
        return b"".join(map(bytes, reading)).splitlines(keepends=True)


def _copy_in(connection: psycopg.Connection[Any], statement: str, blocks: Iterable[bytes]) -> None:
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as writing:
        for block in blocks:
            writing.write(block)


def _redis(pipeline: Pipeline) -> Any:
    return redis.Redis.from_url(pipeline.endpoints.redis_url)


def _hashes(pipeline: Pipeline) -> list[_Row]:
    """The sink's rows: another key, tag, value."""
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
    # SCAN may name a key twice.
    return list({row[0]: row for row in rows}.values())


def _remove(pipeline: Pipeline, rows: list[_Row]) -> None:
    with _redis(pipeline) as client:
        for portion in _in_portions(rows, _PIPELINE_COMMANDS):
            client.unlink(*(key for key, _, _ in portion))
