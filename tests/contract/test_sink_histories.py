"""Random histories through two jobs at once, with processes that wake up late and stores that lose their last writes.

``tests.contract.history_jobs`` says what may happen. A failure says how to run its round again.
"""

import time
from typing import Any

import pytest

from tests.contract.history_jobs import KINDS, play

_SEED = 295  # with it, everything that may happen does
_MORE_ROUNDS = 20


def test_the_reference_ends_as_the_source_whatever_happens_to_its_jobs() -> None:
    for seed in range(30):
        play("memory", lambda: None, seed)


_ONE_LAYOUT_EACH = ("redis", "opensearch", "warehouse", "duckdb", "delta")


@pytest.mark.live
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in _ONE_LAYOUT_EACH else pytest.mark.soak) for kind in KINDS]
)
def test_a_sink_ends_as_the_source_whatever_happens_to_its_jobs(kind: str, endpoints: Any) -> None:
    play(kind, lambda: endpoints, _SEED)


# OpenSearch's versions distinguish 4,095 changes. For the other kinds, this is a number like any.
@pytest.mark.live
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "opensearch" else pytest.mark.soak) for kind in KINDS]
)
def test_a_sink_ends_as_the_source_after_a_transaction_of_thousands_of_changes(kind: str, endpoints: Any) -> None:
    play(kind, lambda: endpoints, 44, steps=20, large=4_300)


@pytest.mark.live
@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_a_sink_ends_as_the_source_after_any_history(kind: str, endpoints: Any) -> None:
    """Other histories in each run."""
    first = int(time.time())
    for seed in range(first, first + _MORE_ROUNDS):
        print(f"{kind}, seed {seed}")
        play(kind, lambda: endpoints, seed)
