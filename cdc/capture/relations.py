"""Which relation of the stream is which table, and how the table is followed. Pure.

A table is *followed* if its changes are published. It is *passed over* until it has a copy on its topic, also after an
update of it couldn't be completed. Its changes are then only counted, so that a restart within a transaction finds the
same numbers, whichever tables are followed by then.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from cdc.capture.old_rows import OldRows, Partitions
from cdc.capture.outbox import OutboxChannel, OutboxRoute
from cdc.capture.published_table import PublishedTable
from cdc.capture.questions import NeedShape, Steps, Uncaptured
from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from cdc.protocol.control_records import SchemaRecord
from cdc.protocol.pgoutput import Relation

_NO_TABLES: Final[Mapping[TableName, PublishedTable]] = MappingProxyType({})
_NO_RELATIONS: Final[Mapping[int, PublishedTable]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CountedOnly:
    """A table that isn't followed, in the shape that its rows have in the stream."""

    published: PublishedTable


Route = PublishedTable | CountedOnly | OutboxRoute | None
"""Where rows of a relation go. None: the publication sends them, but they aren't captured."""


class Relations:
    """The tables of one stream. ``uncaptured`` and ``former`` are counted like the ``passed_over`` ones.

    ``uncaptured`` were captured before, perhaps still when the last transaction was published in part. ``former``, by
    oid, are relations that had a captured table's name before another one got it. ``outdated`` are followed, but must
    be copied again: what is known of their rows may predate a change that the stream didn't show. Those in ``copying``
    are followed while they are copied: the memory knows what was published of them since that began.
    """

    def __init__(
        self,
        tables: Mapping[TableName, PublishedTable],
        *,
        passed_over: Mapping[TableName, PublishedTable] = _NO_TABLES,
        uncaptured: Mapping[TableName, PublishedTable] = _NO_TABLES,
        former: Mapping[int, PublishedTable] = _NO_RELATIONS,
        outdated: Collection[TableName] = (),
        copying: Collection[TableName] = (),
        outbox: OutboxChannel | None = None,
    ) -> None:
        self.tables = dict(tables)
        """The followed tables, in their newest shape."""
        self.passed_over = dict(passed_over)
        """The tables that aren't followed before their copy, in the newest recorded shape."""
        self.new_shapes: list[SchemaRecord] = []
        """Shapes in use that aren't committed yet; the committer clears the list."""
        self.new_partitions: list[tuple[TableName, int]] = []
        """Partitions with rows in complete transactions, likewise."""
        self.uncaptured_ids: set[int] = set()
        """Relations that the publication sends and nobody captures."""
        self.has_kernels = False
        """Whether the stream has described a table with a compiled encoder. Before, no frame is ordinary."""
        self._uncaptured = uncaptured
        self._former = dict(former)
        self._outdated = set(outdated)
        self._copying = set(copying)
        self._outbox = outbox
        self._of_oid = {
            published.table.oid: name
            for name, published in [*passed_over.items(), *tables.items()]
            if published.table.oid
        }
        self._routes: dict[int, Route] = {}
        self._described: dict[int, Relation] = {}
        self._partitions = Partitions()

    def route(self, relation_id: int) -> Route:
        """Where rows of a relation go. Raises LockstepError if the stream didn't describe it."""
        try:
            return self._routes[relation_id]
        except KeyError:
            raise LockstepError("the stream has changes of a relation that it didn't describe") from None

    def followed(self, relation_id: int) -> PublishedTable | None:
        """The table that a relation's rows are published as, as last described; None if there is none."""
        route = self._routes.get(relation_id)
        return route if type(route) is PublishedTable else None

    def named(self, relation: Relation) -> PublishedTable | None:
        """The followed table that a relation is, whatever was described so far."""
        name = self._name_by(relation)
        return None if name is None else self.tables.get(name)

    def is_outdated(self, published: PublishedTable) -> bool:
        """Whether nothing that is known of the table's rows can complete an update."""
        rewritten = published.unrecorded is not None and bool(published.unrecorded.change.rewritten)
        return rewritten or published.table.name in self._outdated

    def is_being_copied(self, published: PublishedTable) -> bool:
        """Whether a copy runs beside the stream, so that it reads what an update leaves out."""
        return published.table.name in self._copying and not self.is_outdated(published)

    def describe(self, relation: Relation, xid: int | None, at: tuple[int, int]) -> Steps:
        """The stream describes a relation, at this place. From here on its rows have that shape."""
        is_captured = self._name_by(relation) is not None
        table = self._partitions.described(relation, is_captured=is_captured, at=at)
        if is_captured or table is None:
            yield from self._take(relation, xid)
        else:
            self._send_to(relation.relation_id, None)  # no row comes under its own name
        published = self.followed(table.relation_id) if table is not None else None
        if table is not None and published is not None:
            self._judge_old_rows(table)
            # By its present name: another relation may get that within the transaction.
            self._partitions.of_transaction[relation.relation_id] = published.table.name

    def truncated(self, relation_ids: Sequence[int]) -> None:
        """These were emptied under their own names, so none is sent as a partition of another."""
        self._partitions.truncated(relation_ids)
        for relation_id in relation_ids:
            if relation_id in self._described:
                self._judge_old_rows(self._described[relation_id])

    def end_transaction(self, *, is_new: bool) -> None:
        """The transaction is complete, and its partitions are known. If it came again, they were recorded before, and
        the record of a later copy is more exact."""
        if is_new:
            self.new_partitions += [(name, partition) for partition, name in self._partitions.of_transaction.items()]
        self._partitions.of_transaction.clear()

    def replace(self, published: PublishedTable, *, copying: bool = False) -> Steps:
        """A table was copied here: from now on it has this shape, or is captured for the first time. With ``copying``,
        its copy begins here, and ends with ``copied``. Raises UnsupportedChange if the stream has described it in a
        shape without a key."""
        name, oid = published.table.name, published.table.oid
        passed_over = self.passed_over.pop(name, None)
        known_before = self.tables.get(name, passed_over)
        self._outdated.discard(name)
        if copying:
            self._copying.add(name)
        self.tables[name] = published
        self._stand_for(published, known_before)
        if oid in self._described:  # PostgreSQL describes it again only when it changes
            yield from self._take(self._described[oid], None)

    def copied(self, name: TableName) -> None:
        """The copy of a table has ended: all of its rows are on its topic."""
        self._copying.discard(name)

    def distrust(self, name: TableName) -> None:
        """Rows of a table may have changed without an event: nothing known of them completes an update."""
        self._outdated.add(name)
        self._copying.discard(name)

    def stop_following(self, name: TableName) -> None:
        """From here to its copy a table is passed over. The next commit records it, with what came before."""
        self.passed_over[name] = self.tables.pop(name)
        for relation_id, route in self._routes.items():
            if isinstance(route, PublishedTable) and route.table.name == name:
                self._send_to(relation_id, CountedOnly(route))

    def record(self, published: PublishedTable, record: SchemaRecord) -> None:
        """The first row of a new shape is being published: later shapes are compared with this one."""
        published.unrecorded = None
        self.new_shapes.append(record)
        name = published.table.name
        known_before = self.tables.get(name)
        self.tables[name] = published
        self._stand_for(published, known_before)
        if record.change.rewritten:
            self.distrust(name)

    def _take(self, relation: Relation, xid: int | None) -> Steps:
        """From here on, rows of the relation go where its description says."""
        relation_id = relation.relation_id
        self._described[relation_id] = relation
        by_name = TableName(relation.schema, relation.name)
        if self._outbox is not None and by_name == self._outbox.table:
            self._send_to(relation_id, self._outbox.route(relation))
            return
        name = self._name_by(relation)
        if name is None:
            yield Uncaptured(by_name)
            known_before = self._former.get(relation_id) or self._uncaptured.get(by_name)
            self._send_to(relation_id, None if known_before is None else CountedOnly(known_before))
        elif name in self.passed_over:
            adopted = yield NeedShape(relation, self.passed_over[name], xid, is_followed=False)
            self._send_to(relation_id, None if adopted is None else CountedOnly(adopted))
        else:
            published = yield NeedShape(relation, self.tables[name], xid, is_followed=True)
            if published.unrecorded is None:  # the same shape, perhaps with another key constraint or other storage
                self.tables[name] = published
            self._send_to(relation_id, published)
            self._judge_old_rows(relation)

    def _send_to(self, relation_id: int, route: Route) -> None:
        self._routes[relation_id] = route
        if route is None:
            self.uncaptured_ids.add(relation_id)
        else:
            self.uncaptured_ids.discard(relation_id)
            self.has_kernels |= isinstance(route, PublishedTable) and route.kernel is not None

    def _judge_old_rows(self, relation: Relation) -> None:
        published = self.followed(relation.relation_id)
        if published is not None:
            partitions = self._partitions.of(relation.relation_id)
            published.old_rows = OldRows.of(
                published.table, relation, partitions, keys_can_swap=published.keys_can_swap
            )

    def _name_by(self, relation: Relation) -> TableName | None:
        """The captured table that a relation is. A table recreated under a captured name takes over its topic."""
        by_name = TableName(relation.schema, relation.name)
        is_known = by_name in self.tables or by_name in self.passed_over
        return by_name if is_known else self._of_oid.get(relation.relation_id)

    def _stand_for(self, published: PublishedTable, known_before: PublishedTable | None) -> None:
        """A name stands for one relation. The previous one of that name, if it still exists, is another table now. On
        another server, its oid may be any table's."""
        name, oid = published.table.name, published.table.oid
        self._former.pop(oid, None)
        for other in [other for other, its_name in self._of_oid.items() if its_name == name and other != oid]:
            del self._of_oid[other]
            if known_before is not None:
                self._former[other] = known_before
                if other in self._routes:
                    self._send_to(other, CountedOnly(known_before))
        self._of_oid[oid] = name
