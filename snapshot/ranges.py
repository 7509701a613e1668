"""How tables are divided between those who copy them side by side: into ranges of their files' blocks. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from cdc.model.table import TableName


@dataclass(frozen=True, slots=True)
class Relation:
    """What holds rows of a table: itself, or a partition. ``sql`` is its name, quoted.

    ``blocks`` is None where its rows can't be told apart by their block. ``size`` are all bytes, large values included.
    """

    table: TableName
    sql: str
    blocks: int | None
    size: int


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a table: those of a relation from block ``first`` on and before ``end``; None: without that bound.

    ``size`` is about how many bytes these are.
    """

    table: TableName
    sql: str
    first: int | None
    end: int | None
    size: int


def parts(relations: Iterable[Relation], range_bytes: int) -> list[Part]:
    """All rows of all relations, each in exactly one part of about ``range_bytes`` at most; the largest come first.

    The first part of a relation has no lower bound and the last no upper one, so blocks that it got since are in it.
    """
    made = [part for relation in relations for part in _divided(relation, range_bytes)]
    return sorted(made, key=lambda part: part.size, reverse=True)


def _divided(relation: Relation, range_bytes: int) -> Iterable[Part]:
    count = max(1, min(-(-relation.size // range_bytes), relation.blocks or 1))
    starts = [number * (relation.blocks or 0) // count for number in range(count)]
    for number, start in enumerate(starts):
        end = starts[number + 1] if number + 1 < count else None
        yield Part(relation.table, relation.sql, start if number else None, end, relation.size // count)
