"""What an answer of OpenSearch means: applied, too old, to be repeated, the row's fault, or the operator's turn (pure).

===============================================  ============  =================================================
answer                                           verdict
===============================================  ============  =================================================
2xx; a delete's 404                              applied
409 version conflict                             stale         the document has this version or a newer one
429, 5xx, 503 cluster block                      again         queues, breakers, a node or a shard that is missing
413 of several documents                         again         in smaller requests
400 mapping conflict; 413 of one document        rejected      nobody can write this row as it is
403 and 429 cluster block                        stop          read-only, mostly a full disk
400 index closed, no index, no writing alias     stop          somebody removed what rows go into
401, 403, anything else                          stop
===============================================  ============  =================================================
"""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from cdc.model.errors import LockstepError, StoreRefuses, Unavailable

RETRY_AFTER_S: Final = 1.0

TOO_LONG: Final = "content_too_long"
"""The error of documents in a request that is longer than the server, or a proxy before it, allows."""

_FIELD_IN_REASON: Final = re.compile(r"failed to parse field \[(?P<field>[^\]]*)\] of type \[(?P<type>[^\]]*)\]")

# Status 400, although nothing is wrong with the document.
_NOBODYS_BAD_ROW: Final = frozenset(
    {
        # The writing alias is gone, and the server tried to create an index in its place.
        "invalid_index_name_exception",
        "index_closed_exception",
        "routing_missing_exception",  # this job routes differently from the index
    }
)


class Verdict(Enum):
    APPLIED = "applied"
    STALE = "stale"
    AGAIN = "again"
    REJECTED = "rejected"
    STOP = "stop"


def verdict(status: int, error: str | None) -> Verdict:
    if error is None:
        # 404 without an error: the document to delete didn't exist; its version is remembered nevertheless.
        return Verdict.APPLIED
    if error == "version_conflict_engine_exception":
        return Verdict.STALE
    if error == "cluster_block_exception" and status != 503:
        return Verdict.STOP  # full disk or a read-only index: not the row's fault
    if error in _NOBODYS_BAD_ROW:
        return Verdict.STOP
    if status == 429 or status >= 500:
        return Verdict.AGAIN
    return Verdict.REJECTED if status in (400, 413) else Verdict.STOP


def refusal(error: Mapping[str, Any]) -> str:
    """The reason without the server's own sentence, which quotes the value."""
    field = _FIELD_IN_REASON.search(error.get("reason") or "")
    where = "" if field is None else f": field {field['field']!r} of type {field['type']}"
    cause = (error.get("caused_by") or {}).get("type")
    return f"{error['type']}{where}" + ("" if cause is None else f" ({cause})")


def failure(status: int, error: str) -> LockstepError:
    if verdict(status, error) is Verdict.AGAIN:
        return Unavailable(f"opensearch can't serve now: {status} {error}", retry_after_s=RETRY_AFTER_S)
    return stopping(status, error)


def unreadable(error: Mapping[str, Any]) -> LockstepError:
    """The error for a document that couldn't be looked up, which doesn't mean that it is missing."""
    if error["type"] == "index_not_found_exception":
        return stopping(404, error["type"])
    if error["type"] in _NOBODYS_BAD_ROW:
        return stopping(400, error["type"])
    return Unavailable(f"opensearch can't read a document now: {error['type']}", retry_after_s=RETRY_AFTER_S)


def unserved() -> Unavailable:
    """The error when a shard can't answer, and all have to."""
    return Unavailable("opensearch can't reach all shards of an index now", retry_after_s=RETRY_AFTER_S)


def require_all(answer: Any) -> Any:
    """The answer to a request to all copies. Raises Unavailable if one failed; copies out of service don't count."""
    if answer["_shards"]["failed"]:
        raise unserved()
    return answer


def stopping(status: int, error: str) -> LockstepError:
    """The error when the operator has to act."""
    if status == 401:
        hint = "check user and password of this sink"
    elif status == 403 and error != "cluster_block_exception":
        hint = (
            "grant the sink's user the right to create, read, write and alias the indexes of its prefix, "
            "and to change their settings"
        )
    elif error == "cluster_block_exception":
        hint = (
            "the index is read-only, mostly because the disk is nearly full: free space; "
            "OpenSearch then lifts the block"
        )
    elif error in ("index_not_found_exception", "invalid_index_name_exception"):
        hint = "the index was removed: rebuild it from the log: `lockstep rebuild SINK --switch`"
    elif error == "index_closed_exception":
        hint = "the index was closed: open it again, then restart the job"
    elif error == "routing_missing_exception":
        hint = "the index was made with another routing of this sink: restart the job, or rebuild it: lockstep rebuild"
    elif error == "validation_exception":
        hint = (
            "the cluster has as many shards as cluster.max_shards_per_node allows, mostly: "
            "remove old indexes, or raise it"
        )
    elif status == 413:
        hint = "raise http.max_content_length of the cluster, or the limit of a proxy before it"
    else:
        hint = "look at the cluster's log"
    refused = StoreRefuses if status == 401 or error == "validation_exception" else LockstepError
    return refused(f"opensearch refuses: {status} {error}", hint=hint)
