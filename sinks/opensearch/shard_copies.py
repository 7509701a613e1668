"""Where the copies of an index's shards are, and whether one out of service may hold documents (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sinks.opensearch.answers import unserved

STATE_FIELDS: Final = (
    "metadata.indices.*.in_sync_allocations,routing_table.indices.*.shards.*.state,"
    "routing_table.indices.*.shards.*.allocation_id.id,routing_table.indices.*.shards.*.unassigned_info.reason"
)
"""The fields of the cluster's state that ``copies_of`` needs."""

# A copy with one of these reasons was never placed, or has been in service: the list of copies in sync decides. So a
# cluster of one node, where no second copy ever finds a place, lacks nothing, even after a restart.
_MAYBE_NEVER_PLACED: Final = frozenset(
    {
        "INDEX_CREATED",
        "REPLICA_ADDED",
        "CLUSTER_RECOVERED",
        "INDEX_REOPENED",
        "INDEX_CLOSED",
        "NEW_INDEX_RESTORED",
        "EXISTING_INDEX_RESTORED",
        "DANGLING_INDEX_IMPORTED",
    }
)


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies in service, by their allocation ids. ``has_others``: a copy out of service may hold documents."""

    started: frozenset[str]
    has_others: bool


def copies_of(state: Mapping[str, Any], index: str) -> Copies:
    """The copies of an index in a cluster's state. Raises Unavailable if a shard has none in service."""
    in_sync = state.get("metadata", {}).get("indices", {}).get(index, {}).get("in_sync_allocations", {})
    shards = state.get("routing_table", {}).get("indices", {}).get(index, {}).get("shards", {})
    started: set[str] = set()
    has_others = False
    for copies in shards.values():
        if not any(copy["state"] in ("STARTED", "RELOCATING") for copy in copies):
            raise unserved()
        started |= {copy["allocation_id"]["id"] for copy in copies if copy["state"] == "STARTED"}
        has_others = has_others or any(_has_had(copy) for copy in copies)
    known = {name for names in in_sync.values() for name in names}
    if not shards or in_sync.keys() != shards.keys():
        raise unserved()
    return Copies(frozenset(started), has_others or bool(known - started))


def _has_had(copy: Mapping[str, Any]) -> bool:
    """Whether this copy may hold documents besides those in service: it was in service, moves, or is being filled."""
    if copy["state"] == "STARTED":
        return False
    return copy["state"] != "UNASSIGNED" or copy["unassigned_info"]["reason"] not in _MAYBE_NEVER_PLACED
