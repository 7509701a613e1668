"""One of several parts of a view: which rows of its tables, and so of its result, are its own. Pure.

A shard keeps the same plan as the others, over the rows of tables that are its own. A row that moves to another shard
is gone for the one and new for the other.
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
    """By what a view's rows are divided: the column ``key`` of its key, whose value every row of the result has.

    ``columns`` say by what the rows of each scan are divided, in the order of ``plan.nodes``. All have the value that
    the result's rows have that they come to. With None every shard has all rows of that scan.
    """

    key: str
    columns: tuple[Expression | None, ...]


@dataclass(frozen=True, slots=True)
class Shard:
    """The shard of this ``number``, from 0, of ``count``."""

    sharding: Sharding
    number: int
    count: int

    def has(self, value: Value) -> bool:
        """Whether rows with this value of what they are divided by are its own.

        Values that are equal in SQL must be equal here. The answer is the same in every process and on every machine.
        """
        digest = hashlib.blake2b(orjson.dumps(value), digest_size=_HASH_BYTES).digest()
        return int.from_bytes(digest, "big") % self.count == self.number

    @property
    def identity(self) -> tuple[object, ...]:
        """What its state belongs to, besides the plan."""
        return self.sharding.key, self.sharding.columns, self.number, self.count

    @property
    def name(self) -> str:
        """As people and directories have it, from 1: ``shard-1-of-4``."""
        return f"shard-{self.number + 1}-of-{self.count}"


def shards(sharding: Sharding, count: int) -> list[Shard]:
    """All of them."""
    return [Shard(sharding, number, count) for number in range(count)]
