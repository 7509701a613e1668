"""What the stream sends of a table's old rows, judged by the relations that the rows are in. Pure.

PostgreSQL sends changes of a partition as changes of its table. The letter of an old row (``K`` or ``O``) follows the
table's replica identity, but its values follow the partition's. A row doesn't name its partition. So a table's old rows
are judged by all of its described partitions: the stream describes each right after its table, before its first row.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from cdc.model.errors import UnsupportedChange
from cdc.model.table import ReplicaIdentity, Table, TableName
from cdc.protocol.pgoutput import UNCHANGED, Fields, FullImage, KeyImage, Relation


@dataclass(frozen=True, slots=True)
class Form:
    """What a relation's old rows are judged by. A table's partitions are many, and of one form or a few."""

    columns: frozenset[tuple[str, int]]
    """Name and type of each, in any order: a partition has its table's."""
    identity: frozenset[str]
    replica_identity: ReplicaIdentity

    @classmethod
    def of(cls, relation: Relation) -> Self:
        return cls(
            frozenset((column.name, column.type_oid) for column in relation.columns),
            frozenset(column.name for column in relation.columns if column.in_identity),
            relation.replica_identity,
        )


@dataclass(frozen=True, slots=True)
class OldRows:
    """What holds for every old row of a table. ``lacking`` are the relations whose old rows don't include the key.
    ``partial`` are the columns, by index in the table, that old rows of the relations without whole rows have; None if
    every old row is whole. With ``keys_can_swap``, a partial old row sent as a whole one doesn't identify a row."""

    lacking: tuple[TableName, ...] = ()
    partial: frozenset[int] | None = None
    keys_can_swap: bool = False

    @classmethod
    def of(
        cls, table: Table, relation: Relation, partitions: Mapping[Form, Collection[Relation]], *, keys_can_swap: bool
    ) -> Self:
        """``relation`` describes the table. If it has ``partitions``, its own identity decides nothing. PostgreSQL
        refuses updates and deletes in a partition without any identity."""
        holders = {form: those for form, those in partitions.items() if form.identity}
        holders = holders or {Form.of(relation): [relation]}
        less = [form for form in holders if form.replica_identity is not ReplicaIdentity.FULL]
        is_certain = not keys_can_swap or relation.replica_identity is not ReplicaIdentity.FULL
        lacking = [form for form in less if not (is_certain and form.identity.issuperset(table.key))]
        known = frozenset[str]().union(*(form.identity for form in less))
        places = frozenset(place for place, column in enumerate(table.columns) if column.name in known)
        return cls(
            tuple(sorted(TableName(holder.schema, holder.name) for form in lacking for holder in holders[form])),
            places if less else None,
            keys_can_swap,
        )

    def whole(self, old: KeyImage | FullImage | None) -> Fields | None:
        """The old row, if the stream has all of it. A row with values only in the ``partial`` columns doesn't count as
        whole."""
        if not isinstance(old, FullImage):
            return None
        if self.partial is None or any(
            value is not None and place not in self.partial for place, value in enumerate(old.fields)
        ):
            return old.fields
        return None

    def require_key(self, table: Table, old: KeyImage | FullImage | None, places: Sequence[int]) -> None:
        """Raises UnsupportedChange if a change may belong to a ``lacking`` relation and lacks the key at ``places``. A
        change without an old row may belong to any of them."""
        if not self._has_key(old, places):
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

    def _has_key(self, old: KeyImage | FullImage | None, places: Sequence[int]) -> bool:
        if old is None or (self.keys_can_swap and isinstance(old, FullImage) and self.whole(old) is None):
            return False
        return all(old.fields[place] is not None for place in places)


ALL_WHOLE: Final = OldRows()


def filled(new: Fields, old: KeyImage | FullImage | None) -> Fields:
    """The new row, with its unchanged values taken from the old image where that has them. A value that wasn't sent is
    never null, so a null in the old row, of either letter, means "not in the image"."""
    if old is None:
        return new
    return tuple(
        image if value is UNCHANGED and image is not None else value
        for value, image in zip(new, old.fields, strict=True)
    )


class Partitions:
    """The partitions that the stream has described, by the table that their rows are sent as."""

    def __init__(self) -> None:
        # By form: a table of ten thousand partitions is described once for each of them.
        self._of: dict[int, dict[Form, dict[int, Relation]]] = defaultdict(dict)
        self._table: tuple[Relation, tuple[int, int]] | None = None
        self.of_transaction: dict[int, TableName] = {}
        """The partitions that the running transaction has described, with their tables."""

    def described(self, relation: Relation, *, is_captured: bool, at: tuple[int, int]) -> Relation | None:
        """The table that rows of this relation are sent as; None if it stands for itself. PostgreSQL describes the
        table first, and its partition immediately after it: ``at`` is the same place."""
        before, self._table = self._table, (relation, at) if is_captured else None
        form = Form.of(relation)
        if is_captured:  # partitions with other columns are described again
            partitions = self._of[relation.relation_id]
            self._of[relation.relation_id] = {
                its: those for its, those in partitions.items() if its.columns == form.columns
            }
        if before is None or before[1] != at or form.columns != Form.of(before[0]).columns:
            return None
        partitions = self._of[before[0].relation_id]
        _remove(partitions, relation.relation_id)
        partitions.setdefault(form, {})[relation.relation_id] = relation
        return before[0]

    def truncated(self, relations: Sequence[int]) -> None:
        """These were emptied under their own names, so they are no partitions of another. All were described before."""
        for relation in relations:
            self.of_transaction.pop(relation, None)
            for partitions in self._of.values():
                _remove(partitions, relation)

    def of(self, table: int) -> Mapping[Form, Collection[Relation]]:
        return {form: those.values() for form, those in self._of.get(table, {}).items()}


def _remove(partitions: dict[Form, dict[int, Relation]], relation: int) -> None:
    for form, those in list(partitions.items()):
        if those.pop(relation, None) is not None and not those:
            del partitions[form]
