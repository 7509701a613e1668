"""The tables of a sink that its queries leave out: by order of a user, or because they can't be applied."""

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cdc.kafka.topic_names import table_topic
from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from jobs.clock import now_ms
from jobs.generations.lease import GenerationLease
from jobs.generations.set_aside import (
    Aside,
    Asides,
    Order,
    Orders,
    asides_name,
    begun,
    dump_asides,
    failed,
    load_asides,
    next_asides,
    orders_name,
    parse_orders,
    taken_again,
)
from jobs.query.progress import ProgressKeeper
from jobs.report import Reporter, TablesSetAside
from sinks.contract import CoordinationRecords


class SetAside(Exception):
    """Raised when tables can't be applied: the next query goes on without them."""


@dataclass(slots=True)
class Noted:
    """The tables that are set aside during one query, as last stored by the thread beside it."""

    asides: Asides


class TablesAside:
    """The tables that are set aside in one sink's job. Only the newest job may write the record, so all writes go
    through its lease. The job's thread calls all methods, the thread beside its query ``orders`` and
    ``note_caught_up``."""

    def __init__(self, sink: str, *, pipeline: str, generation: int, report: Reporter) -> None:
        self._sink = sink
        self._pipeline = pipeline
        self._generation = generation
        self._report = report
        self._asides: Asides = {}
        self._lock = threading.Lock()
        self._told: tuple[str, ...] = ()

    @property
    def now(self) -> Asides:
        """All of them, including those that are read again."""
        return self._asides

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
    ) -> Asides:
        """What the next query leaves out of the sink's ``tables``, by the rules of ``next_asides``. Raises what the
        destination raises, and as ``GenerationLease.save_record``."""
        before = load_asides(records, self._generation)
        asides = next_asides(tables, orders, before, left=left, uncaptured=uncaptured, now_ms=now_ms())
        with self._lock:
            if asides != before:
                self._save(lease, asides)
            self._asides = asides
        return asides

    def begin(self, lease: GenerationLease) -> None:
        """Store that resumed tables are read from now on, since every check has passed. This job is the newest by now,
        and an older one may have written its own record until a moment ago."""
        with self._lock:
            asides = begun(self._asides)
            if lease.record(asides_name(self._generation)) != dump_asides(asides):
                self._save(lease, asides)
            self._asides = asides

    def fail(self, lease: GenerationLease, errors: Mapping[TableName, LockstepError], orders: Orders) -> None:
        """Go on without these tables. Raises SetAside, and as ``GenerationLease.save_record``."""
        with self._lock:
            asides = failed(self._asides, errors, orders, now_ms=now_ms())
            self._save(lease, asides)
            self._asides = asides
        raise SetAside

    def note_caught_up(self, lease: GenerationLease, noted: Noted, keeper: ProgressKeeper) -> None:
        """Store which tables have caught up, and which are applied again after a failure. Called by a thread that may
        outlive its query; ``noted`` is out of date then, and nothing is stored."""
        asides = noted.asides
        if keeper.resuming or not keeper.has_caught_up:
            left = taken_again(asides, [table for table in asides if self._topic(table) in keeper.advanced])
        else:
            left = {table: aside for table, aside in asides.items() if not aside.is_read}
        with self._lock:
            if self._asides is asides and left != asides:
                self._save(lease, left)
                self._asides = noted.asides = left
                self.tell()

    def note_all_applied(self, lease: GenerationLease) -> None:
        """Store that retried tables can be applied: everything of them was."""
        with self._lock:
            applied = taken_again(self._asides, list(self._asides))
            if applied != self._asides:
                self._save(lease, applied)
                self._asides = applied

    def by_topic(self) -> dict[str, Aside]:
        return {self._topic(table): aside for table, aside in self._asides.items()}

    def tell(self) -> None:
        """Report the tables if they differ from the last report."""
        asides = self._asides
        sentences = tuple(aside.sentence(self._sink, str(table)) for table, aside in sorted(asides.items()))
        if sentences != self._told:
            has_failed = any(aside.has_failed for aside in asides.values())
            self._report(TablesSetAside(self._sink, self._generation, sentences, has_failed))
        self._told = sentences

    def check_none_failed(self) -> None:
        """Raise LockstepError if tables can't be applied, with the remedy for each."""
        failures = {table: aside for table, aside in sorted(self._asides.items()) if aside.has_failed}
        if not failures:
            return
        steps = [aside.next_step(self._sink, str(table)) for table, aside in failures.items()]
        raise LockstepError(
            f"sink {self._sink!r} hasn't got all: "
            + "; ".join(aside.why(str(table)) for table, aside in failures.items()),
            hint="; ".join(step for step in steps if step is not None),
        )

    def are_single(self, errors: Collection[TableName], tables: Collection[TableName]) -> bool:
        """Whether single tables are to blame that not all of these ``tables`` can be applied. So they are if all had
        been set aside and are read again: the sink's other tables may be paused, and go on without them."""
        return 0 < len(errors) < len(tables) or (bool(errors) and all(table in self._asides for table in errors))

    def _save(self, lease: GenerationLease, asides: Asides) -> None:
        lease.save_record(asides_name(self._generation), dump_asides(asides))

    def _topic(self, table: TableName) -> str:
        return table_topic(self._pipeline, table)


def is_any_due(asides: Asides) -> bool:
    """Whether one of them is due for another try."""
    at_ms = now_ms()
    return any(aside.is_due(at_ms) for aside in asides.values())
