"""One sink's job: prepares a generation and runs queries into it, one after the other, until it is stopped or done."""

import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Final

from pyspark.sql import SparkSession

from cdc.kafka.control_topics import ProgressReader, read_progress
from cdc.kafka.kept_topics import check_kept
from cdc.kafka.topic_admin import TopicAdmin, control_topic_plans, view_topic_plans
from cdc.kafka.topic_names import PROGRESS, control_topic, table_topic, view_topic
from cdc.model.append_only import stored_table
from cdc.model.errors import (
    ConfigurationError,
    DataLost,
    Fenced,
    LockstepError,
    NeedsRebuild,
    Overtaken,
    PositionMismatch,
    Unavailable,
)
from cdc.model.table import TableName
from cdc.protocol.control_records import ProgressRecord, SchemaRecord
from jobs.clock import now_ms
from jobs.executor.shape_history import ShapesOutdated
from jobs.executor.task_input import StepsInput, Task, ViewInput, ViewTopicInput
from jobs.executor.view_notes import has_had_state
from jobs.generations.batch_gate import BatchGate
from jobs.generations.columns import Columns, load_columns, save_columns
from jobs.generations.first_read import dump_first_read, first_read, first_read_name, load_first_read
from jobs.generations.identities import (
    Identities,
    dump_identities,
    identities_name,
    identities_of,
    known_of,
    load_identities,
    lost_of,
    lost_rows,
)
from jobs.generations.lease import GenerationLease
from jobs.generations.prepared import preparing
from jobs.generations.record import require_in_use
from jobs.generations.set_aside import (
    Asides,
    Order,
    Orders,
    read_tables,
)
from jobs.generations.view_state import check_can_keep, state_directory
from jobs.offsets import Offsets
from jobs.query.captured_tables import Captured, CapturedWatch
from jobs.query.column_backfill import BackfillReporter, backfill_tables, next_columns
from jobs.query.consistency import (
    check_can_be_consistent,
    claim_and_keep,
    keep_consistency,
    kept_consistency,
)
from jobs.query.failures import BACKOFF_MAX_S, Backoff, spark_error
from jobs.query.identity_watch import IdentityWatch
from jobs.query.log_facts import LogFacts, have_shapes_changed, read_log_facts, unreadable, without_topic
from jobs.query.progress import ProgressKeeper
from jobs.query.progress_at_start import as_of_start, left_topics, progress_at_start
from jobs.query.query import QueryPlan, SinkQuery
from jobs.query.resume_check import check_epochs, check_resume, known_epoch
from jobs.query.row_plan import row_plans, unevaluated
from jobs.query.set_aside_tables import Noted, SetAside, TablesAside, is_any_due
from jobs.query.sink_plan import SinkPlan
from jobs.query.threads import TICK_S, beat, ended_early
from jobs.query.topic_watch import TopicWatch
from jobs.query.view_plan import PlannedView, planned_view
from jobs.report import Reporter, SinkWaiting, TablesChanged, WatermarkRaised
from jobs.spark.jvm import jvm_calls
from jobs.spark.source import portable_client
from sinks.contract import NOTHING_ADDED, AddedValues, OpenedSink, Progress, TablesRefused
from sinks.registry import history_tables, projection_of
from views.plan import RowPlan
from views.shard import shards

_OVERTAKEN_MAX: Final = 5
"""So many queries in a row that another job has overtaken, and that have reached nothing: two jobs that don't share a
lease do that for ever."""

_ORDERS_LOOK_S: Final = 1.0
"""How often a job that reads nothing looks whether somebody wants something else."""


class _Unreadable(LockstepError):
    """The job may not read what it can't go on without."""


