"""Building a sink from the log's beginning, beside the store's own bulk limit, and comparing it with the source.

The limit is what the store does with the same final rows, prepared beforehand: nothing is read, parsed, folded or
compared while it is measured.
"""

import json
from collections.abc import Callable
from typing import Any

from bench import limits
from bench.figures import Figure, Limit, Target
from bench.rig import CACHE, SEARCH, STORES, WAREHOUSE, Child, Pipeline, Rig, Say, sink_name
from bench.sizes import Sizes
from bench.usage import CpuMeter
from cdc.model.errors import LockstepError
from cdc.postgres.slot import wal_end

PHASE = "bootstrap"

_TRANSACTION_ROWS = 1_000
_ROWS_PER_S_MIN = 500
"""A lower rate means that it is stuck, on any machine."""

_SHARE = {SEARCH: 0.7, WAREHOUSE: 0.45, CACHE: 0.65}
_WHAT = {
    SEARCH: "replaying prepared bulk bodies, two or four at once, refresh off, then one refresh",
    WAREHOUSE: "bare COPY into a like table over two connections, then its primary key",
    CACHE: "the same hashes by prepared HSETs or calls of the sink's script, whichever is quicker",
}


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Fill the log with two events per key, then build and compare each sink. Returns figures and details.

    Raises LockstepError when a command fails, takes too long, or leaves a sink that isn't equal to the source.
    """
    rig.up()
    figures: list[Figure] = []
    facts: dict[str, Any] = {}
    keys = sizes.bootstrap_keys
    with rig.pipeline(PHASE, sinks=STORES) as pipeline:
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
        say(f"writing {keys:,} rows twice")
        _fill(pipeline, capture, keys)
        of_store: dict[str, Callable[[], float]] = {
            SEARCH: lambda: limits.opensearch(pipeline, refresh_interval=limits.NO_REFRESH),
            WAREHOUSE: lambda: limits.copied(pipeline, key_last=True),
            CACHE: lambda: limits.written_to_redis(pipeline),
        }
        for kind, limit in of_store.items():
            # The store keeps running and is compared warm, so each sink is built once before. Our processes are new.
            say(f"building {kind}, for the store to be warm")
            _build(pipeline, kind, keys)
            say(f"building {kind} beside that")
            source = CpuMeter({"source": rig.server_pids["postgres"]})
            built = _build(pipeline, kind, keys)
            say(f"the limit of {kind}")
            limit_rate = limit()
            load_s, compare_s = built["load_seconds"], built["compare_seconds"]
            figures += [
                Figure(
                    phase=PHASE,
                    name=f"{kind}: keys/s from a log of two events per key",
                    value=keys / load_s,
                    unit="rows/s",
                    limit=Limit(value=limit_rate, what=_WHAT[kind]),
                    target=Target(bound="at least", amount=_SHARE[kind], of_limit=True),
                ),
                Figure(phase=PHASE, name=f"{kind}: rows/s compared", value=keys / compare_s, unit="rows/s"),
            ]
            facts[kind] = {
                "events": built["loaded"],
                "load_s": load_s,
                "limit_s": round(keys / limit_rate, 3),
                "compare_s": compare_s,
                "source_cpu_s": source.used()["source"],
            }
    return figures, facts


def _fill(pipeline: Pipeline, capture: Child, keys: int) -> None:
    """Insert the rows, update each once, and wait until capture has published both."""
    whole = max(1, keys // _TRANSACTION_ROWS) * _TRANSACTION_ROWS
    with pipeline.sql() as connection:
        pipeline.load(connection, first=1, rows=whole, per_transaction=_TRANSACTION_ROWS)
        connection.execute(f"update {pipeline.name} set amount = amount + 1, note = note || '!'".encode())
        target = wal_end(connection)
    pipeline.wait_published(capture, target, timeout_s=300 + 2 * keys / _ROWS_PER_S_MIN)


def _build(pipeline: Pipeline, kind: str, keys: int) -> dict[str, Any]:
    """Run the command; returns its result. Raises LockstepError when it fails or the sink isn't equal to the source."""
    rebuild = pipeline.start_rebuild(sink_name(pipeline.name, kind))
    text = pipeline.wait_end(rebuild, timeout_s=300 + 2 * keys / _ROWS_PER_S_MIN)
    start = text.rfind("\n{\n")
    try:
        result: dict[str, Any] = json.loads(text[start:])
    except ValueError as error:
        raise LockstepError(f"building {kind} failed:\n{rebuild.tail.last(25)}") from error
    if not result["equal"]:
        raise LockstepError(f"{kind} isn't equal to the source:\n{rebuild.tail.last(25)}")
    return result
