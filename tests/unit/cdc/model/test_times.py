"""Times as messages have them."""

from cdc.model.times import time_text


def test_a_time_is_in_utc_to_the_second_whatever_zone_the_machine_is_in() -> None:
    assert time_text(1_800_000_000_999) == "2027-01-15 08:00:00 UTC"
    assert time_text(0) == "1970-01-01 00:00:00 UTC"


def test_a_time_that_nobody_knows_is_said_to_be_that() -> None:
    assert time_text(None) == "an unknown time"
