"""A plan as connected operators: a step's events in, the changes of the result's rows out."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from cdc.model.event import RowEvent, TableEvents
from cdc.model.table import Table, TableName
from views.operators.arrivals import Arrivals, Arrived
from views.operators.building import Building, spill_together
from views.operators.changes import Changes, Operator, RowChange, Rows, Work, add
from views.operators.event_rows import EventRows
from views.operators.group import GroupOperator
from views.operators.join import JoinOperator
from views.operators.own_rows import IsOwn, compiled_own, divided_by, own_rows
from views.operators.rows import FilterOperator, ProjectOperator, UnionOperator
from views.operators.scan import Mirror, ScanOperator, mirrors
from views.operators.top import TopOperator
from views.plan import Filter, Group, Join, Node, Project, Scan, Top, Union, ViewPlan, nodes, sources
from views.shard import Shard
from views.state.contract import Reading


@dataclass(frozen=True, slots=True)
class _Path:
    """The way from a scan up to the result: each operator, and the number of its source that the changes come from."""

    scan: ScanOperator
    operators: tuple[tuple[Operator, int], ...]


class Dataflow:
    """The operators of one plan. They store everything in the state."""

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
        """The test for a scan's rows of its mirror; None if all of them are the scan's."""
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
        """The changes of the result's rows that events cause, and how many rows of tables have changed. Also removes up
        to ``expired_most`` rows of tables that are too old by now.
        """
        by_table = _by_table(events)
        rows: dict[TableName, list[RowChange]] = {
            table: self._mirrors[table].changed(changed, work)
            for table, changed in by_table.items()
            if table in self._mirrors
        }
        # No row is in both: the mirror doesn't store changed rows that are too old.
        for table, expired in self._expired(work, expired_most).items():
            rows[table] = [*rows.get(table, ()), *expired]
        return self._brought_in(rows, work)

    def own_events(self, events: TableEvents) -> TableEvents:
        """Events of one table without those whose key alone assigns them to another shard."""
        mirror = self._mirrors.get(events.table)
        return mirror.own_events(events) if isinstance(mirror, Mirror) else events

    def arrivals(self, scratch: Path | None) -> dict[TableName, Arrivals]:
        return {table: Arrivals(scratch) for table in self._mirrors}

    def take(
        self, events: TableEvents, arrivals: Mapping[TableName, Arrivals], meanwhile: Callable[[int], None]
    ) -> None:
        """Note events of one table, in any order. All tables together use as much memory as one sorter. ``meanwhile``
        is called every so often if it takes long. Raises what it raises, and LockstepError for a key that can't be
        read, and for a full disk and the like.
        """
        if events.table in arrivals:
            self._mirrors[events.table].take(events, arrivals[events.table])
            arrivals[events.table].fold(meanwhile)
            spill_together([of_table.sorter for of_table in arrivals.values()])

    def arrived(self, arrivals: Mapping[TableName, Arrivals], time_ms: int) -> dict[TableName, Iterator[Arrived]]:
        """Rows that count at this time, readable once. Reading raises LockstepError for a row that can't be read."""
        return {table: self._arrived(self._mirrors[table], of_table, time_ms) for table, of_table in arrivals.items()}

    @staticmethod
    def _arrived(mirror: Mirror | EventRows, arrivals: Arrivals, time_ms: int) -> Iterator[Arrived]:
        if isinstance(mirror, EventRows):
            yield Arrived(mirror.emptied(arrivals), (), [])
        for items in arrivals.newest():
            yield mirror.arrived(items, time_ms, arrivals)

    def built(self, arrived: Mapping[TableName, Iterable[Arrived]], building: Building) -> Rows:
        """All rows of the result, computed from these rows of tables. Each operator stores its entries in one go.
        Raises FanOutExceeded if a row has more partners than the building allows.
        """
        scanned = [node.table for node in nodes(self._root) if isinstance(node, Scan)]
        rows: dict[TableName, Rows] = {}
        for table, portions in arrived.items():
            kept = _kept(portions, building)
            if scanned.count(table) == 1:
                rows[table] = kept
            else:  # each scan reads from the state
                deque(kept, maxlen=0)
                building.flush()
        yield from self._built(self._root, rows, building)

    def _built(self, node: Node, of_tables: Mapping[TableName, Rows], building: Building) -> Rows:
        number = self._numbers[id(node)]
        if isinstance(node, Scan):
            of_table = of_tables.get(node.table) or self._mirrors[node.table].built(building)
            made = self._scans[number].built(of_table)
        else:
            of_sources = [self._built(source, of_tables, building) for source in sources(node)]
            made = self._operators[number].built(of_sources, building)
        for rows in made:
            # A few rows of tables may give very many rows of an operator, and observers must see progress.
            building.meanwhile(0)
            yield rows

    def has_aged(self, state: Reading, time_ms: int) -> bool:
        return any(mirror.has_aged(state, time_ms) for mirror in self._ageing)

    def aged(self, work: Work, most: int) -> tuple[Changes, int]:
        """As ``changed``, for up to ``most`` rows of tables that are too old by now."""
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


def _kept(arrived: Iterable[Arrived], building: Building) -> Rows:
    """Store a table's rows, and return all of them."""
    ages = building.sorter()
    for some in arrived:
        building.keep(some.entries)
        ages.add([(key, b"", b"") for key in some.ages])
        building.meanwhile(len(some.rows))
        yield some.rows
    for items in ages.sorted():
        building.keep([(key, b"") for key, _, _ in items])


def _by_table(events: Sequence[RowEvent]) -> dict[TableName, list[RowEvent]]:
    by_table: dict[TableName, list[RowEvent]] = {}
    for event in events:
        by_table.setdefault(event.table, []).append(event)
    return by_table
