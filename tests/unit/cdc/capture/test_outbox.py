"""Rows of an outbox: whoever may write them chooses their types, and none of them stops capture."""

from functools import partial

import pytest

from cdc.capture.outbox import OUTBOX_COLUMNS, OutboxChannel, OutboxRoute, OutboxTopics
from cdc.kafka.topic_names import is_outbox_topic, outbox_topic, shared_outbox_topic
from cdc.model.errors import UnsupportedChange
from cdc.model.table import TableName
from cdc.protocol.pgoutput import UNCHANGED

SHARED = shared_outbox_topic("shop")


class Outbox:
    def __init__(self, *existing: str, most: int = 3) -> None:
        self.said: list[str] = []
        topics = OutboxTopics(partial(outbox_topic, "shop"), SHARED, existing, most=most, say=self.said.append)
        channel = OutboxChannel(TableName("public", "outbox"), topics)
        self.route = OutboxRoute(channel, len(OUTBOX_COLUMNS), 0, 1, 2, 3, 4)

    def event(self, kind: bytes | None, *, identity: bytes | None = b"1", key: bytes | None = b"k"):
        return self.route.event((identity, kind, key, b"Made", b"{}"), tag=b"0" * 28)

    def topics(self, *kinds: str) -> list[str]:
        return [self.event(kind.encode())[0] for kind in kinds]


def test_each_type_has_its_topic() -> None:
    outbox = Outbox()
    assert outbox.topics("order", "item", "order") == [
        "shop.__outbox.order",
        "shop.__outbox.item",
        "shop.__outbox.order",
    ]
    _, key, value, headers = outbox.event(b"order")
    assert (key, value, dict(headers)) == (b"k", b"{}", {"id": b"1", "type": b"Made", "tag": b"0" * 28})
    assert outbox.said == []


def test_types_beyond_the_bound_share_a_topic_and_nothing_of_them_is_lost_or_shown() -> None:
    outbox = Outbox(most=2)
    assert outbox.topics("a", "b", "c", "a", "d", "c") == [
        "shop.__outbox.a",
        "shop.__outbox.b",
        SHARED,
        "shop.__outbox.a",
        SHARED,
        SHARED,
    ]
    _, key, value, headers = outbox.event(b"secret")
    assert (key, value, dict(headers)["aggregatetype"]) == (b"k", b"{}", b"secret")
    (said,) = outbox.said
    assert "further types than the 2" in said
    assert "secret" not in said


def test_topics_that_are_there_count_and_keep_their_types() -> None:
    """So a restart sends each row where it was sent before."""
    outbox = Outbox("shop.__outbox.a", "shop.__outbox.b", most=2)
    assert outbox.topics("c", "b", "a") == [SHARED, "shop.__outbox.b", "shop.__outbox.a"]
    assert Outbox("shop.__outbox.a", most=0).topics("a", "b") == ["shop.__outbox.a", SHARED]


@pytest.mark.parametrize(
    ("kind", "identity", "key"), [(None, b"1", b"k"), (b"a", None, b"k"), (b"a", b"1", None), (b"\xff", b"1", b"k")]
)
def test_a_row_that_has_no_topic_of_its_own_is_kept(
    kind: bytes | None, identity: bytes | None, key: bytes | None
) -> None:
    outbox = Outbox()
    topic, sent_key, value, headers = outbox.event(kind, identity=identity, key=key)
    assert (topic, sent_key, value) == (SHARED, key or b"", b"{}")
    assert dict(headers) == {"id": identity or b"", "type": b"Made", "tag": b"0" * 28, "aggregatetype": kind or b""}
    assert len(outbox.said) == 1


def test_a_row_that_an_update_moved_into_the_filter_without_its_payload_stops_capture() -> None:
    """It is sent as an insert, with the replica identity's columns and those that the update wrote."""
    route = Outbox().route
    assert route.event((b"1", b"a", b"k", b"t", b"{}"), tag=b"0" * 28)[2] == b"{}"
    with pytest.raises(UnsupportedChange, match=r"of the outbox .* into the publication's row filter"):
        route.event((b"1", b"a", b"k", b"t", UNCHANGED), tag=b"0" * 28)


def test_the_shared_topic_is_no_types_topic() -> None:
    assert not is_outbox_topic("shop", SHARED)
    assert all(outbox_topic("shop", kind) != SHARED for kind in ("", ".", "_", "__outbox"))
