"""cdc.stream.topics: what another topic means for a state."""

import re
from collections.abc import Collection, Sequence

import pytest

from cdc.capture.settings import CaptureSettings
from cdc.kafka.settings import KafkaSettings
from cdc.kafka.topic_admin import PARTITIONS, Difference, TopicPlan
from cdc.model.errors import LockstepError, PositionMismatch
from cdc.model.table import TableName
from cdc.pipeline_settings import Pipeline
from cdc.postgres.settings import SourceSettings
from cdc.protocol.control_records import CaptureState, TopicIdentity
from cdc.stream.topics import adopt_topics, create_missing_topics, require_shapes, why_no_topic
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


@pytest.mark.parametrize("copied", [{ORDERS: 2}, {}])
def test_another_number_of_partitions_is_refused(copied: dict[TableName, int]) -> None:
    with pytest.raises(PositionMismatch, match=r"shop\.public\.orders has 4 partitions, 3 when"):
        _adopted({"shop.public.orders": TopicIdentity("a", 4)}, before=state(topics=TOPICS, copied=copied))


def test_events_that_went_to_a_new_topic_by_the_number_of_partitions_before_are_refused() -> None:
    """An insert before capture has noticed, in a partition that no later event of its key comes to."""
    written = ["shop.public.orders"]
    with pytest.raises(PositionMismatch, match=r"shop\.public\.orders has 5 partitions, 3 when"):
        _adopted({"shop.public.orders": TopicIdentity("z", 5)}, written=written)
    alike = {"shop.public.orders": TopicIdentity("z", 3)}
    assert _adopted(alike, written=written).topics == TOPICS | alike


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


class _Brokers:
    """What brokers say of topics to a user who lacks some rights."""

    def __init__(self, *, topics: Collection[str], lacking: dict[str, list[str]], refused: Collection[str]) -> None:
        self._topics, self._lacking, self._refused = topics, lacking, refused
        self.trials = 0
        self.found: list[Difference] = []

    def all_partition_counts(self) -> dict[str, int]:
        return dict.fromkeys(self._topics, 3)

    def lacking_rights(self, topics: Collection[str], _: object) -> dict[str, list[str]]:
        return {topic: self._lacking[topic] for topic in topics if topic in self._lacking}

    def why_not_created(self, plans: Sequence[TopicPlan]) -> dict[str, LockstepError]:
        self.trials += 1
        refused = LockstepError("no right Create", hint="grant it")
        return {plan.name: refused for plan in plans if plan.name in self._refused}

    def missing(self, _: object) -> list[TopicPlan]:
        return []

    def differences(self, _: object) -> list[Difference]:
        return self.found


def test_a_table_joins_only_once_we_have_the_rights_on_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that isn't there yet has to be taken by the brokers; one that we may not describe is as if it weren't."""
    names = [TableName("public", name) for name in ("fine", "hidden", "there", "refused")]
    brokers = _Brokers(
        topics=["shop.public.there"],
        lacking={"shop.public.hidden": ["Describe"], "shop.public.there": ["Read", "Write"]},
        refused=["shop.public.refused"],
    )
    monkeypatch.setattr("cdc.stream.topics.TopicAdmin", lambda _: brokers)
    reasons = why_no_topic(PIPELINE, STATE, names)
    assert reasons.keys() == set(names[1:])
    assert "the right Describe on its topic shop.public.hidden lacks" in reasons[names[1]]
    assert "Read, Write on the pipeline's topics" in reasons[names[2]]
    assert reasons[names[3]] == "no right Create\ngrant it"
    assert brokers.trials == 1, "the brokers are asked once for all tables"


def test_capture_without_a_right_on_a_tables_topic_says_which_and_that_nothing_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers = _Brokers(topics=list(TOPICS), lacking={"shop.public.items": ["Write"]}, refused=[])
    monkeypatch.setattr("cdc.stream.topics.TopicAdmin", lambda _: brokers)
    with pytest.raises(LockstepError, match=r"public\.items can't be published without the right Write") as held:
        create_missing_topics(PIPELINE, lambda _: None)
    assert "lockstep tables remove 'public.items'" in (held.value.hint or "")


@pytest.mark.parametrize("name", ["shop.__schema", "shop.__dead_letters"])
def test_control_records_in_several_partitions_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers read the first one: after its next start, capture would go on from an old state."""
    brokers = _Brokers(topics=list(TOPICS), lacking={}, refused=[])
    monkeypatch.setattr("cdc.stream.topics.TopicAdmin", lambda _: brokers)
    brokers.found = [Difference("shop.public.orders", PARTITIONS, "3", "1")]
    assert create_missing_topics(PIPELINE, lambda _: None) == {}, "a table's topic may have any number"
    brokers.found.append(Difference(name, PARTITIONS, "3", "1"))
    with pytest.raises(LockstepError, match=rf"^topic {re.escape(name)} has 3 partitions") as held:
        create_missing_topics(PIPELINE, lambda _: None)
    assert "start a pipeline of another name" in (held.value.hint or "")
