"""Building a sink from the log's beginning, beside the store's own bulk limit with the same rows; and comparing it with the source.

The limit is what the store does with the rows as they are in the end, made ready beforehand: nothing is read, parsed, folded or
compared while it is measured.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson
import psycopg
import redis
import urllib3

from bench.figures import Figure, Limit, Target
from bench.rig import CACHE, SEARCH, WAREHOUSE, Child, Pipeline, Rig, Say, sink_name, wait_until
from bench.sizes import Sizes
from bench.usage import CpuMeter
from cdc.kafka.control_topics import read_state
from cdc.model.errors import LockstepError
from cdc.postgres.slot import wal_end

PHASE = "bootstrap"

_TRANSACTION_ROWS = 1_000
_BULK_BYTES = 5 * 1024 * 1024
_PIPELINE_COMMANDS = 1_000
_WRITERS = 2
"""As many as Spark has tasks at once."""

_ROWS_PER_S_MIN = 500
"""Slower than this is stuck, whatever the machine."""

_SHARE = {SEARCH: 0.7, WAREHOUSE: 0.6, CACHE: 0.6}
_WHAT = {
    SEARCH: "replaying prepared bulk bodies, refresh off, then one refresh",
    WAREHOUSE: "bare COPY into the same table with its primary key",
    CACHE: "a bare pipelined load of the same hashes",
}


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Fill the log with two events per key, then build and compare each sink from it."""
    rig.up()
    figures: list[Figure] = []
    facts: dict[str, Any] = {}
    keys = sizes.bootstrap_keys
    with rig.pipeline(PHASE, sinks=True) as pipeline:
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
        say(f"writing {keys:,} rows twice")
        _fill(pipeline, capture, keys)
        limits: dict[str, Callable[[], float]] = {
            SEARCH: lambda: _search_limit(pipeline),
            WAREHOUSE: lambda: _warehouse_limit(pipeline),
            CACHE: lambda: _cache_limit(pipeline),
        }
        for kind, limit in limits.items():
            # Once for the store, which is a new process and is compared with what it does when it is warm; ours is new each time.
            say(f"building {kind}, for the store to be warm")
            _build(pipeline, kind, keys)
            say(f"building {kind} beside that")
            source = CpuMeter({"source": rig.server_pids["postgres"]})
            built = _build(pipeline, kind, keys)
            say(f"the limit of {kind}")
            limit_s = limit()
            load_s, compare_s = built["load_seconds"], built["compare_seconds"]
            figures += [
                Figure(
                    phase=PHASE,
                    name=f"{kind}: keys/s from a log of two events per key",
                    value=keys / load_s,
                    unit="rows/s",
                    limit=Limit(value=keys / limit_s, what=_WHAT[kind]),
                    target=Target(bound="at least", amount=_SHARE[kind], of_limit=True),
                ),
                Figure(phase=PHASE, name=f"{kind}: rows/s compared", value=keys / compare_s, unit="rows/s"),
            ]
            facts[kind] = {
                "events": built["loaded"],
                "load_s": load_s,
                "limit_s": round(limit_s, 3),
                "compare_s": compare_s,
                "source_cpu_s": source.used()["source"],
            }
    return figures, facts


