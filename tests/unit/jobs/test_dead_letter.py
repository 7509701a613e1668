"""What a dead letter holds."""

import orjson

from jobs.dead_letter import RejectedEvent, dead_letter_key, dead_letter_value, open_rejections

EVENT = RejectedEvent(
    topic="shop.public.orders",
    partition=2,
    offset=17,
    key=b'{"id":12345678901234567890}',
    value=b'{"op":"u","tag":"0","after":{"price":1.10}}',
    tag="0" * 28,
    reason="mapper_parsing_exception",
)


def test_the_key_is_the_generation_and_the_row() -> None:
    assert (
        dead_letter_key("search", 3, EVENT.topic, EVENT.key)
        == b'["search",3,"shop.public.orders",{"id":12345678901234567890}]'
    )


def test_the_event_is_kept_to_the_byte() -> None:
    value = dead_letter_value("search", 3, EVENT, rejected_at_ms=5)
    assert EVENT.value is not None
    assert value.endswith(b'"value":' + EVENT.value + b"}")


def test_the_facts_are_there() -> None:
    facts = orjson.loads(dead_letter_value("search", 3, EVENT, rejected_at_ms=5))
    del facts["value"]
    assert facts == {
        "sink": "search",
        "generation": 3,
        "topic": "shop.public.orders",
        "partition": 2,
        "offset": 17,
        "key": {"id": 12345678901234567890},
        "tag": "0" * 28,
        "reason": "mapper_parsing_exception",
        "rejected_at_ms": 5,
    }


def test_a_tombstone_has_no_value() -> None:
    event = RejectedEvent("t", 0, 1, b"{}", None, "0" * 28, "no")
    assert orjson.loads(dead_letter_value("search", 1, event, rejected_at_ms=5))["value"] is None


def test_a_generation_finds_its_own_open_rejections_by_the_bytes_of_their_keys() -> None:
    mine = dead_letter_key("search", 3, EVENT.topic, EVENT.key)
    letter = dead_letter_value("search", 3, EVENT, rejected_at_ms=5)
    others = [
        dead_letter_key("cache", 3, EVENT.topic, EVENT.key),
        dead_letter_key("search", 3, "shop.public.x", EVENT.key),
        dead_letter_key("search", 2, EVENT.topic, EVENT.key),
    ]
    letters = {mine: letter, **dict.fromkeys(others, letter)}
    assert open_rejections(letters, sink="search", generation=3, topics=[EVENT.topic]) == {
        (EVENT.topic, EVENT.key): EVENT.tag
    }
