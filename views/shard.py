"""A shard: one of several parts of a view, with its share of the tables' rows and so of the result. Pure. All shards
have the same plan. A row that moves to another shard is deleted in the one and inserted in the other.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

import orjson

from views.expressions import Expression
from views.values import Value

_HASH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a view's rows are divided: by the column ``key`` of its key. ``columns`` has the expression that divides each
    scan's rows, in the order of ``plan.nodes``. Its value equals ``key`` in the rows of the result that are made from a
    row. With None, every shard has all rows of that scan.
    """

    key: str
    columns: tuple[Expression | None, ...]


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard ``number`` of ``count``, counted from 0."""

    sharding: Sharding
    number: int
    count: int

    def has(self, value: Value) -> bool:
        """Whether rows with this value of the dividing expression belong to this shard. Values that are equal in SQL
        must be equal here. The answer is the same in every process and on every machine.
        """
        digest = hashlib.blake2b(orjson.dumps(value), digest_size=_HASH_BYTES).digest()
        return int.from_bytes(digest, "big") % self.count == self.number

    @property
    def identity(self) -> tuple[object, ...]:
        return self.sharding.key, self.sharding.columns, self.number, self.count

    @property
    def name(self) -> str:
        """The name for people and directories, counted from 1: ``shard-1-of-4``."""
        return f"shard-{self.number + 1}-of-{self.count}"


def shards(sharding: Sharding, count: int) -> list[Shard]:
    return [Shard(sharding, number, count) for number in range(count)]
