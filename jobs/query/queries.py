"""The queries of one sink's job: each is prepared from the log, the destination and the orders of users."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from cdc.kafka.topic_admin import TopicAdmin, control_topic_plans
from cdc.model.table import TableName
from cdc.protocol.control_records import SchemaRecord
from jobs.clock import now_ms
from jobs.executor.view_coordination import has_had_state
from jobs.generations.columns import Columns
from jobs.generations.first_read import dump_first_read, first_read, first_read_name, load_first_read
from jobs.generations.held_tables import Orders
from jobs.generations.identities import Identities
from jobs.generations.lease import GenerationLease
from jobs.generations.prepared import preparing
from jobs.generations.record import require_in_use
from jobs.generations.view_state import check_can_keep
from jobs.query.consistency import check_can_be_consistent, keep_consistency, kept_consistency
from jobs.query.held_tables import Noted
from jobs.query.identity_watch import IdentityWatch
from jobs.query.job_lease import JobLease
from jobs.query.log_facts import LogFacts, read_log_facts
from jobs.query.log_start import LogStart
from jobs.query.no_tables import wait_for_tables
from jobs.query.preparation import Preparation
from jobs.query.progress import ProgressKeeper
from jobs.query.progress_at_start import as_of_start, progress_at_start
from jobs.query.query import QueryPlan, SinkQuery
from jobs.query.query_task import Destination, query_task
from jobs.query.sink_tables import SinkTables
from jobs.query.threads import ended_early
from jobs.query.topic_watch import TopicWatch
from jobs.query.view_plan import PlannedView, planned_view
from jobs.report import Reporter
from sinks.contract import NOTHING_ADDED, AddedValues, OpenedSink, Progress, TablesRefused
from views.plan import RowPlan


@dataclass(frozen=True)
class _Prepared:
    """What the destination is prepared for."""

    log: LogFacts
    view: PlannedView | None
    computed: Mapping[TableName, RowPlan]
    stored: Progress | None
    """The progress in the destination."""
    identities: Identities
    columns: Columns
    lacking: AddedValues
    """The columns' values that older rows lack."""

    @property
    def reached(self) -> dict[tuple[str, int], int]:
        return {} if self.stored is None else {at: self.stored.positions.get(at, 0) for at in self.log.partitions}


