"""What the stream sends of a table's old rows, judged by the relations that the rows lie in. Pure.

PostgreSQL sends changes of a partition as its table's. The letter of an old row (``K`` or ``O``) is by the table's
replica identity, and the values in it are by the partition's. A row doesn't say which partition it is of. So a table's
old rows are judged by all of its partitions that were described: each is, right behind its table, before its first row.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Self

from cdc.model.errors import UnsupportedChange
from cdc.model.table import ReplicaIdentity, Table, TableName
from cdc.protocol.pgoutput import UNCHANGED, Fields, FullImage, KeyImage, Relation


@dataclass(frozen=True, slots=True)
class OldRows:
    """What holds of every old row of a table.

    ``lacking`` are the relations whose old rows don't tell the key. Of the others that don't have the whole row,
    ``partial`` are the columns that they have, by their places in the table; None where each row is whole.
    Where ``keys_can_swap``, a part of an old row that comes as a whole one tells no row from another.
    """

    lacking: tuple[TableName, ...] = ()
    partial: frozenset[int] | None = None
    keys_can_swap: bool = False

    @classmethod
    def of(cls, table: Table, relation: Relation, partitions: Collection[Relation], *, keys_can_swap: bool) -> Self:
        """``relation`` describes the table. Where it has ``partitions``, its own identity decides nothing.

        PostgreSQL refuses updates and deletes in a partition that has no identity at all.
        """
        holders = [partition for partition in partitions if _identity(partition)] or [relation]
        less = [holder for holder in holders if holder.replica_identity is not ReplicaIdentity.FULL]
        is_told = not keys_can_swap or relation.replica_identity is not ReplicaIdentity.FULL
        lacking = [holder for holder in less if not (is_told and _identity(holder).issuperset(table.key))]
        known = frozenset[str]().union(*map(_identity, less))
        places = frozenset(place for place, column in enumerate(table.columns) if column.name in known)
        return cls(
            tuple(sorted(TableName(holder.schema, holder.name) for holder in lacking)),
            places if less else None,
            keys_can_swap,
        )

    def whole(self, old: KeyImage | FullImage | None) -> Fields | None:
        """The old row, where the stream has all of it. A row that has no other values than a partial one is none."""
        if not isinstance(old, FullImage):
            return None
        if self.partial is None or any(
            value is not None and place not in self.partial for place, value in enumerate(old.fields)
        ):
            return old.fields
        return None

    def require_key(self, table: Table, old: KeyImage | FullImage | None, places: Sequence[int]) -> None:
        """Raises UnsupportedChange for a change of one of the ``lacking`` that doesn't tell the key at ``places``.

        Without an old row, a change may be of any of them.
        """
        if not self._tells_key(old, places):
            names = ", ".join(map(str, self.lacking))
            what = f"the replica identity of {names} doesn't deliver its key"
            if self.lacking != (table.name,):
                what = f"the replica identity of {names} doesn't deliver the key of {table.name}"
            raise UnsupportedChange(
                f"{what} ({', '.join(table.key)}), so a changed row looks like a new one",
                hint=f"run: {' '.join(f'alter table {name.sql} replica identity full;' for name in self.lacking)} that"
                " holds for changes from then on, and this one was made before. Then run `lockstep recover`, which"
                " leaves it out and copies the tables again",
            )

    def _tells_key(self, old: KeyImage | FullImage | None, places: Sequence[int]) -> bool:
        if old is None or (self.keys_can_swap and isinstance(old, FullImage) and self.whole(old) is None):
            return False
        return all(old.fields[place] is not None for place in places)


ALL_WHOLE: Final = OldRows()


def filled(new: Fields, old: KeyImage | FullImage | None) -> Fields:
    """The new row with those unchanged values that the old image has. A value that wasn't sent is never null.

    So a null there, in an old row of whichever letter, is a value that isn't in it.
    """
    if old is None:
        return new
    return tuple(
        image if value is UNCHANGED and image is not None else value
        for value, image in zip(new, old.fields, strict=True)
    )


class Partitions:
    """The partitions that the stream has described, under the tables as which their rows are sent."""

    def __init__(self) -> None:
        self._of: dict[int, dict[int, Relation]] = defaultdict(dict)
        self._table: tuple[Relation, tuple[int, int]] | None = None
        self.of_transaction: dict[int, TableName] = {}
        """Those that the running transaction has described, and the tables as which their rows come."""

    def described(self, relation: Relation, *, is_captured: bool, at: tuple[int, int]) -> Relation | None:
        """The table as which rows of this relation are sent; None where it stands for itself.

        PostgreSQL describes the table first, and its partition before anything else comes: ``at`` is the same place.
        """
        before, self._table = self._table, (relation, at) if is_captured else None
        if is_captured:  # those that have other columns now are described again
            partitions = self._of[relation.relation_id]
            for oid in [oid for oid, partition in partitions.items() if not _can_be_partition(partition, relation)]:
                del partitions[oid]
        if before is None or before[1] != at or not _can_be_partition(relation, before[0]):
            return None
        self._of[before[0].relation_id][relation.relation_id] = relation
        return before[0]

    def truncated(self, relations: Sequence[int]) -> None:
        """These were emptied under their own names, so none is sent as another. All were described before that."""
        for relation in relations:
            self.of_transaction.pop(relation, None)
            for partitions in self._of.values():
                partitions.pop(relation, None)

    def of(self, table: int) -> Collection[Relation]:
        """Those of the table of this oid."""
        return self._of.get(table, {}).values()


def _identity(relation: Relation) -> frozenset[str]:
    return frozenset(column.name for column in relation.columns if column.in_identity)


def _can_be_partition(relation: Relation, table: Relation) -> bool:
    """Whether it has the table's columns, in any order."""
    return {(column.name, column.type_oid) for column in relation.columns} == {
        (column.name, column.type_oid) for column in table.columns
    }
