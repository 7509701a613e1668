"""How large a record a topic takes: the smaller of two settings."""

import pytest

from cdc.kafka.record_limits import RecordLimit, record_limit


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"max.message.bytes": "1000", "segment.bytes": "2000"}, RecordLimit(1000, "max.message.bytes")),
        ({"max.message.bytes": "3000", "segment.bytes": "2000"}, RecordLimit(2000, "segment.bytes")),
        ({"max.message.bytes": "3000"}, RecordLimit(3000, "max.message.bytes")),
    ],
)
def test_a_batch_has_to_fit_into_a_segment_too(config: dict[str, str], limit: RecordLimit) -> None:
    assert record_limit(config) == limit


@pytest.mark.parametrize("config", [{}, {"max.message.bytes": None, "cleanup.policy": "compact"}])
def test_what_brokers_do_not_tell_is_no_limit(config: dict[str, str | None]) -> None:
    assert record_limit(config).size == 2**31 - 1


def test_a_limit_is_told_with_its_setting() -> None:
    assert str(RecordLimit(100_000, "segment.bytes")) == "100,000 bytes (segment.bytes)"
