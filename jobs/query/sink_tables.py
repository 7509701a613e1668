"""Which tables a sink's job has by now, and which of them its next query reads."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import table_topic
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from jobs.generations.held_tables import Order, Orders, read_tables
from jobs.generations.lease import GenerationLease
from jobs.query.captured_tables import Captured, CapturedWatch
from jobs.query.held_tables import HeldTablesKeeper, Noted, is_any_due
from jobs.query.progress import ProgressKeeper
from jobs.query.progress_at_start import left_topics
from jobs.query.sink_plan import SinkPlan
from jobs.report import Reporter, TablesChanged
from sinks.contract import OpenedSink


class SinkTables:
    """The tables of one job. ``plan`` is the job's, with the tables that the next query reads."""

    def __init__(self, plan: SinkPlan, *, report: Reporter) -> None:
        self.plan = plan
        self._report = report
        self.all = plan.tables
        """All tables of the sink, including those that are left out."""
        self.captured: Captured | None = None
        """As of the last look; None if the sink's tables don't change while the job runs."""
        self.held = HeldTablesKeeper(plan.name, pipeline=plan.pipeline, generation=plan.generation, report=report)

    @property
    def are_all_left_out(self) -> bool:
        """Whether the next query has nothing to read and must wait for another order."""
        return not self.plan.tables and bool(self.all or self.captured is not None)

    def look(self) -> None:
        """Look up the sink's tables. Raises as ``SinkPlan.captured``, and Unavailable if a view's isn't captured."""
        plan = self.plan
        if plan.captured is None:
            return
        if not plan.takes_up:
            self.captured = Captured(self.all, self.all)
            return
        self.captured, before = plan.captured(), self.captured
        named = plan.settings.tables
        self.all = self.captured.of(named)
        if plan.settings.view is not None:
            self.plan = replace(plan, tables=self.all)
            for lacking in self.captured.lacks(named):
                raise Unavailable(
                    f"the view reads {lacking}, which isn't captured", hint="`lockstep doctor` says what it waits for"
                )
        if before is not None:
            joined = sorted(set(self.all).difference(before.of(named)))
            left = sorted(set(before.of(named)).difference(self.all))
            if joined or left:
                changed = tuple(map(str, joined)), tuple(map(str, left))
                self._report(TablesChanged(plan.name, plan.generation, *changed))

    def watch(self) -> CapturedWatch | None:
        """A watch for changes since the last look."""
        if self.plan.captured is None or self.captured is None:
            return None
        return CapturedWatch(self.plan.settings.tables, self.captured, self.plan.captured)

    def obey(self, opened: OpenedSink, lease: GenerationLease) -> dict[TableName, Order]:
        """Decide which tables the next query reads; returns the orders that say so. A view leaves no table out."""
        plan = self.plan
        if plan.settings.view is not None:
            return {}
        orders = self.held.orders(lease)
        left = left_topics(opened.generations.load_progress())
        held_tables = self.held.obey(
            orders,
            opened.records,
            lease,
            self.all,
            left=[name for name in self.all if self.topic(name) in left],
            uncaptured=() if self.captured is None else self.captured.lacks(plan.settings.tables),
        )
        self.plan = replace(plan, tables=read_tables(self.all, held_tables))
        return orders

    def have_orders(self, lease: GenerationLease, orders: Orders, noted: Noted, keeper: ProgressKeeper) -> bool:
        """Whether there are other orders, or a failed table is due again. If not, stores which tables have caught
        up."""
        if self.held.orders(lease) != orders or is_any_due(noted.held_tables):
            return True
        self.held.note_caught_up(lease, noted, keeper)
        return False

    def go_on_without(self, errors: Mapping[TableName, LockstepError]) -> bool:
        """Whether a generation in use can go on without tables with these errors, because others can be applied."""
        plan = self.plan
        return plan.go_live and plan.settings.view is None and self.held.are_single(errors, plan.tables)

    def topic(self, table: TableName) -> str:
        return table_topic(self.plan.pipeline, table)

    def listed(self, cluster: TopicAdmin, tables: Sequence[TableName]) -> list[str]:
        """The topics of these tables, as far as the brokers list them."""
        return list(cluster.partition_counts([self.topic(table) for table in tables]))
