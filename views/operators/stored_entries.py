"""What each operator of a plan stores in a state now, found by the prefixes of its entries."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from views.operators import group, join, top
from views.operators.ages import AGES
from views.operators.changes import MIRROR, PREFIX_LENGTH, prefix_of
from views.plan import Group, Join, Node, Scan, Top, nodes
from views.state.contract import Entry

_OF_ONE_PART: Final = PREFIX_LENGTH - 1
"""The length of the prefix that identifies the operator; the next byte is the part of it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows that an operator stores, and the bytes of their keys and values, including entries that belong to them."""

    rows: int = 0
    bytes: int = 0


def kept_by_operators(root: Node, entries: Iterable[Entry]) -> Mapping[int, Kept]:
    """What each operator stores, by its position in ``plan.nodes``. ``entries`` are all entries of the state. Scans of
    one table share one copy, which counts for the first of them. Operators that store nothing are left out.
    """
    owners = _owners(root)
    rows: dict[int, int] = dict.fromkeys((number for number, _ in owners.values()), 0)
    sizes = dict(rows)
    for key, value in entries:
        owner = owners.get(key[:_OF_ONE_PART])
        if owner is not None:
            number, counts = owner
            rows[number] += counts
            sizes[number] += len(key) + len(value)
    return {number: Kept(count, sizes[number]) for number, count in rows.items()}


def kept_together(of_shards: Sequence[Mapping[int, Kept]]) -> Mapping[int, Kept]:
    """The sums over all shards of a view. A row that several shards store counts for each."""
    return {
        number: Kept(sum(kept[number].rows for kept in of_shards), sum(kept[number].bytes for kept in of_shards))
        for number in of_shards[0]
    }


def _owners(root: Node) -> Mapping[bytes, tuple[int, bool]]:
    """A prefix -> the number of the operator, and whether each entry counts as a row."""
    owners: dict[bytes, tuple[int, bool]] = {}
    tables: dict[object, int] = {}
    for number, node in enumerate(nodes(root)):
        match node:
            case Scan():
                if node.table not in tables:
                    tables[node.table] = len(tables)
                    owners[_prefix(MIRROR, tables[node.table])] = number, True
                    owners[_prefix(AGES, tables[node.table])] = number, False
            case Join():
                owners[_prefix(join.KIND, number)] = number, True
            case Group():
                owners[_prefix(group.KIND, number)] = number, True
                owners[_prefix(group.MEMBERS, number)] = number, True
            case Top():
                owners[_prefix(top.ROWS, number)] = number, True
                owners[_prefix(top.REACH, number)] = number, False
            case _:
                pass  # stores nothing
    return owners


def _prefix(kind: bytes, number: int) -> bytes:
    return prefix_of(kind, number)[:_OF_ONE_PART]
