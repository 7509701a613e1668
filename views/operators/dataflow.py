"""A plan as operators that are joined: a step's events in, the changes of the result's rows out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from cdc.model.event import RowEvent, TableEvents
from cdc.model.table import Table, TableName
from views.operators import group, join, top
from views.operators.building import Building
from views.operators.changes import Changes, Operator, RowChange, Rows, Work, add
from views.operators.group import GroupOperator
from views.operators.join import JoinOperator
from views.operators.own_rows import IsOwn, compiled_own, divided_by, own_rows
from views.operators.rows import FilterOperator, ProjectOperator, UnionOperator
from views.operators.scan import Mirror, ScanOperator, mirrors
from views.operators.top import TopOperator
from views.plan import Filter, Group, Join, Node, Project, Scan, Top, Union, ViewPlan, nodes, sources
from views.shard import Shard
from views.state.contract import Reading

COMPUTED: Final = (join.KIND, group.KIND, group.MEMBERS, top.ROWS, top.REACH)
"""What the entries of all operators begin with, but for the tables' own rows."""


@dataclass(frozen=True, slots=True)
class _Path:
    """From a scan up to the result: each operator, and which of its sources the changes come from."""

    scan: ScanOperator
    operators: tuple[tuple[Operator, int], ...]


class Dataflow:
    """The operators of one plan. What they remember is in the state alone."""

    def __init__(self, plan: ViewPlan, tables: Mapping[TableName, Table], shard: Shard | None = None) -> None:
        """Raises KeyError for a table or column that isn't among the shapes."""
        root = plan.root
        scans = [node for node in nodes(root) if isinstance(node, Scan)]
        self._shard = shard
        self._own = {} if shard is None else own_rows(root, shard)
        self._divided = {} if shard is None else divided_by(root, shard)
        self._mirrors = mirrors(tables, scans, plan.retained, self._own)
        self._ageing = [self._mirrors[retained.table] for retained in plan.retained]
        self._numbers = {id(node): number for number, node in enumerate(nodes(root))}
        self._root = root
        self._operators: dict[int, Operator] = {}
        self._scans: dict[int, ScanOperator] = {}
        self._paths = list(self._paths_of(root, ()))

    def _paths_of(self, node: Node, above: tuple[tuple[Operator, int], ...]) -> list[_Path]:
        if isinstance(node, Scan):
            scan = self._scans[self._numbers[id(node)]] = ScanOperator(
                node, self._mirrors[node.table], self._is_own(node)
            )
            return [_Path(scan, above)]
        operator = self._operators[self._numbers[id(node)]] = self._operator(node)
        return [
            path
            for index, source in enumerate(sources(node))
            for path in self._paths_of(source, ((operator, index), *above))
        ]

    def _is_own(self, scan: Scan) -> IsOwn | None:
        """Which rows of a mirror are one scan's; None where all are."""
        by, own = self._divided.get(id(scan)), self._own.get(scan.table)
        if self._shard is None or by is None or (own is not None and own.is_of_one_value):
            return None
        return compiled_own(self._shard, by, scan.columns)

    def _operator(self, node: Filter | Project | Join | Union | Group | Top) -> Operator:
        number = self._numbers[id(node)]
        match node:
            case Filter():
                return FilterOperator(node)
            case Project():
                return ProjectOperator(node)
            case Join():
                return JoinOperator(node, number)
            case Union():
                return UnionOperator(node)
            case Group():
                return GroupOperator(node, number)
            case Top():
                return TopOperator(node, number)
            case _:
                assert_never(node)

    def changed(self, events: Sequence[RowEvent], work: Work, *, expired_most: int = 0) -> tuple[Changes, int]:
        """The changes of the result's rows that events make, and how many rows of tables have changed.

        At most ``expired_most`` rows of tables that are too old by now go with them.
        """
        by_table = _by_table(events)
        rows: dict[TableName, list[RowChange]] = {
            table: self._mirrors[table].changed(changed, work)
            for table, changed in by_table.items()
            if table in self._mirrors
        }
        # A row that an event has changed isn't too old: the mirror doesn't take such a one.
        for table, expired in self._expired(work, expired_most).items():
            rows[table] = [*rows.get(table, ()), *expired]
        return self._brought_in(rows, work)

    def own_events(self, events: TableEvents) -> TableEvents:
        """Events of one table without those that are another shard's by their key alone."""
        mirror = self._mirrors.get(events.table)
        return mirror.own_events(events) if isinstance(mirror, Mirror) else events

    def taken(self, events: Sequence[RowEvent], work: Work) -> int:
        """Keep the rows of tables, and nothing of what they make. Returns how many of them have changed."""
        by_table = _by_table(events)
        return sum(
            len(self._mirrors[table].changed(changed, work))
            for table, changed in by_table.items()
            if table in self._mirrors
        )

    def built(self, building: Building) -> Rows:
        """Keep what the rows of tables make, where nothing of it is kept yet. Returns all rows of the result.

        Raises FanOutExceeded where a row has more partners than the building allows.
        """
        return self._built(self._root, building)

    def _built(self, node: Node, building: Building) -> Rows:
        number = self._numbers[id(node)]
        if isinstance(node, Scan):
            made = self._scans[number].built(building)
        else:
            made = self._operators[number].built([self._built(source, building) for source in sources(node)], building)
        for rows in made:
            # A few rows of tables may make very many of an operator: whoever waits must see that it gets on.
            building.meanwhile(0)
            yield rows

    def has_aged(self, state: Reading, time_ms: int) -> bool:
        """Whether there are rows of tables that are too old at this time of the view."""
        return any(mirror.has_aged(state, time_ms) for mirror in self._ageing)

    def aged(self, work: Work, most: int) -> tuple[Changes, int]:
        """The same as ``changed`` for rows of tables that are too old by now, at most so many of them."""
        return self._brought_in(self._expired(work, most), work)

    def _expired(self, work: Work, most: int) -> dict[TableName, list[RowChange]]:
        rows: dict[TableName, list[RowChange]] = {}
        for mirror in self._ageing:
            rows[mirror.table] = mirror.aged(work, most)
            most -= len(rows[mirror.table])
        return rows

    def _brought_in(self, rows: Mapping[TableName, Sequence[RowChange]], work: Work) -> tuple[Changes, int]:
        total: Changes = {}
        for path in self._paths:
            if not (changes := path.scan.changes_of(rows.get(path.scan.table, ()))):
                continue
            for operator, source in path.operators:
                changes = operator.changed(source, changes, work)
                if not changes:
                    break
            for row, weight in changes.items():
                add(total, row, weight)
        return total, sum(map(len, rows.values()))


def _by_table(events: Sequence[RowEvent]) -> dict[TableName, list[RowEvent]]:
    by_table: dict[TableName, list[RowEvent]] = {}
    for event in events:
        by_table.setdefault(event.table, []).append(event)
    return by_table
