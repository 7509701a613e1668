"""cdc.stream.topics: what another topic means for a state."""

from collections.abc import Collection

import pytest

from cdc.capture.settings import CaptureSettings
from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import PositionMismatch
from cdc.model.table import TableName
from cdc.pipeline import Pipeline
from cdc.postgres.settings import SourceSettings
from cdc.protocol.control_records import CaptureState, TopicIdentity
from cdc.stream.topics import adopt_topics, require_shapes
from tests.history import state

PIPELINE = Pipeline(
    "shop",
    SourceSettings(dsn="host=db dbname=app", tables=("public.orders", "public.items")),
    KafkaSettings(bootstrap_servers="kafka:9092"),
    CaptureSettings(),
)
ORDERS, ITEMS = TableName("public", "orders"), TableName("public", "items")
TOPICS = {
    "shop.public.orders": TopicIdentity("a", 3),
    "shop.public.items": TopicIdentity("b", 3),
    "shop.__schema": TopicIdentity("c", 1),
}
STATE = state(copied={ORDERS: 2, ITEMS: 1}, memberships={ORDERS: "1 2", ITEMS: "3 4"}, topics=TOPICS)


def _adopted(
    now: dict[str, TopicIdentity], *, before: CaptureState = STATE, written: Collection[str] = ()
) -> CaptureState:
    return adopt_topics(before, TOPICS | now, PIPELINE, lambda _: None, written.__contains__)


def test_the_same_topics_leave_the_state_as_it_is() -> None:
    assert _adopted({}) == STATE


@pytest.mark.parametrize("partitions", [3, 5])
def test_a_table_whose_topic_was_recreated_counts_as_never_copied(partitions: int) -> None:
    other = {"shop.public.orders": TopicIdentity("z", partitions)}
    adopted = _adopted(other)
    assert (adopted.copied, adopted.memberships) == ({ITEMS: 1}, {ITEMS: "3 4"})
    assert adopted.topics == TOPICS | other


def test_a_topic_that_is_new_to_the_state_is_noted() -> None:
    before = state(topics={}, copied={ORDERS: 2})
    assert _adopted({}, before=before) == state(topics=TOPICS, copied={ORDERS: 2})


def test_a_topic_that_nobody_asked_about_is_kept() -> None:
    before = state(topics={**TOPICS, "shop.public.gone": TopicIdentity("d", 3)})
    assert _adopted({}, before=before) == before


@pytest.mark.parametrize("copied", [{ORDERS: 2}, {}])
def test_another_number_of_partitions_is_refused(copied: dict[TableName, int]) -> None:
    with pytest.raises(PositionMismatch, match=r"shop\.public\.orders has 4 partitions, 3 when"):
        _adopted({"shop.public.orders": TopicIdentity("a", 4)}, before=state(topics=TOPICS, copied=copied))


def test_lost_shapes_are_refused_while_a_topic_may_hold_events_of_them() -> None:
    lost = {"shop.__schema": TopicIdentity("z", 1)}
    with pytest.raises(PositionMismatch, match=r"on shop\.public\.items, shop\.public\.orders"):
        _adopted(lost)
    lost |= {"shop.public.orders": TopicIdentity("y", 3)}
    with pytest.raises(PositionMismatch, match=r"on shop\.public\.items: "):
        _adopted(lost)
    lost |= {"shop.public.items": TopicIdentity("x", 3)}
    adopted = _adopted(lost)
    assert (adopted.copied, adopted.memberships, adopted.topics) == ({}, {}, lost)


def test_shapes_that_are_lost_while_a_table_waits_for_its_copy_are_refused_if_its_topic_holds_events() -> None:
    """Its state says nothing of it, as after a recovery."""
    lost, waiting = {"shop.__schema": TopicIdentity("z", 1)}, STATE.never_copied([ORDERS, ITEMS])
    with pytest.raises(PositionMismatch, match=r"on shop\.public\.orders: "):
        _adopted(lost, before=waiting, written=["shop.public.orders"])
    assert _adopted(lost, before=waiting).topics == TOPICS | lost


def test_the_lost_shape_of_one_table_is_refused() -> None:
    with pytest.raises(PositionMismatch, match=r"on shop\.public\.orders: "):
        require_shapes(STATE, [ITEMS], PIPELINE, {}.__contains__)
    waiting = STATE.never_copied([ORDERS])
    require_shapes(waiting, [ITEMS], PIPELINE, {}.__contains__)
    with pytest.raises(PositionMismatch, match=r"on shop\.public\.orders: "):
        require_shapes(waiting, [ITEMS], PIPELINE, {"shop.public.orders"}.__contains__)
