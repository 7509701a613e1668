"""Finds the number of each column of a Relation message, since the stream sends none. Pure.

A column keeps its number (``attnum``) whatever its name, and no later column gets it. The stream sends columns in the
order of their numbers, under their names at that time. The recorded shape is older, and the catalogue may be newer: a
name can mean another column there. So a name counts only where the order of the numbers allows it.
"""

from collections.abc import Callable, Sequence

from cdc.model.table import Column
from cdc.protocol.pgoutput import RelationColumn

_STAYS = 1000
"""More than all names together, since it is certain."""

_STAYS_PERHAPS = 2
"""Less than a name: if a column list hides columns, another list may have replaced it."""

_NAMED_NOW = 4
_NAMED_BEFORE = 3
_SAME_TYPE = 1


def column_numbers(
    known: Sequence[Column], described: Sequence[RelationColumn], current: Sequence[Column]
) -> tuple[int, ...]:
    """The numbers of the ``described`` columns; 0 if ``known`` and ``current`` don't determine it.

    ``known`` are the recorded columns, ``current`` those in the catalogue now. A column in both existed all the time
    between, so it is among the described ones, perhaps under a third name. If both have a column of the described name,
    and either could be it, the catalogue's wins.
    """
    before = {column.number: column for column in known if column.number}
    now = {column.number: column for column in current if column.number}
    newest = max(before, default=0)
    if [column.name for column in described] == [column.name for column in current]:
        aligned = tuple(column.number for column in current)  # the code below finds the same, more slowly
    else:
        numbers = sorted(before.keys() | now.keys())
        hides = any(number < newest and number not in before for number in now)
        stays = dict.fromkeys(before.keys() & now.keys(), _STAYS_PERHAPS if hides else _STAYS)
        most = max(stays.values(), default=0) + _NAMED_NOW + _SAME_TYPE

        def weight(column: RelationColumn, number: int) -> int:
            return _weight(column, before.get(number), now.get(number), stays.get(number, 0))

        aligned = _aligned(described, numbers, weight, most)
    return _certain(aligned, newest) if before else aligned


def _weight(column: RelationColumn, before: Column | None, now: Column | None, stays: int) -> int:
    """How much evidence there is that a described column has this number; 0 if none."""
    weight = stays
    if now is not None and now.name == column.name:
        weight += _NAMED_NOW
    elif before is not None and before.name == column.name:
        weight += _NAMED_BEFORE
    if weight and any(known is not None and known.type_oid == column.type_oid for known in (before, now)):
        weight += _SAME_TYPE
    return weight


def _certain(aligned: Sequence[int], newest: int) -> tuple[int, ...]:
    """Drop the numbers of columns newer than the ``newest`` recorded one, from the first gap on. The column with the
    skipped number may have had the next one's name then."""
    following = newest
    certain = []
    for number in aligned:
        following += number == following + 1
        certain.append(number if number <= following else 0)
    return tuple(certain)


def _aligned(
    described: Sequence[RelationColumn],
    numbers: Sequence[int],
    weight: Callable[[RelationColumn, int], int],
    most: int,
) -> tuple[int, ...]:
    """A number for each described column, as in ``_heaviest_alignment``. A pair at either end with the greatest
    possible weight (``most``) belongs together: any alignment has at most one other pair in its place. So only the part
    in which columns changed is weighed pair by pair, not a whole table of 1,600 columns."""
    first, last, length = 0, len(numbers), len(described)
    while first < min(length, last) and weight(described[first], numbers[first]) == most:
        first += 1
    while first < min(length, last) and weight(described[length - 1], numbers[last - 1]) == most:
        last, length = last - 1, length - 1
    changed = [[weight(column, number) for number in numbers[first:last]] for column in described[first:length]]
    return (*numbers[:first], *_heaviest_alignment(changed, numbers[first:last]), *numbers[last:])


def _heaviest_alignment(weights: Sequence[Sequence[int]], numbers: Sequence[int]) -> tuple[int, ...]:
    """A number for each row of ``weights``, ascending, 0 for none, with the greatest sum of weights."""
    best = [[0] * (len(numbers) + 1)]
    for row in weights:
        above, line = best[-1], [0]
        for index, weight in enumerate(row):
            paired = above[index] + weight if weight else 0
            line.append(max(above[index + 1], line[index], paired))
        best.append(line)
    aligned = [0] * len(weights)
    row_index, index = len(weights), len(numbers)
    while row_index and index:
        weight = weights[row_index - 1][index - 1]
        if weight and best[row_index][index] == best[row_index - 1][index - 1] + weight:
            row_index, index = row_index - 1, index - 1
            aligned[row_index] = numbers[index]
        elif best[row_index][index] == best[row_index][index - 1]:
            index -= 1
        else:
            row_index -= 1
    return tuple(aligned)
