"""sinks.redis.stored_rows: what it reads is in tests/contract"""

from typing import Any, cast

import orjson

from sinks.page_size import PageSize
from sinks.redis.connection import Client
from sinks.redis.settings import RedisSettings
from sinks.redis.stored_rows import RecentKeys, read_rows
from tests.builders import table

MIB = 1 << 20


class _Server:
    """Has a row of a megabyte under each key, and notes how many were asked for at once."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def pipeline(self, **_: object) -> "_Server":
        self.asked.append(0)
        return self

    def execute_command(self, *_: object) -> None:
        self.asked[-1] += 1

    def execute(self, **_: object) -> list[Any]:
        return [[b"0" * 28, orjson.dumps({"id": 1, "note": "x" * MIB})]] * self.asked[-1]


def test_wide_rows_are_read_a_few_at_a_time() -> None:
    server = _Server()
    layout = RedisSettings().layout.of(table().name)
    keys = [b"%d" % number for number in range(40)]
    rows = list(read_rows(cast("Client", server), keys, table(), layout, PageSize(1000)))
    assert len(rows) == sum(server.asked) == 40
    assert server.asked[0] == 16
    assert set(server.asked[1:]) == {3}


def test_a_key_that_comes_again_soon_is_known_and_not_all_keys_are_remembered() -> None:
    recent = RecentKeys()
    assert recent.new([b"a", b"b", b"a"]) == [b"a", b"b"]
    assert recent.new([b"b", b"c"]) == [b"c"]
    for number in range(5):
        recent.new(b"%d" % key for key in range(number * 100_000, (number + 1) * 100_000))
        assert recent.new([b"%d" % (number * 100_000)]) == []
    assert recent.new([b"a"]) == [b"a"]
