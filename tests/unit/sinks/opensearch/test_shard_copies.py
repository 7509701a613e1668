"""sinks.opensearch.shard_copies"""

from typing import Any

import pytest

from cdc.model.errors import Unavailable
from sinks.opensearch.shard_copies import Copies, copies_of

INDEX = "shop.public.orders_g1"


def started(name: str) -> dict[str, Any]:
    return {"state": "STARTED", "allocation_id": {"id": name}}


def filling(name: str, reason: str) -> dict[str, Any]:
    return {"state": "INITIALIZING", "allocation_id": {"id": name}, "unassigned_info": {"reason": reason}}


def unassigned(reason: str) -> dict[str, Any]:
    return {"state": "UNASSIGNED", "unassigned_info": {"reason": reason}}


def state(in_sync: list[list[str]], *shards: list[dict[str, Any]]) -> dict[str, Any]:
    """As a cluster answers with the fields that are asked for."""
    return {
        "metadata": {"indices": {INDEX: {"in_sync_allocations": {str(n): names for n, names in enumerate(in_sync)}}}},
        "routing_table": {"indices": {INDEX: {"shards": {str(n): copies for n, copies in enumerate(shards)}}}},
    }


def test_copies_in_service_are_all_there_is() -> None:
    answer = state([["a", "b"], ["c", "d"]], [started("a"), started("b")], [started("c"), started("d")])
    assert copies_of(answer, INDEX) == Copies(frozenset("abcd"), has_others=False)


@pytest.mark.parametrize("reason", ["INDEX_CREATED", "REPLICA_ADDED", "CLUSTER_RECOVERED", "INDEX_REOPENED"])
def test_a_second_copy_that_never_had_a_place_lacks_nothing(reason: str) -> None:
    """As on a cluster of one node, also after a restart."""
    assert copies_of(state([["a"]], [started("a"), unassigned(reason)]), INDEX) == Copies(frozenset("a"), False)


@pytest.mark.parametrize("reason", ["NODE_LEFT", "ALLOCATION_FAILED", "REROUTE_CANCELLED", "PRIMARY_FAILED"])
def test_a_copy_that_was_in_service_and_is_away_has_what_it_had(reason: str) -> None:
    assert copies_of(state([["a"]], [started("a"), unassigned(reason)]), INDEX).has_others


@pytest.mark.parametrize("reason", ["REPLICA_ADDED", "CLUSTER_RECOVERED", "INDEX_REOPENED"])
def test_so_has_one_that_was_in_sync_before_a_restart(reason: str) -> None:
    assert copies_of(state([["a", "b"]], [started("a"), unassigned(reason)]), INDEX).has_others


def test_a_copy_that_is_being_filled_or_moves_may_have_something() -> None:
    assert copies_of(state([["a"]], [started("a"), filling("b", "REPLICA_ADDED")]), INDEX).has_others
    moving = {"state": "RELOCATING", "allocation_id": {"id": "b", "relocation_id": "c"}}
    assert copies_of(state([["a", "b"]], [started("a"), moving]), INDEX).has_others
    assert copies_of(state([["b"]], [moving]), INDEX) == Copies(frozenset(), has_others=True)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        state([["a"], ["b"]], [started("a")]),
        state([["a"], ["b"]], [started("a")], [unassigned("NODE_LEFT")]),
        state([["a"], ["b"]], [started("a")], []),
    ],
)
def test_a_shard_that_nobody_serves_is_not_an_empty_one(answer: dict[str, Any]) -> None:
    with pytest.raises(Unavailable):
        copies_of(answer, INDEX)
