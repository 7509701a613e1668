"""Documents of the API, also in states that real servers are rarely in: stalled, stopped, lost, empty."""

import copy
from typing import Any

NOW_MS = 1_795_700_000_000
"""When the documents were sampled."""

Document = dict[str, Any]


def _sink(name: str, kind: str, **changes: Any) -> Document:
    sink: Document = {
        "name": name,
        "kind": kind,
        "generation": 3,
        "live": True,
        "state": "current",
        "since_ms": NOW_MS - 3_600_000,
        "reason": None,
        "next_step": None,
        "lsn": "0/5BF3778",
        "seconds_behind": 0.3,
        "bytes_behind": 30_812,
        "events_behind": 68,
        "events_per_s": 1203.0,
        "open_rejections": 0,
    }
    return {**sink, **changes}


def state(**changes: Any) -> Document:
    """The sampled state of a pipeline that is well, but for ``changes``."""
    document: Document = {
        "pipeline": "shop",
        "version": "0.1.0",
        "sampled_ms": NOW_MS,
        "source": {
            "server": "db.internal:5432",
            "database": "shop",
            "slot": "lockstep_shop",
            "wal_status": "reserved",
            "wal_end": "0/5BFAFD8",
            "confirmed_lsn": "0/5BF9C60",
            "retained_bytes": 18_874_368,
            "safe_wal_bytes": 10_737_418_240,
            "wal_bytes_per_s": 412_330.0,
            "minutes_until_full": 433.5,
        },
        "capture": {
            "state": "current",
            "since_ms": NOW_MS - 86_400_000,
            "reason": None,
            "next_step": None,
            "lsn": "0/5BF9C60",
            "seconds_behind": 0.1,
            "bytes_behind": 5018,
            "events_per_s": 1254.0,
            "commit_interval_ms": 10,
        },
        "topics": {"count": 12, "events_per_s": 1254.0},
        "sinks": [
            _sink("search", "opensearch"),
            _sink("cache", "redis", seconds_behind=0.8, bytes_behind=102_092, events_behind=181, lsn="0/5BE20E8"),
            _sink("warehouse", "warehouse", seconds_behind=0.4, bytes_behind=45_875, events_behind=86),
        ],
        "panels": [],
        "other_rejections": 0,
        "problems": [],
        "open_alerts": 0,
    }
    return {**document, **changes}


def _problem(where: str, kind: str, reason: str, next_step: str, *, minutes: int = 4) -> Document:
    return {
        "where": where,
        "state": kind,
        "since_ms": NOW_MS - minutes * 60_000,
        "reason": reason,
        "next_step": next_step,
    }


def stalled() -> Document:
    reason, step = "its input moves and its progress doesn't", "Look at the server of `search`: `lockstep doctor`"
    sinks = state()["sinks"]
    sinks[0] |= {"state": "stalled", "since_ms": NOW_MS - 240_000, "reason": reason, "next_step": step}
    sinks[0] |= {"seconds_behind": 241.0, "events_behind": 288_113, "bytes_behind": 96_110_223, "events_per_s": 0.0}
    sinks.append(
        _sink("search", "opensearch", generation=4, live=False, state="building", lsn=None, events_behind=90_112)
    )
    return state(sinks=sinks, problems=[_problem("search", "stalled", reason, step)], open_alerts=1)


def stopped() -> Document:
    reason = "the table public.customer was renamed, and this generation can't follow"
    step = "Build it again: `lockstep rebuild cache`"
    sinks = state()["sinks"]
    sinks[1] |= {"state": "stopped", "reason": reason, "next_step": step, "seconds_behind": 5400.0, "events_per_s": 0.0}
    sinks[1]["open_rejections"] = 3
    return state(sinks=sinks, problems=[_problem("cache", "stopped", reason, step, minutes=90)], open_alerts=2)


def slot_lost() -> Document:
    reason = "the server has removed WAL that the slot lockstep_shop needed"
    step = "Copy every table again: `lockstep recover`"
    document = state(problems=[_problem("capture", "stopped", reason, step)], open_alerts=1)
    document["source"] |= {"wal_status": "lost", "safe_wal_bytes": 0, "minutes_until_full": 0.0}
    document["capture"] |= {"state": "stopped", "reason": reason, "next_step": step, "events_per_s": 0.0}
    return document


def empty() -> Document:
    """Nothing has ever run."""
    document = state(sinks=[], topics={"count": 0, "events_per_s": None})
    document["source"] |= {name: None for name in document["source"] if name not in ("server", "database", "slot")}
    nothing = dict.fromkeys(document["capture"])
    document["capture"] = {**nothing, "state": "unknown"}
    return document


def query_stopped() -> Document:
    """Of two stream queries one has stopped."""
    reason, step = "its checkpoint is gone", "Build its result again: `lockstep streams rebuild sessions`"
    columns = ["watermark", "results", "late", "malformed", "refused", "kept rows"]
    running = {"name": "clicks", "state": "running", "figures": [NOW_MS - 600_000, 71_204, 12, 3, 0, 5_120]}
    stopped = {**running, "name": "sessions", "state": "stopped"}
    panel = {"name": "stream_queries", "title": "Stream queries", "kind": "stream query", "columns": columns}
    panel |= {"times": ["watermark"], "rows": [running, stopped]}
    problems = [_problem("stream query sessions", "stopped", reason, step)]
    return state(panels=[panel], other_rejections=4, problems=problems, open_alerts=1)


STATES = {
    "well": state,
    "query_stopped": query_stopped,
    "stalled": stalled,
    "stopped": stopped,
    "slot_lost": slot_lost,
    "empty": empty,
}