class SinkJob:
    """Runs one sink until it is stopped, done (``once``) or failed. ``run`` is its thread."""

    def __init__(self, plan: SinkPlan, spark: SparkSession, *, stop: threading.Event, report: Reporter) -> None:
        self._plan = plan
        self._spark = spark
        self._stop = stop
        self._report = report
        self._lease_sink: OpenedSink | None = None  # the lease's own, which threads use beside the others
        self._lease: GenerationLease | None = None
        self._has_query = False  # which then keeps the lease
        self._known_shapes: Sequence[SchemaRecord] = ()
        self._has_got_on = False  # whether the last query has stored that it had applied something
        self._tables = plan.tables  # all that the sink has; a query's plan has those that it reads
        self._captured: Captured | None = None  # as of the last look
        self._asides = TablesAside(plan.name, pipeline=plan.pipeline, generation=plan.generation, report=report)
        self._lacking_aside: AddedValues = {}  # what rows of tables that aren't read lack
        self._obeyed: Orders = {}  # those that the newest query began with
        self._refused: TablesRefused | None = None  # tables that the destination has refused in the last query
        self._checked_again: Asides | None = None  # for which a query has ended, and may have for one of them

    def run(self) -> None:
        """Return when stopped or done. Raises LockstepError when somebody has to act; waits for servers without end."""
        over = threading.Event()
        beats = threading.Thread(target=self._keep_lease, args=(over,), name=f"lease-{self._plan.name}", daemon=True)
        beats.start()
        try:
            self._run()
        finally:
            over.set()
            beats.join()
            if self._lease is not None:
                with suppress(LockstepError):
                    self._lease.end()
            if self._lease_sink is not None:
                self._lease_sink.sink.close()

    def _keep_lease(self, over: threading.Event) -> None:
        """Show that the job runs also while it has no query: it may wait for Kafka, or prepare tables for long."""
        while not over.wait(TICK_S):
            if self._lease is not None and not self._has_query:
                with suppress(LockstepError):  # the job asks the lease before it claims the destination
                    self._lease.heartbeat()

    def _run(self) -> None:
        backoff, overtaken = Backoff(), 0
        while not self._stop.is_set():
            began = time.monotonic()
            self._has_got_on = False
            try:
                with jvm_calls(partial(spark_error, self._plan.name)):
                    is_due = self._run_query()
                if not is_due:
                    self._check_all_applied()
                    return
            except SetAside:
                continue
            except Unavailable as error:
                if time.monotonic() - began > BACKOFF_MAX_S:
                    backoff = Backoff()  # it had worked for a while
                self._wait(error, backoff)
            except Overtaken as error:
                # The older of two jobs learns from its lease that it is. The newer one begins again behind its last
                # batch. Where they don't share a lease, neither may get on.
                overtaken = 0 if self._has_got_on else overtaken + 1
                if overtaken == _OVERTAKEN_MAX:
                    raise
                self._wait(Unavailable(error.message), backoff)
            except Fenced:
                # So says a destination that was put back too: its tasks find another fence than the job's.
                if self._lease is None:
                    raise
                try:
                    self._lease.check_fence()
                except Unavailable as put_back:
                    self._wait(put_back, backoff)
                else:
                    raise
            except (ConfigurationError, _Unreadable):
                raise
            except PositionMismatch:
                # A table that was resumed may be too late by now. The next start sets it aside, and it alone.
                resuming = {table: aside for table, aside in self._asides.now.items() if aside.is_read}
                if not resuming or resuming == self._checked_again:
                    raise
                self._checked_again = resuming
            except ShapesOutdated:
                self._look_at_claims()
                # The next start reads the shapes after this event has come, so it isn't raised for it again.
            except TablesRefused as refused:
                self._look_at_claims()
                if not self._have_shapes_changed() and not self._has_lost_rights():
                    self._refused = refused  # with the lease of the next query
            except LockstepError:
                self._look_at_claims()
                # A row came of a shape that nobody knew when the tables were prepared: the next start knows it.
                if not self._have_shapes_changed() and not self._has_lost_rights():
                    raise

    def _check_all_applied(self) -> None:
        """Raise LockstepError where a job that was to apply all there is has left out tables that can't be applied."""
        if self._plan.once and not self._stop.is_set():
            self._asides.check_none_failed()

    def _look_at_claims(self) -> None:
        """Raise Fenced when another job has claimed the generation since this one did, as far as can be seen."""
        if self._lease is None:
            return
        try:
            self._lease.look()
        except Fenced:
            raise
        except LockstepError:
            pass  # the error that has ended the query counts

    def _wait(self, error: Unavailable, backoff: Backoff) -> None:
        retry_in_s = backoff.next_s(error)
        self._report(SinkWaiting(self._plan.name, error.message, retry_in_s))
        go_on_at = time.monotonic() + retry_in_s
        while (left_s := go_on_at - time.monotonic()) > 0 and not self._stop.wait(min(left_s, TICK_S)):
            if self._lease is not None:
                with suppress(DataLost):  # the next query finds out what that means
                    beat(self._lease)

    def _run_query(self) -> bool:
        """Run a query to its end. Whether another one is due: a table has got another shape."""
        if self._plan.settings.view is not None:
            check_can_keep(self._plan.spark, self._plan.name)
        lease = self._opened_lease()
        opened = self._plan.opened()
        try:
            lease.begin()
            self._set_refused_aside(opened, lease)
            self._look_at_captured()
            # A view can't go on without one of its tables: nothing of it is set aside.
            orders = self._obey(opened, lease) if self._plan.settings.view is None else {}
            self._obeyed = orders
            plan = self._plan
            if not plan.tables and (self._tables or self._captured is not None):
                return self._wait_for_orders(opened, lease, orders)
            return self._run_query_of(plan, opened, lease, orders)
        finally:
            opened.sink.close()

    def _run_query_of(self, plan: SinkPlan, opened: OpenedSink, lease: GenerationLease, orders: Orders) -> bool:
        """The same for the tables of this plan."""
        cluster = TopicAdmin(plan.kafka.client())
        self._require_readable(opened, cluster, lease, orders)
        self._set_lost_aside(cluster, lease, orders)
        join_singly = plan.settings.view is None and self._captured is not None and self._captured.join_singly
        log = read_log_facts(plan, cluster, join_singly=join_singly)
        view = None if plan.settings.view is None else planned_view(plan.settings.view, log.tables)
        computed = self._row_plans(opened, log, lease, orders)
        cluster.create(cluster.missing(control_topic_plans(plan.pipeline, plan.kafka.topics)))
        require_in_use(opened.records, plan.name, plan.generation)
        lease.begin()
        stored = opened.generations.load_progress()
        prepared = log.tables if view is None else {view.table.name: view.table}
        identities = self._still_there(opened, prepared.keys(), log, stored, lease, orders)
        with preparing(opened.records, plan.generation, prepared):
            if view is None:
                columns, lacking = self._prepare(opened, log, lease, orders, may_set_aside=stored is not None)
            else:
                columns, lacking = Columns(), NOTHING_ADDED
                opened.sink.prepare([view.table], go_live=plan.go_live)
        identities = self._keep_identities(opened, prepared.keys(), identities, lease)
        if plan.bulk and opened.bulk is not None:
            opened.bulk.begin_bulk()
        self._known_shapes = log.records
        if plan.applies_steps:
            check_can_be_consistent(plan.name, stored)
        at_ms, ends = now_ms(), cluster.end_offsets(log.partitions)
        begun = self._begun(opened, log, at_ms) if stored is None else None
        known = begun if stored is None else stored
        self._check_resuming(cluster, log, known, lease, orders, ends=ends, now_ms=at_ms)
        log_epoch = self._check_resume(cluster, log, known, ends=ends, now_ms=at_ms)
        self._asides.tell()
        # The watermark says that all is as at the source, the rows from before included.
        begun_with = progress_at_start(
            plan.pipeline,
            log,
            as_of_start(known, ends, at_ms),
            now_ms=at_ms,
            log_epoch=log_epoch,
            asides=self._asides.by_topic(),
            selection="" if self._captured is None else self._captured.selection,
        )
        keeper = ProgressKeeper(
            opened.generations,
            begun_with,
            log,
            sink=plan.name,
            check_claim=lease.check,
            lacks_columns=bool(columns.lacking),
            result=None if view is None else view.table.name,
        )
        consistency = kept_consistency(opened, plan.generation)
        fence = lease.claim(opened.sink.claim)
        lacks_step = keep_consistency(
            opened, plan.generation, consistency, fence=fence, applies_steps=plan.applies_steps
        )
        reached = {} if stored is None else {at: stored.positions.get(at, 0) for at in log.partitions}
        task = self._task(
            log,
            computed,
            fence=fence,
            view=self._view_input(view, log, reached),
            steps=self._steps_input(reached),
            server=opened.server(),
            identities=identities,
        )
        self._asides.begin(lease)

        def begin() -> bool:
            if stored is not None:
                keeper.begin()
                return True
            # Without anything to read, a step is taken all the same. It writes no row.
            if plan.applies_steps and not any(cluster.end_offsets(log.partitions).values()):
                return False
            read = first_read(begun, log.partitions, log.topic_ids, now_ms=now_ms())
            lease.save_record(first_read_name(plan.generation), dump_first_read(read))
            return True

        backfill = partial(self._backfill, log, columns, lacking, task.fence) if columns.lacking else None
        topics = TopicWatch(plan.name, log.topics)
        has_orders = partial(self._has_orders, lease, orders, Noted(self._asides.now), keeper)
        has_lost = IdentityWatch(lease, identities).has_lost
        news = threading.Event()
        with ended_early(
            plan,
            cluster,
            log.tables,
            topics,
            uncopied=log.uncopied,
            news=news,
            has_orders=lambda: has_orders() or has_lost(),
        ) as early:
            query_plan = QueryPlan(
                plan,
                task,
                topics,
                log.partitions,
                news,
                backfill=backfill,
                lacks_step=lacks_step,
                goes_on=plan.goes_on(len(log.partitions)),
                captured=self._captured_watch(),
                uncopied=self._listed(cluster, log.uncopied),
                begin=begin,
                aside=[topic for topic, aside in self._asides.by_topic().items() if not aside.is_read],
            )
            try:
                self._has_query = True
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
                self._has_query = False
                self._has_got_on = bool(keeper.reached)
        if early.failure is not None:
            raise early.failure
        if plan.once and not (early.ending.is_set() or self._stop.is_set()):
            self._asides.note_all_applied(lease)
        return early.ending.is_set() and not self._stop.is_set()

    def _begun(self, opened: OpenedSink, log: LogFacts, now_ms: int) -> Progress | None:
        """What a generation without progress has begun to read. Of a view it is never None.

        One shard of a view may have told how far it is before all have, so its progress begins like this.
        """
        plan, view = self._plan, self._plan.settings.view
        if view is None:
            return load_first_read(opened.records, plan.generation)
        has_begun = has_had_state(opened.records, plan.generation, tasks=view.tasks)
        before = load_first_read(opened.records, plan.generation) if has_begun else None
        return first_read(before, log.partitions, log.topic_ids, now_ms=now_ms)

    def _opened_lease(self) -> GenerationLease:
        """The job's lease, by a new connection: the password may be another one by now."""
        opened, before = self._plan.opened(), self._lease_sink
        try:
            require_in_use(opened.records, self._plan.name, self._plan.generation)
        except BaseException:
            opened.sink.close()
            raise
        self._lease_sink = opened
        if self._lease is None:
            self._lease = GenerationLease(opened, self._plan.generation, once=self._plan.once)
        else:
            self._lease.reopen(opened)
        if before is not None:
            before.sink.close()
        return self._lease

    def _look_at_captured(self) -> None:
        """See which tables the sink has by now. Raises as ``SinkPlan.captured``, and Unavailable for a view's."""
        plan = self._plan
        if plan.captured is None:
            return
        if not plan.takes_up:
            self._captured = Captured(self._tables, self._tables)
            return
        self._captured, before = plan.captured(), self._captured
        named = plan.settings.tables
        self._tables = self._captured.of(named)
        if plan.settings.view is not None:
            self._plan = replace(plan, tables=self._tables)
            for lacking in self._captured.lacks(named):
                raise Unavailable(
                    f"the view reads {lacking}, which isn't captured", hint="`lockstep doctor` says what it waits for"
                )
        if before is not None:
            joined = sorted(set(self._tables).difference(before.of(named)))
            left = sorted(set(before.of(named)).difference(self._tables))
            if joined or left:
                told = tuple(map(str, joined)), tuple(map(str, left))
                self._report(TablesChanged(plan.name, plan.generation, *told))

    def _captured_watch(self) -> CapturedWatch | None:
        plan = self._plan
        if plan.captured is None or self._captured is None:
            return None
        return CapturedWatch(plan.settings.tables, self._captured, plan.captured)

    def _obey(self, opened: OpenedSink, lease: GenerationLease) -> dict[TableName, Order]:
        """See which tables the next query reads. Returns the orders that say so."""
        plan = self._plan
        orders = self._asides.orders(lease)
        left = left_topics(opened.generations.load_progress())
        asides = self._asides.obey(
            orders,
            opened.records,
            lease,
            self._tables,
            left=[name for name in self._tables if self._topic(name) in left],
            uncaptured=() if self._captured is None else self._captured.lacks(plan.settings.tables),
        )
        self._plan = replace(plan, tables=read_tables(self._tables, asides))
        return orders

    def _listed(self, cluster: TopicAdmin, tables: Sequence[TableName]) -> list[str]:
        """The topics of these tables, as far as the brokers list them."""
        return list(cluster.partition_counts([self._topic(table) for table in tables]))

    def _topic(self, table: TableName) -> str:
        return table_topic(self._plan.pipeline, table)

    def _wait_for_orders(self, opened: OpenedSink, lease: GenerationLease, orders: Orders) -> bool:
        """Nothing is to be read: wait until something is. Whether another query is due.

        A sink none of whose tables is captured lacks nothing meanwhile, so its watermark goes on.

        Raises DataLost when the destination was put back.
        """
        plan, watch, keeper = self._plan, self._captured_watch(), self._keeper_of_none(opened, lease)
        self._asides.tell()
        if watch is not None:
            cluster = TopicAdmin(plan.kafka.client())
            cluster.create(cluster.missing(control_topic_plans(plan.pipeline, plan.kafka.topics)))
        progress = ProgressReader(plan.kafka.client(), plan.pipeline, [])
        unlearned: list[ProgressRecord] = []
        try:
            while not plan.once and not self._stop.wait(_ORDERS_LOOK_S):
                try:
                    lease.check()
                    if self._asides.orders(lease) != orders or is_any_due(self._asides.now):
                        return True
                    if watch is None:
                        continue
                    if not unlearned:  # else they would be lost, as the reader gives each of them once
                        unlearned = progress.new_records()
                    if watch.has_changed(unlearned):
                        return True
                    records, unlearned = unlearned, []
                    if keeper is not None:
                        self._tell_raised(keeper.learn(filter(watch.holds, records), selection=watch.selection))
                except DataLost:  # what was claimed and stored isn't there any more: to be begun anew
                    raise
                except Unavailable:
                    pass
        finally:
            progress.close()
        return False

    def _tell_raised(self, progress: Progress | None) -> None:
        plan = self._plan
        if progress is not None:
            position = progress.watermark_lsn, progress.commit_time_ms
            self._report(WatermarkRaised(plan.name, plan.generation, *position))

    def _keeper_of_none(self, opened: OpenedSink, lease: GenerationLease) -> ProgressKeeper | None:
        """The progress of a sink none of whose tables is captured.

        None where its watermark waits: for a table that is set aside, or behind a part of the log that was left out.
        """
        stored = opened.generations.load_progress()
        waits = self._tables or any(aside.holds_watermark for aside in self._asides.now.values())
        if stored is None or stored.skipped or waits:
            return None
        self._claim(opened, lease)
        stored, nothing = as_of_start(stored, {}, now_ms()), LogFacts({}, [], {}, {})
        begun = progress_at_start(self._plan.pipeline, nothing, stored, now_ms=now_ms())
        return ProgressKeeper(opened.generations, begun, nothing, sink=self._plan.name, check_claim=lease.check)

    def _has_orders(self, lease: GenerationLease, orders: Orders, noted: Noted, keeper: ProgressKeeper) -> bool:
        """Whether somebody has given another order than these, or a table that has failed is to be tried again.

        Else it notes which tables have caught up.
        """
        if self._asides.orders(lease) != orders or is_any_due(noted.asides):
            return True
        self._asides.note_caught_up(lease, noted, keeper)
        return False

    def _set_refused_aside(self, opened: OpenedSink, lease: GenerationLease) -> None:
        """Go on without the tables that the destination has refused. Raises SetAside; without others, their error.

        A destination that takes nothing doesn't take this either: then it is no matter of single tables.
        """
        refused, self._refused = self._refused, None
        if refused is None:
            return
        if not self._sets_aside(refused.errors) or opened.generations.load_progress() is None:
            raise LockstepError(refused.message, hint=refused.hint)
        # Where a table isn't there any more, that is why. One that was never made is no loss.
        known = self._known_identities(opened)
        lost = lost_of(opened, {name: known[name] for name in refused.errors if name in known})
        self._asides.fail(lease, {**refused.errors, **lost_rows(self._plan.name, lost)}, self._obeyed)

    def _claim(self, opened: OpenedSink, lease: GenerationLease) -> None:
        claim_and_keep(opened, self._plan.generation, lambda: lease.claim(opened.sink.claim))

    def _require_readable(
        self, opened: OpenedSink, cluster: TopicAdmin, lease: GenerationLease, orders: Orders
    ) -> None:
        """Raises SetAside where the job may not read the topics of some tables, and _Unreadable without any other."""
        errors = unreadable(self._plan, cluster)
        if not errors:
            return
        if self._sets_aside(errors) and opened.generations.load_progress() is not None:
            self._asides.fail(lease, errors, orders)
        error = next(iter(errors.values()))
        raise _Unreadable(error.message, hint=error.hint)

    def _row_plans(
        self, opened: OpenedSink, log: LogFacts, lease: GenerationLease, orders: Orders
    ) -> Mapping[TableName, RowPlan]:
        """What is evaluated of the tables' rows.

        Raises ConfigurationError where that can't be, and SetAside where it can be for other tables.
        """
        expressions = self._plan.settings.expressions()
        try:
            return row_plans(expressions, log.tables)
        except ConfigurationError:
            errors = unevaluated(expressions, log.tables)
            if (
                not self._plan.applies_steps
                and self._sets_aside(errors)
                and opened.generations.load_progress() is not None
            ):
                self._asides.fail(lease, errors, orders)
            raise

    def _set_lost_aside(self, cluster: TopicAdmin, lease: GenerationLease, orders: Orders) -> None:
        """Set those tables aside again that are tried again, or resumed, and whose topic is gone. Raises SetAside.

        The query would wait for it, and with it the sink's other tables. It would wait in vain: what the table lacks
        was in that topic.
        """
        again = [table for table, aside in self._asides.now.items() if aside.is_read]
        errors = without_topic(self._plan, cluster, again) if again else {}
        if errors:
            self._asides.fail(lease, errors, orders)

    def _sets_aside(self, errors: Mapping[TableName, LockstepError]) -> bool:
        """Whether a generation that is in use goes on without tables with such errors: others can be applied."""
        plan = self._plan
        return plan.go_live and plan.settings.view is None and self._asides.are_single(errors, plan.tables)

    def _check_resuming(
        self,
        cluster: TopicAdmin,
        log: LogFacts,
        progress: Progress | None,
        lease: GenerationLease,
        orders: Orders,
        *,
        ends: Offsets,
        now_ms: int,
    ) -> None:
        """Set those tables aside again whose topic has lost what they lack. Raises SetAside."""
        errors: dict[TableName, LockstepError] = {}
        begins = cluster.begin_offsets(log.partitions)
        for topic in self._asides.by_topic():
            facts = log.topics.get(topic)
            if facts is None:
                continue
            try:
                check_resume(
                    self._plan.name,
                    None if progress is None else _of_topic(progress, topic),
                    topics={topic: facts},
                    begins={at: begin for at, begin in begins.items() if at[0] == topic},
                    ends=ends,
                    now_ms=now_ms,
                )
            except PositionMismatch as error:
                errors[log.table_of[topic]] = error
        if errors:
            self._asides.fail(lease, errors, orders)

    def _still_there(
        self,
        opened: OpenedSink,
        tables: Collection[TableName],
        log: LogFacts,
        stored: Progress | None,
        lease: GenerationLease,
        orders: Orders,
    ) -> Identities:
        """By what those of the ``tables`` that have rows are known from now on, as far as the destination has them.

        Raises SetAside where somebody has removed single ones. Made anew they would lack what had been applied, and
        count as complete. Raises LockstepError where all are gone, or one of a generation that isn't to go on without.
        """
        if stored is None:
            return {}
        begun = self._begun_tables(tables, log, stored)
        now = identities_of(opened, begun)  # first: what is removed after this look is found by the next one
        known = self._known_identities(opened)
        errors = lost_rows(self._plan.name, lost_of(opened, known_of(known, begun)))
        if errors:
            if self._sets_aside(errors):
                self._asides.fail(lease, errors, orders)
            first = next(iter(errors.values()))
            raise NeedsRebuild("; ".join(error.message for error in errors.values()), hint=first.hint)
        return now

    def _begun_tables(self, tables: Collection[TableName], log: LogFacts, stored: Progress) -> list[TableName]:
        """The tables of which something was applied."""
        topics = {topic for at in (stored.next_offsets, stored.skipped) for (topic, _), offset in at.items() if offset}
        if self._plan.settings.view is not None:
            return list(tables) if topics & log.topics.keys() else []
        return [name for name in tables if self._topic(name) in topics]

    def _known_identities(self, opened: OpenedSink) -> Identities:
        """None in a bulk load: its end may make tables anew, and until then nobody reads them."""
        return {} if self._plan.bulk else load_identities(opened.records, self._plan.generation)

    def _keep_identities(
        self, opened: OpenedSink, tables: Collection[TableName], kept: Identities, lease: GenerationLease
    ) -> Identities:
        """Note by what the prepared ``tables`` are known. Those that were there before are ``kept`` as they were."""
        record, before = identities_name(self._plan.generation), load_identities(opened.records, self._plan.generation)
        if self._plan.bulk:
            if before:
                lease.save_record(record, None)
            return {}
        new = [name for name in tables if name not in kept]
        identities = {**kept, **identities_of(opened, new)}
        if before | identities != before:  # others may be set aside
            lease.save_record(record, dump_identities(before | identities))
        return identities

    def _prepare(
        self, opened: OpenedSink, log: LogFacts, lease: GenerationLease, orders: Orders, *, may_set_aside: bool
    ) -> tuple[Columns, AddedValues]:
        """Prepare the sink for the tables. Returns its columns, and the values that its rows still lack.

        Raises SetAside where some tables can't be prepared, and others can. A sink's first start has no rows of them,
        and nobody may have looked at the settings: it does so for those alone that the destination can't hold.
        """
        try:
            return self._prepare_all(opened, log, lease)
        except (Unavailable, Fenced):
            raise
        except TablesRefused as refused:
            if self._sets_aside(refused.errors):
                unfit = {name: self._unfit(error) for name, error in refused.errors.items()}
                self._asides.fail(lease, unfit, orders)
            raise
        except LockstepError:
            errors = self._unprepared(opened, log) if may_set_aside and self._plan.go_live else {}
            if not self._asides.are_single(errors, log.tables):
                raise
            self._asides.fail(lease, errors, orders)
            raise

    def _unfit(self, error: LockstepError) -> LockstepError:
        """Why the sink can't hold a table. The settings that may be mended for it are those of a new generation."""
        if error.hint is None or isinstance(error, NeedsRebuild):
            return error
        rebuild = f"`lockstep rebuild {self._plan.name} --switch`"
        return LockstepError(
            error.message, hint=f"{error.hint}, and run {rebuild}; or mend the table itself at the source"
        )

    def _unprepared(self, opened: OpenedSink, log: LogFacts) -> dict[TableName, LockstepError]:
        """Which of the tables can't be prepared by themselves, and why."""
        known = load_columns(opened.records, self._plan.generation)
        projection = projection_of(self._plan.settings)
        errors: dict[TableName, LockstepError] = {}
        for name, table in log.tables.items():
            try:
                added = next_columns(known, [table], log.records, projection=projection, has_rows=True).lacking
                opened.sink.prepare([stored_table(table)], go_live=False, added=added)
            except (Unavailable, Fenced):
                raise
            except LockstepError as error:
                errors[name] = error
        return errors

    def _prepare_all(self, opened: OpenedSink, log: LogFacts, lease: GenerationLease) -> tuple[Columns, AddedValues]:
        plan = self._plan
        known = load_columns(opened.records, plan.generation)
        has_rows = plan.generation in opened.generations.numbers()
        projection = projection_of(plan.settings)
        columns = next_columns(known, log.tables.values(), log.records, projection=projection, has_rows=has_rows)
        self._lacking_aside = (
            {}
            if known is None
            else {table: values for table, values in known.lacking.items() if table not in log.tables}
        )
        kept = _with_lacking(columns, self._lacking_aside)
        if kept != known:
            save_columns(opened.records, plan.generation, kept)
        if columns.lacking and has_rows:
            # Where the destination can refuse another writer: no row of the earlier shape comes in after this.
            self._claim(opened, lease)
        lacking = opened.sink.prepare(
            list(map(stored_table, log.tables.values())), go_live=plan.go_live, added=columns.lacking
        )
        return columns, lacking

    def _backfill(self, log: LogFacts, columns: Columns, lacking: AddedValues, fence: int, gate: BatchGate) -> bool:
        """Give the rows that lack a column what the source shows in it. False when the gate was closed before."""
        plan = self._plan
        opened = plan.opened()  # for a thread of its own
        try:
            left = backfill_tables(
                opened.sink,
                log.tables,
                columns,
                lacking,
                fence=fence,
                gate=gate,
                report=BackfillReporter(plan.name, plan.generation, self._report),
            )
            if left is not None:
                save_columns(opened.records, plan.generation, _with_lacking(left, self._lacking_aside))
        finally:
            opened.sink.close()
        return left is not None

    def _check_resume(
        self, cluster: TopicAdmin, log: LogFacts, progress: Progress | None, *, ends: Offsets, now_ms: int
    ) -> int:
        """The epoch of the log that the sink may go on with. What it reads from now on is of that one, or a newer."""
        begins = {} if self._plan.trimmed else cluster.begin_offsets(log.partitions)
        check_resume(self._plan.name, progress, topics=log.topics, begins=begins, ends=ends, now_ms=now_ms)
        newest = self._newest_epoch()
        if progress is not None and newest > known_epoch(progress):
            records = read_progress(self._plan.kafka.client(), self._plan.pipeline)
            check_epochs(self._plan.name, progress, records)
        return newest

    def _newest_epoch(self) -> int:
        """Of the log, 0 where nothing is known of that."""
        with closing(ProgressReader(self._plan.kafka.client(), self._plan.pipeline, [])) as reader:
            return max((record.epoch for record in reader.new_records()), default=0)

    def _view_input(self, view: PlannedView | None, log: LogFacts, reached: Offsets) -> ViewInput | None:
        plan, view_settings = self._plan, self._plan.settings.view
        if view is None or view_settings is None:
            return None
        return ViewInput(
            view.plan,
            view.table,
            str(state_directory(plan.spark, pipeline=plan.pipeline, sink=plan.name, generation=plan.generation)),
            control_topic(plan.pipeline, PROGRESS),
            plan.pipeline,
            reached=reached,
            log=repr(sorted((topic, facts.topic_id, facts.partitions) for topic, facts in log.topics.items())),
            trimmed=plan.trimmed,
            result_topic=self._view_topic(view),
            shards=() if view.sharding is None else tuple(shards(view.sharding, view_settings.tasks)),
        )

    def _steps_input(self, reached: Offsets) -> StepsInput | None:
        plan = self._plan
        if not plan.applies_steps:
            return None
        return StepsInput(control_topic(plan.pipeline, PROGRESS), plan.pipeline, reached)

    def _view_topic(self, view: PlannedView) -> ViewTopicInput | None:
        """The topic of the view's rows, created where it isn't there; None where none is asked for."""
        plan = self._plan
        if not plan.settings.topic:
            return None
        topic = view_topic(plan.pipeline, plan.name, plan.generation)
        cluster = TopicAdmin(plan.kafka.client())
        topics = view_topic_plans(plan.pipeline, topic, plan.kafka.topics)
        cluster.create(cluster.missing(topics))
        for each in topics:
            check_kept(cluster, each, plan.kafka.bootstrap_servers)
        return ViewTopicInput(plan.pipeline, plan.name, plan.generation, topic, plan.kafka.topics.max_message_bytes)

    def _task(
        self,
        log: LogFacts,
        computed: Mapping[TableName, RowPlan],
        *,
        fence: int,
        view: ViewInput | None = None,
        steps: StepsInput | None = None,
        server: str | None = None,
        identities: Identities,
    ) -> Task:
        plan = self._plan
        return Task(
            sink=plan.name,
            settings=plan.settings,
            generation=plan.generation,
            fence=fence,
            tables=log.table_of,
            shapes=log.tables,
            window_bytes=plan.window_bytes,
            histories=log.histories,
            known_ends=log.known_ends,
            computed=computed,
            versions=history_tables(plan.settings, [name for name, table in log.tables.items() if table.key]),
            compaction_lag_ms=log.compaction_lag_ms,
            retry_s=plan.spark.retry_s,
            run=uuid.uuid4().hex,
            client=portable_client(plan.kafka),
            open=plan.open,
            view=view,
            steps=steps,
            server=server,
            identities=identities,
        )

    def _have_shapes_changed(self) -> bool:
        """Whether the log has a shape of a table that the sink wasn't prepared for. Waits until it can tell."""
        known, self._known_shapes = self._known_shapes, ()  # the next failure without a new preparation is final
        return bool(known) and self._answered(partial(have_shapes_changed, self._plan, known))

    def _has_lost_rights(self) -> bool:
        """Whether the job may not read the topics of some tables any more, and goes on without them."""
        plan = self._plan
        if len(plan.tables) < 2 and not any(table in self._asides.now for table in plan.tables):
            return False  # it could be no matter of single tables
        return self._answered(lambda: self._sets_aside(unreadable(plan, TopicAdmin(plan.kafka.client()))))

    def _answered(self, question: Callable[[], bool]) -> bool:
        """What the answer is, once a server gives it. False when told to stop before."""
        backoff = Backoff()
        while not self._stop.is_set():
            try:
                return question()
            except Unavailable as error:
                self._wait(error, backoff)
        return False


def _of_topic(progress: Progress, topic: str) -> Progress:
    """What it says of this topic."""
    return replace(
        progress,
        next_offsets={at: offset for at, offset in progress.next_offsets.items() if at[0] == topic},
        skipped={at: offset for at, offset in progress.skipped.items() if at[0] == topic},
        reads_again={at: offset for at, offset in progress.reads_again.items() if at[0] == topic},
    )


def _with_lacking(columns: Columns, aside: AddedValues) -> Columns:
    """The same with what rows of other tables lack, which nobody fills now."""
    return replace(columns, lacking={**columns.lacking, **aside})
