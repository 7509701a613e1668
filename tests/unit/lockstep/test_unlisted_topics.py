"""A topic that the brokers don't list at this moment must not pass for an empty one."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.kafka.newest_records import newest_records
from cdc.model.errors import Unavailable
from cdc.model.table import TableName
from lockstep.config import Config
from lockstep.generations import log_ends
from lockstep.rebuild.build_inputs import trimmed_partitions
from tests.builders import ORDERS

ITEMS = TableName("public", "items")
TOPICS = {ORDERS: "shop.public.orders", ITEMS: "shop.public.items"}
_CONFIG = cast(
    "Config",
    SimpleNamespace(topics_of=lambda names: [TOPICS[name] for name in names], kafka=SimpleNamespace(client=dict)),
)


class _Cluster:
    """Brokers that know one of the two topics, as one does that has just come back."""

    def __init__(self, *_: object) -> None:
        pass

    def partition_counts(self, _: object) -> dict[str, int]:
        return {TOPICS[ITEMS]: 1}

    def end_offsets(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, 7)

    begin_offsets = end_offsets


@pytest.mark.parametrize(
    "ask",
    [
        lambda tables: log_ends(_CONFIG, tables),
        lambda tables: trimmed_partitions(_CONFIG, tables, {}),
        lambda tables: newest_records({}, [TOPICS[table] for table in tables]),
    ],
    ids=["ends", "trimmed partitions", "newest records"],
)
def test_who_asks_about_its_records_is_told(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Sequence[TableName]], Any]
) -> None:
    for module in ("lockstep.generations", "lockstep.rebuild.build_inputs", "cdc.kafka.newest_records"):
        monkeypatch.setattr(f"{module}.TopicAdmin", _Cluster)
    with pytest.raises(Unavailable, match="don't list topic"):
        ask([ITEMS, ORDERS])
