"""Divides tables into ranges of their files' blocks, for copying side by side. Pure. A row version that two snapshots
show is in the same block under both, as long as the file is the same: VACUUM and updates move none. So ranges copied
under an earlier snapshot needn't be copied again."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.model.table import TableName

ONLY: Final = "only "
"""SQL's keyword before a name that leaves out tables below it."""

Interval = tuple[int | None, int | None]
"""Blocks from the first on and before the end; None: unbounded."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """``sql`` is the quoted name to select from. ``storage`` identifies its file, which changes when it is
    rewritten."""

    table: TableName
    sql: str
    storage: str

    @property
    def is_alone(self) -> bool:
        """Whether it is read without tables below it, so that ``storage`` is that of one file."""
        return self.sql.startswith(ONLY)


@dataclass(frozen=True, slots=True)
class Relation(_Stored):
    """Something that holds rows of a table: the table itself, or a partition. ``blocks`` is None if its rows can't be
    told apart by their block. ``size`` is in bytes, large values included."""

    blocks: int | None
    size: int


@dataclass(frozen=True, slots=True)
class Part(_Stored):
    """Rows of a table: those of a relation from block ``first`` on and before ``end``; None: unbounded. ``size`` is
    about their bytes. ``in_blocks``: it can't grow much by rows that others write meanwhile. ``only_newer``: only the
    rows that the first snapshot didn't show."""

    first: int | None
    end: int | None
    size: int
    in_blocks: bool = True
    only_newer: bool = False


RANGE_BYTES_MIN: Final = 64 * 1024
_RANGE_BYTES_MAX: Final = 256 * 1024 * 1024
_RANGES_OF_EACH: Final = 8
"""An interruption costs the ranges under way, and each range costs a Kafka transaction."""


def range_bytes(size: int, *, workers: int) -> int:
    """The most bytes of each part, given the total: every worker gets several parts, and none copies long alone."""
    return max(RANGE_BYTES_MIN, min(_RANGE_BYTES_MAX, size // (_RANGES_OF_EACH * max(workers, 1))))


def parts(
    relations: Iterable[Relation],
    size_max: int,
    copied: Mapping[tuple[TableName, str], Sequence[Interval]] | None = None,
    *,
    newer: Collection[TableName] = (),
) -> list[Part]:
    """All rows of all relations, each in one part, the largest parts first. ``copied`` ranges of a storage are left
    out.

    A part has at most about ``size_max`` bytes. A relation's first part has no lower bound and the last no upper one,
    to include blocks that it got since. For the tables in ``newer``, the copied ranges are parts too: for the newer
    rows in them.
    """
    done = copied or {}
    made: list[Part] = []
    for relation in relations:
        its_own = done.get((relation.table, relation.storage), ())
        for interval in missing(its_own):
            made += _divided(relation, interval, size_max)
        if relation.table in newer:
            for interval in missing(missing(its_own)):
                made += _divided(relation, interval, size_max, only_newer=True)
    return sorted(made, key=lambda part: part.size, reverse=True)


def missing(intervals: Iterable[Interval]) -> list[Interval]:
    """The blocks that are in none of the intervals, in order."""
    left: list[Interval] = []
    start: int | None = None
    for first, end in sorted(intervals, key=lambda interval: interval[0] or 0):
        if (first or 0) > (start or 0):
            left.append((start, first))
        if end is None:
            return left
        start = max(start or 0, end)
    return [*left, (start, None)]


def _divided(relation: Relation, interval: Interval, size_max: int, *, only_newer: bool = False) -> Iterable[Part]:
    first, end = interval
    low = first or 0
    high = max(low, relation.blocks or 0) if end is None else end
    size = relation.size * (high - low) // relation.blocks if relation.blocks else relation.size
    count = max(1, min(-(-size // size_max), high - low))
    starts = [low + number * (high - low) // count for number in range(count)]
    for number, start in enumerate(starts):
        yield Part(
            relation.table,
            relation.sql,
            relation.storage,
            start if number else first,
            starts[number + 1] if number + 1 < count else end,
            size // count,
            in_blocks=relation.blocks is not None,
            only_newer=only_newer,
        )