class Queries:
    """Runs one query after the other. The job's thread calls ``run`` again after each end that it can recover from."""

    def __init__(
        self, tables: SinkTables, lease: JobLease, spark: SparkSession, *, stop: threading.Event, report: Reporter
    ) -> None:
        self._tables = tables
        self._lease = lease
        self._spark = spark
        self._stop = stop
        self._report = report
        self.refused: TablesRefused | None = None
        """Tables that the destination refused in the last query: the next one goes on without them."""
        self.known_shapes: Sequence[SchemaRecord] = ()
        """The shapes that the tables were last prepared for."""
        self.has_got_on = False
        """Whether the last query stored any progress."""
        # The orders that the newest query began with.
        self._obeyed: Orders = {}

    def run(self) -> bool:
        """Run a query to its end. Returns whether another one is due, for example for a table's new shape."""
        self.has_got_on = False
        if self._tables.plan.settings.view is not None:
            check_can_keep(self._tables.plan.spark, self._tables.plan.name)
        lease = self._lease.reopened()
        opened = self._tables.plan.opened()
        try:
            lease.begin()
            refused, self.refused = self.refused, None
            if refused is not None:
                Preparation(self._tables, opened, lease, self._obeyed, report=self._report).hold_refused(refused)
            self._tables.look()
            self._obeyed = orders = self._tables.obey(opened, lease)
            if self._tables.are_all_left_out:
                return wait_for_tables(self._tables, opened, lease, orders, self._stop, self._report)
            return self._run(opened, lease, orders)
        finally:
            opened.sink.close()

    def _run(self, opened: OpenedSink, lease: GenerationLease, orders: Orders) -> bool:
        """Run a query for the tables that are read."""
        plan, tables = self._tables.plan, self._tables
        cluster = TopicAdmin(plan.kafka.client())
        start = LogStart(tables, opened, lease, orders, cluster)
        preparation = Preparation(tables, opened, lease, orders, report=self._report)
        prepared = self._prepare(opened, lease, start, preparation, cluster)
        log = prepared.log
        self.known_shapes = log.records
        if plan.applies_steps:
            check_can_be_consistent(plan.name, prepared.stored)
        begun, keeper = self._begin_progress(opened, lease, start, prepared, cluster)
        consistency = kept_consistency(opened, plan.generation)
        fence = lease.claim(opened.sink.claim)
        lacks_step = keep_consistency(
            opened, plan.generation, consistency, fence=fence, applies_steps=plan.applies_steps
        )
        destination = Destination(fence, opened.server(), prepared.identities, prepared.reached)
        task = query_task(plan, log, prepared.computed, prepared.view, destination)
        tables.held.begin(lease)

        def begin() -> bool:
            if prepared.stored is not None:
                keeper.begin()
                return True
            # Consistent sinks take a step even without anything to read. Such a step writes no row.
            if plan.applies_steps and not any(cluster.end_offsets(log.partitions).values()):
                return False
            read = first_read(begun, log.partitions, log.topic_ids, now_ms=now_ms())
            lease.save_record(first_read_name(plan.generation), dump_first_read(read))
            return True

        backfill = partial(preparation.backfill, log, prepared.columns, prepared.lacking, fence)
        query_plan = QueryPlan(
            plan,
            task,
            TopicWatch(plan.name, log.topics),
            log.partitions,
            threading.Event(),
            backfill=backfill if prepared.columns.lacking else None,
            lacks_step=lacks_step,
            goes_on=plan.goes_on(len(log.partitions)),
            captured=tables.watch(),
            uncopied=tables.listed(cluster, log.uncopied),
            begin=begin,
            held=[topic for topic, held in tables.held.by_topic().items() if not held.is_read],
        )
        return self._run_query(query_plan, log, keeper, lease, orders, cluster)

    def _run_query(
        self,
        query_plan: QueryPlan,
        log: LogFacts,
        keeper: ProgressKeeper,
        lease: GenerationLease,
        orders: Orders,
        cluster: TopicAdmin,
    ) -> bool:
        """Run the query until it must begin anew or the job ends. Returns whether another one is due."""
        plan, tables = self._tables.plan, self._tables
        has_orders = partial(tables.have_orders, lease, orders, Noted(tables.held.now), keeper)
        has_lost = IdentityWatch(lease, query_plan.task.identities).has_lost
        with ended_early(
            plan,
            cluster,
            log.tables,
            query_plan.topics,
            uncopied=log.uncopied,
            news=query_plan.news,
            has_orders=lambda: has_orders() or has_lost(),
        ) as early:
            try:
                with self._lease.with_query():
                    SinkQuery(
                        query_plan,
                        self._spark,
                        keeper,
                        lease,
                        stop=early.ending,
                        leaving=self._stop,
                        report=self._report,
                    ).run()
            finally:
                self.has_got_on = bool(keeper.reached)
        if early.failure is not None:
            raise early.failure
        if plan.once and not (early.ending.is_set() or self._stop.is_set()):
            tables.held.note_all_applied(lease)
        return early.ending.is_set() and not self._stop.is_set()

    def _prepare(
        self,
        opened: OpenedSink,
        lease: GenerationLease,
        start: LogStart,
        preparation: Preparation,
        cluster: TopicAdmin,
    ) -> _Prepared:
        """Read the facts of the log, and prepare the destination's tables for them."""
        plan, captured = self._tables.plan, self._tables.captured
        start.require_readable()
        start.hold_lost()
        view_settings = plan.settings.view
        join_singly = view_settings is None and captured is not None and captured.join_singly
        log = read_log_facts(plan, cluster, join_singly=join_singly)
        view = None if view_settings is None else planned_view(view_settings, log.tables)
        computed = start.row_plans(log)
        cluster.create(cluster.missing(control_topic_plans(plan.pipeline, plan.kafka.topics)))
        require_in_use(opened.records, plan.name, plan.generation)
        lease.begin()
        stored = opened.generations.load_progress()
        own = log.tables if view is None else {view.table.name: view.table}
        identities = preparation.still_there(own.keys(), log, stored)
        with preparing(opened.records, plan.generation, own):
            columns, lacking = Columns(), NOTHING_ADDED
            if view is None:
                columns, lacking = preparation.prepare(log, may_hold=stored is not None)
            else:
                opened.sink.prepare([view.table], go_live=plan.go_live)
        identities = preparation.keep_identities(own.keys(), identities)
        if plan.bulk and opened.bulk is not None:
            opened.bulk.begin_bulk()
        return _Prepared(log, view, computed, stored, identities, columns, lacking)

    def _begin_progress(
        self,
        opened: OpenedSink,
        lease: GenerationLease,
        start: LogStart,
        prepared: _Prepared,
        cluster: TopicAdmin,
    ) -> tuple[Progress | None, ProgressKeeper]:
        """Check that the query can go on from the stored progress. Returns the first read of a generation without
        progress, and the keeper of the progress."""
        plan, tables, log = self._tables.plan, self._tables, prepared.log
        at_ms, ends = now_ms(), cluster.end_offsets(log.partitions)
        begun = self._begun(opened, log, at_ms) if prepared.stored is None else None
        known = begun if prepared.stored is None else prepared.stored
        start.check_resuming(log, known, ends=ends, now_ms=at_ms)
        log_epoch = start.epoch_to_go_on_with(log, known, ends=ends, now_ms=at_ms)
        tables.held.report()
        # The watermark covers rows from before too.
        begun_with = progress_at_start(
            plan.pipeline,
            log,
            as_of_start(known, ends, at_ms),
            now_ms=at_ms,
            log_epoch=log_epoch,
            held_tables=tables.held.by_topic(),
            selection="" if tables.captured is None else tables.captured.selection,
        )
        keeper = ProgressKeeper(
            opened.generations,
            begun_with,
            log,
            sink=plan.name,
            check_claim=lease.check,
            lacks_columns=bool(prepared.columns.lacking),
            result=None if prepared.view is None else prepared.view.table.name,
        )
        return begun, keeper

    def _begun(self, opened: OpenedSink, log: LogFacts, now_ms: int) -> Progress | None:
        """What a generation without progress has begun to read; never None for a view. One shard of a view may have
        reported its position before all have, so a view's progress begins with this."""
        plan, view = self._tables.plan, self._tables.plan.settings.view
        if view is None:
            return load_first_read(opened.records, plan.generation)
        has_begun = has_had_state(opened.records, plan.generation, tasks=view.tasks)
        before = load_first_read(opened.records, plan.generation) if has_begun else None
        return first_read(before, log.partitions, log.topic_ids, now_ms=now_ms)
