"""sinks.redis.refill: when the end of the WAL is good; the rest is in tests/contract"""

import pytest

from sinks.redis.refill import WalEnd

NOTED = WalEnd(1, 0x100, "00000001", frozenset({"7", "8"}))


@pytest.mark.parametrize(
    ("later", "is_good"),
    [
        (WalEnd(1, 0x108, "00000001", frozenset()), True),
        (WalEnd(1, 0x100, "00000001", frozenset({"9"})), True),
        (WalEnd(1, 0x108, "00000001", frozenset({"8", "9"})), False),
        (WalEnd(1, 0x108, "00000002", frozenset()), False),
        (WalEnd(1, 0xF8, "00000001", frozenset()), False),
    ],
    ids=["nobody runs", "others run", "one still runs", "another timeline", "behind"],
)
def test_an_end_of_the_wal_is_good_when_all_that_ran_are_over(later: WalEnd, is_good: bool) -> None:
    assert NOTED.is_good_by(later) == is_good