def _fill(pipeline: Pipeline, capture: Child, keys: int) -> None:
    """Insert the rows, update each once, and wait until capture has published that."""
    whole = max(1, keys // _TRANSACTION_ROWS) * _TRANSACTION_ROWS
    with pipeline.sql() as connection:
        pipeline.load(connection, first=1, rows=whole, per_transaction=_TRANSACTION_ROWS)
        connection.execute(f"update {pipeline.name} set amount = amount + 1, note = note || '!'".encode())
        target = wal_end(connection)

    def published() -> bool:
        capture.check()
        state = read_state(pipeline.client, pipeline.name, pipeline.config.slot)
        return state is not None and state.end_lsn >= target

    wait_until(published, what="the log is filled", timeout_s=300 + 2 * keys / _ROWS_PER_S_MIN, every_s=0.5)


def _build(pipeline: Pipeline, kind: str, keys: int) -> dict[str, Any]:
    """Run the command; its result. Raises LockstepError when it fails or the sink isn't equal to the source."""
    rebuild = pipeline.start_rebuild(sink_name(pipeline.name, kind))
    deadline = time.monotonic() + 300 + 2 * keys / _ROWS_PER_S_MIN
    while rebuild.is_alive:
        if time.monotonic() > deadline:
            raise LockstepError(f"building {kind} takes too long")
        time.sleep(0.2)
    text = rebuild.tail.text()
    pipeline.stop(rebuild)
    start = text.rfind("\n{\n")
    try:
        result: dict[str, Any] = json.loads(text[start:])
    except ValueError as error:
        raise LockstepError(f"building {kind} failed:\n{rebuild.tail.last(25)}") from error
    if not result["equal"]:
        raise LockstepError(f"{kind} isn't equal to the source:\n{rebuild.tail.last(25)}")
    return result


def _timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _in_parallel(work: Callable[[Iterator[Any]], None], portions: Iterable[Any]) -> float:
    """Seconds that several writers take for all portions."""
    lock = threading.Lock()
    remaining = iter(portions)

    def take() -> Iterator[Any]:
        while True:
            with lock:
                portion = next(remaining, None)
            if portion is None:
                return
            yield portion

    writers = [threading.Thread(target=work, args=(take(),)) for _ in range(_WRITERS)]

    def run() -> None:
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()

    return _timed(run)


def _search_limit(pipeline: Pipeline) -> float:
    """Copy the built index's documents into another index with the same settings and mapping, from memory."""
    url = pipeline.endpoints.opensearch_url
    pool = urllib3.PoolManager(maxsize=_WRITERS)
    index = f"{pipeline.name}.public.{pipeline.name}_g1"

    def call(method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else orjson.dumps(body)
        answer = pool.request(method, f"{url}{path}", body=data, headers={"content-type": "application/json"})
        if answer.status >= 300:
            raise LockstepError(f"opensearch: {answer.status} {answer.data[:300]!r}")
        return orjson.loads(answer.data)

    bodies: list[bytes] = []
    lines: list[bytes] = []
    size = 0
    page = call("POST", f"/{index}/_search?scroll=5m", {"size": 5000, "sort": ["_doc"]})
    while page["hits"]["hits"]:
        for hit in page["hits"]["hits"]:
            line = orjson.dumps({"index": {"_id": hit["_id"], "version": 1, "version_type": "external"}})
            lines += [line, orjson.dumps(hit["_source"])]
            size += len(lines[-1]) + len(line)
            if size > _BULK_BYTES:
                bodies.append(b"\n".join(lines) + b"\n")
                lines, size = [], 0
        page = call("POST", "/_search/scroll", {"scroll": "5m", "scroll_id": page["_scroll_id"]})
    if lines:
        bodies.append(b"\n".join(lines) + b"\n")
    mapping = call("GET", f"/{index}/_mapping")[index]["mappings"]
    copy = f"{pipeline.name}_limit"
    settings = {"index": {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "-1"}}
    call("PUT", f"/{copy}", {"mappings": mapping, "settings": settings})

    def send(portions: Iterator[bytes]) -> None:
        for body in portions:
            headers = {"content-type": "application/x-ndjson"}
            answer = pool.request("POST", f"{url}/{copy}/_bulk?filter_path=errors", body=body, headers=headers)
            if orjson.loads(answer.data)["errors"]:
                raise LockstepError("opensearch refused a prepared document")

    seconds = _in_parallel(send, bodies) + _timed(lambda: call("POST", f"/{copy}/_refresh"))
    call("DELETE", f"/{copy}")
    return seconds


def _warehouse_limit(pipeline: Pipeline) -> float:
    """COPY the built table's rows, in the order of their place, into another table like it."""
    table = f'"{pipeline.name}_g1"."{pipeline.name}"'
    with psycopg.connect(pipeline.endpoints.warehouse_dsn, autocommit=True) as connection:
        with connection.cursor() as cursor, cursor.copy(f"copy {table} to stdout".encode()) as reading:
            blocks = [bytes(block) for block in reading]
        connection.execute(f"create table limit_of_copy (like {table} including all)".encode())

        def load() -> None:
            with connection.cursor() as cursor, cursor.copy("copy limit_of_copy from stdin") as writing:
                portion: list[bytes] = []
                for block in blocks:
                    portion.append(block)
                    if len(portion) == _PIPELINE_COMMANDS:
                        writing.write(b"".join(portion))
                        portion.clear()
                writing.write(b"".join(portion))

        seconds = _timed(load)
        connection.execute("drop table limit_of_copy")
    return seconds


def _cache_limit(pipeline: Pipeline) -> float:
    """Write the built hashes under another prefix, from memory."""
    client: Any = redis.Redis.from_url(pipeline.endpoints.redis_url)
    prefix = f"{pipeline.name}:g1:"
    rows: list[tuple[bytes, bytes, bytes]] = []
    cursor, done = 0, False
    while not done:
        cursor, found = client.scan(cursor, match=f"{prefix}*", count=5000)
        done = cursor == 0
        reading = client.pipeline(transaction=False)
        for key in found:
            reading.hmget(key, "t", "v")
        rows += [(b"limit:" + key, tag, value) for key, (tag, value) in zip(found, reading.execute(), strict=True)]
    portions = [rows[at : at + _PIPELINE_COMMANDS] for at in range(0, len(rows), _PIPELINE_COMMANDS)]

    def load(taken: Iterator[list[tuple[bytes, bytes, bytes]]]) -> None:
        with redis.Redis.from_url(pipeline.endpoints.redis_url) as writer:
            for portion in taken:
                pipe: Any = writer.pipeline(transaction=False)
                for key, tag, value in portion:
                    pipe.hset(key, mapping={"t": tag, "v": value})
                pipe.execute()

    seconds = _in_parallel(load, portions)
    for portion in portions:
        client.unlink(*(key for key, _, _ in portion))
    return seconds
