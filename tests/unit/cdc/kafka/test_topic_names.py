"""Topic names: legal for Kafka, and never shared by two tables."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cdc.kafka.topic_names import (
    DEAD_LETTERS,
    PROGRESS,
    SCHEMA,
    STATE,
    control_topic,
    outbox_topic,
    table_of_topic,
    table_topic,
)
from cdc.model.errors import ConfigurationError
from cdc.model.table import TableName

# Short names of characters that escaping could confuse, and any others.
parts = st.text(st.sampled_from('ab.-_ %"2eE5fé😀'), min_size=1, max_size=6) | st.text(
    st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=12
)
names = st.builds(TableName, parts, parts)


def test_a_plain_table_has_a_plain_topic() -> None:
    assert table_topic("shop", TableName("public", "order_items")) == "shop.public.order_items"


def test_other_characters_are_escaped_as_their_bytes() -> None:
    assert table_topic("shop", TableName("My-S", "é.t")) == "shop.My-2dS.-c3-a9-2et"


@given(names, names)
def test_two_tables_never_share_a_topic(name: TableName, other: TableName) -> None:
    assume(name != other)
    assert table_topic("shop", name) != table_topic("shop", other)


@given(names)
def test_a_topic_has_only_characters_that_kafka_allows(name: TableName) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", table_topic("shop", name))


@given(names)
def test_a_table_never_gets_a_control_topic(name: TableName) -> None:
    control = {control_topic("shop", record) for record in (STATE, SCHEMA, PROGRESS, DEAD_LETTERS)}
    assert table_topic("shop", name) not in control


@pytest.mark.parametrize("schema", ["__outbox", "__stream_queries", "__views", "__", "-5f_outbox"])
def test_a_table_never_gets_the_topic_of_an_outbox_or_a_query(schema: str) -> None:
    name = TableName(schema, "orders")
    topic = table_topic("shop", name)
    assert not topic.startswith("shop.__")
    assert table_of_topic("shop", topic) == name


def test_the_longest_topic_that_kafka_allows_is_allowed() -> None:
    assert len(table_topic("p", TableName("s", "t" * 245))) == 249


def test_a_longer_topic_is_refused_with_its_length() -> None:
    with pytest.raises(ConfigurationError, match="250 characters, Kafka allows 249"):
        table_topic("p", TableName("s", "t" * 246))


def test_a_type_of_an_outbox_gets_a_topic_whatever_it_is() -> None:
    assert outbox_topic("shop", "Order") == "shop.__outbox.Order"
    kinds = ["注" * 300, "注" * 299 + "文", "x" * 400, "x" * 401, "x" * 235, "-" * 200]
    topics = {outbox_topic("shop", kind) for kind in kinds}
    assert len(topics) == len(kinds)
    assert all(re.fullmatch(r"shop\.__outbox\.[a-zA-Z0-9._-]{1,235}", topic) for topic in topics)
    assert outbox_topic("shop", "x" * 235) == "shop.__outbox." + "x" * 235


@given(names)
def test_a_topic_tells_its_table(name: TableName) -> None:
    assert table_of_topic("shop", table_topic("shop", name)) == name


@pytest.mark.parametrize(
    "topic",
    ["shop.__progress", "other.public.a", "shop.public", "shop.a.b.c", "shop.public.-zz", "shop.public.-ff"],
)
def test_another_topic_tells_none(topic: str) -> None:
    assert table_of_topic("shop", topic) is None