def tables(number: int = 12) -> Document:
    names = ["customer", "order", "order_line", "product", "invoice", "payment", "address", "stock", "review"]
    rows = []
    for index in range(number):
        name = names[index] if index < len(names) else f"part_{index:04}"
        rows.append(
            {
                "table": f"public.{name}",
                "topic": f"shop.public.{name}",
                "state": "streaming" if index != 3 else "copying",
                "key": ["id"],
                "partitions": 4,
                "events_per_s": max(0.0, 420.0 - 37.5 * index),
                "schema_id": 1 + index % 4,
            }
        )
    return {"tables": rows}


def documents() -> dict[str, Document]:
    """What each other address answers."""
    return copy.deepcopy(_DOCUMENTS)


_HOUR = [
    [(NOW_MS - (3600 - 10 * n) * 1000) // 1000, 0.3 + (n % 37) / 60 + (6 if 200 < n < 230 else 0)] for n in range(360)
]

_DOCUMENTS: dict[str, Document] = {
    "findings": {
        "checked_ms": NOW_MS - 30_000,
        "findings": [
            {
                "severity": "error",
                "subject": "public.review",
                "message": "the table has no primary key, and OpenSearch needs one",
                "sql": "alter table public.review add primary key (id);",
            },
            {
                "severity": "warning",
                "subject": "wal_level",
                "message": "max_slot_wal_keep_size is unlimited: a slot that nobody reads fills the disk",
                "sql": "alter system set max_slot_wal_keep_size = '50GB';\nselect pg_reload_conf();",
            },
            {"severity": "ok", "subject": "publication", "message": "the publication has 12 tables", "sql": None},
        ],
    },
    "tables": tables(),
    "schemas": {
        "table": "public.customer",
        "versions": [
            {"schema_id": 1, "lsn": "0/1A00028", "columns": 6, "change": "first seen"},
            {"schema_id": 2, "lsn": "0/4F11A90", "columns": 7, "change": "added: phone text"},
        ],
    },
    "sink": {
        "name": "search",
        "lag": _HOUR,
        "generations": [
            {"generation": 3, "live": True, "state": "ready", "lsn": "0/5BF3778"},
            {"generation": 2, "live": False, "state": "retired", "lsn": "0/4000000"},
        ],
    },
    "copies": {
        "rows_per_s": 48_120.0,
        "bytes_per_s": 9_400_000.0,
        "seconds_left": 372.0,
        "held": "213 MiB of WAL are held until the copy is done",
        "copies": [
            {"table": "public.order", "state": "copied", "rows": 900_000, "rows_estimated": 900_000, "bytes": 9**9},
            {"table": "public.product", "state": "copying", "rows": 81_000, "rows_estimated": 200_000, "bytes": 8**8},
            {"table": "public.stock", "state": "paused", "rows": 9_000, "rows_estimated": 40_000, "bytes": 700_000},
        ],
        "builds": [{"sink": "search", "generation": 4, "state": "building", "events": 91_002, "events_total": 181_114}],
    },
    "key": {
        "table": "public.customer",
        "key": '{"id":42}',
        "verdict": "The row in `cache` is older than the source's: its job stopped before the change was applied.",
        "is_right": False,
        "source": {"row": {"id": 42, "name": "Ada", "city": "London"}, "lsn": "0/5BFAFD8"},
        "events": [
            {"op": "u", "tag": "0000000005bf37780001", "time_ms": NOW_MS - 4000, "offset": 512, "partition": 2},
            {"op": "c", "tag": "0000000004a011200000", "time_ms": NOW_MS - 90_000_000, "offset": 17, "partition": 2},
        ],
        "sinks": [
            {"sink": "search", "state": "equal", "tag": "0000000005bf37780001", "row": {"id": 42, "city": "London"}},
            {"sink": "cache", "state": "older", "tag": "0000000004a011200000", "row": {"id": 42, "city": "Turin"}},
        ],
    },
    "rejections": {
        "reasons": [
            {
                "sink": "search",
                "reason": "mapper_parsing_exception: failed to parse field [price] of type [long]",
                "count": 3,
                "first_ms": NOW_MS - 9_000_000,
                "last_ms": NOW_MS - 60_000,
                "example": {"id": "2-512", "table": "public.product", "key": '{"id":7}', "tag": "0000000005bf37780001"},
            }
        ]
    },
    "verify": {
        "sinks": [
            {"sink": "search", "state": "equal", "ended_ms": NOW_MS - 600_000, "differing": 0, "error": None,
             "verified_through": "0/5B00000", "verified_through_ms": NOW_MS - 624_000,
             "but_for": ["append-only tables, compared with their topics (1)"]},
            {"sink": "cache", "state": "failed", "ended_ms": NOW_MS - 900_000, "differing": 0,
             "error": "the store doesn't answer", "verified_through": None, "verified_through_ms": None,
             "but_for": []},
        ],
    },
    "alerts": {
        "open": [
            {"condition": "stalled", "where": "search", "since_ms": NOW_MS - 240_000, "message": "search is stalled"}
        ],
        "log": [
            {"time_ms": NOW_MS - 240_000, "kind": "alert", "message": "search is stalled"},
            {"time_ms": NOW_MS - 900_000, "kind": "state", "message": "cache is current"},
        ],
    },
}  # fmt: skip


def tail_event() -> Document:
    return {
        "table": "public.customer",
        "op": "u",
        "key": '{"id":42}',
        "tag": "0000000005bf37780001",
        "partition": 1,
        "offset": 7,
        "time_ms": NOW_MS,
    }
