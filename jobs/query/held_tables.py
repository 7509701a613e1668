"""The tables of a sink that its queries leave out: by order of a user, or because they can't be applied."""

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cdc.kafka.topic_names import table_topic
from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from jobs.clock import now_ms
from jobs.generations.held_tables import (
    HeldTable,
    HeldTables,
    Order,
    Orders,
    begun,
    dump_held_tables,
    failed,
    held_tables_name,
    load_held_tables,
    next_held_tables,
    orders_name,
    parse_orders,
    taken_again,
)
from jobs.generations.lease import GenerationLease
from jobs.query.progress import ProgressKeeper
from jobs.report import Reporter, TablesHeld
from sinks.contract import CoordinationRecords


class NewlyHeld(Exception):
    """Raised when tables can't be applied: the next query goes on without them."""


@dataclass(slots=True)
class Noted:
    """The tables held during one query, as last stored by the thread beside it."""

    held_tables: HeldTables


class HeldTablesKeeper:
    """The held tables of one sink's job. Only the newest job may write the record, so all writes go
    through its lease. The job's thread calls all methods, the thread beside its query ``orders`` and
    ``note_caught_up``."""

    def __init__(self, sink: str, *, pipeline: str, generation: int, report: Reporter) -> None:
        self._sink = sink
        self._pipeline = pipeline
        self._generation = generation
        self._report = report
        self._held_tables: HeldTables = {}
        self._lock = threading.Lock()
        self._reported: tuple[str, ...] = ()

    @property
    def now(self) -> HeldTables:
        """All of them, including those that are read again."""
        return self._held_tables

    def orders(self, lease: GenerationLease) -> dict[TableName, Order]:
        """The orders of users for the sink's tables."""
        return parse_orders(lease.record(orders_name(self._generation)))

    def obey(
        self,
        orders: Orders,
        records: CoordinationRecords,
        lease: GenerationLease,
        tables: Collection[TableName],
        *,
        left: Collection[TableName],
        uncaptured: Collection[TableName],
    ) -> HeldTables:
        """What the next query leaves out of the sink's ``tables``, by the rules of ``next_held_tables``. Raises what
        the destination raises, and as ``GenerationLease.save_record``."""
        before = load_held_tables(records, self._generation)
        held_tables = next_held_tables(tables, orders, before, left=left, uncaptured=uncaptured, now_ms=now_ms())
        with self._lock:
            if held_tables != before:
                self._save(lease, held_tables)
            self._held_tables = held_tables
        return held_tables

    def begin(self, lease: GenerationLease) -> None:
        """Store that resumed tables are read from now on, since every check has passed. This job is the newest by now,
        and an older one may have written its own record until a moment ago."""
        with self._lock:
            held_tables = begun(self._held_tables)
            if lease.record(held_tables_name(self._generation)) != dump_held_tables(held_tables):
                self._save(lease, held_tables)
            self._held_tables = held_tables

    def fail(self, lease: GenerationLease, errors: Mapping[TableName, LockstepError], orders: Orders) -> None:
        """Go on without these tables. Raises NewlyHeld, and as ``GenerationLease.save_record``."""
        with self._lock:
            held_tables = failed(self._held_tables, errors, orders, now_ms=now_ms())
            self._save(lease, held_tables)
            self._held_tables = held_tables
        raise NewlyHeld

    def note_caught_up(self, lease: GenerationLease, noted: Noted, keeper: ProgressKeeper) -> None:
        """Store which tables have caught up, and which are applied again after a failure. Called by a thread that may
        outlive its query; ``noted`` is out of date then, and nothing is stored."""
        held_tables = noted.held_tables
        if keeper.resuming or not keeper.has_caught_up:
            left = taken_again(held_tables, [table for table in held_tables if self._topic(table) in keeper.advanced])
        else:
            left = {table: held for table, held in held_tables.items() if not held.is_read}
        with self._lock:
            if self._held_tables is held_tables and left != held_tables:
                self._save(lease, left)
                self._held_tables = noted.held_tables = left
                self.report()

    def note_all_applied(self, lease: GenerationLease) -> None:
        """Store that retried tables can be applied: everything of them was."""
        with self._lock:
            applied = taken_again(self._held_tables, list(self._held_tables))
            if applied != self._held_tables:
                self._save(lease, applied)
                self._held_tables = applied

    def by_topic(self) -> dict[str, HeldTable]:
        return {self._topic(table): held for table, held in self._held_tables.items()}

    def report(self) -> None:
        """Report the tables if they differ from the last report."""
        held_tables = self._held_tables
        sentences = tuple(held.sentence(self._sink, str(table)) for table, held in sorted(held_tables.items()))
        if sentences != self._reported:
            has_failed = any(held.has_failed for held in held_tables.values())
            self._report(TablesHeld(self._sink, self._generation, sentences, has_failed))
        self._reported = sentences

    def check_none_failed(self) -> None:
        """Raise LockstepError if tables can't be applied, with the remedy for each."""
        failures = {table: held for table, held in sorted(self._held_tables.items()) if held.has_failed}
        if not failures:
            return
        steps = [held.next_step(self._sink, str(table)) for table, held in failures.items()]
        raise LockstepError(
            f"sink {self._sink!r} hasn't got all: "
            + "; ".join(held.why(str(table)) for table, held in failures.items()),
            hint="; ".join(step for step in steps if step is not None),
        )

    def are_single(self, errors: Collection[TableName], tables: Collection[TableName]) -> bool:
        """Whether single tables are to blame that not all of these ``tables`` can be applied. So they are if all had
        been held and are read again: the sink's other tables may be paused, and go on without them."""
        return 0 < len(errors) < len(tables) or (bool(errors) and all(table in self._held_tables for table in errors))

    def _save(self, lease: GenerationLease, held_tables: HeldTables) -> None:
        lease.save_record(held_tables_name(self._generation), dump_held_tables(held_tables))

    def _topic(self, table: TableName) -> str:
        return table_topic(self._pipeline, table)


def is_any_due(held_tables: HeldTables) -> bool:
    """Whether one of them is due for another try."""
    at_ms = now_ms()
    return any(held.is_due(at_ms) for held in held_tables.values())
