"""Whether a query may go on with the log: it can read it, it is the same log, and nothing that comes next is lost."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace

from cdc.kafka.control_topics import ProgressReader, read_progress
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import ConfigurationError, LockstepError, PositionMismatch
from cdc.model.table import TableName
from jobs.generations.held_tables import Orders
from jobs.generations.lease import GenerationLease
from jobs.offsets import Offsets
from jobs.query.log_facts import LogFacts, unreadable, without_topic
from jobs.query.resume_check import check_epochs, check_resume, known_epoch
from jobs.query.row_plan import row_plans as planned_rows
from jobs.query.row_plan import unevaluated
from jobs.query.sink_tables import SinkTables
from sinks.contract import OpenedSink, Progress
from views.plan import RowPlan


class Unreadable(LockstepError):
    """The job may not read what it can't go on without."""


class LogStart:
    """Checks before a query begins. If single tables are to blame, they are held."""

    def __init__(
        self, tables: SinkTables, opened: OpenedSink, lease: GenerationLease, orders: Orders, cluster: TopicAdmin
    ) -> None:
        """``orders`` are those that the query obeys."""
        self._plan = tables.plan
        self._tables = tables
        self._opened = opened
        self._lease = lease
        self._orders = orders
        self._cluster = cluster

    def require_readable(self) -> None:
        """Raises NewlyHeld if the job may not read the topics of some tables, and Unreadable if no others are left."""
        errors = unreadable(self._plan, self._cluster)
        if not errors:
            return
        if self._tables.go_on_without(errors) and self._opened.generations.load_progress() is not None:
            self._tables.held.fail(self._lease, errors, self._orders)
        error = next(iter(errors.values()))
        raise Unreadable(error.message, hint=error.hint)

    def row_plans(self, log: LogFacts) -> Mapping[TableName, RowPlan]:
        """What to evaluate of the tables' rows. Raises ConfigurationError if that is impossible, and NewlyHeld if it is
        possible for other tables."""
        expressions = self._plan.settings.expressions()
        try:
            return planned_rows(expressions, log.tables)
        except ConfigurationError:
            errors = unevaluated(expressions, log.tables)
            if (
                not self._plan.applies_steps
                and self._tables.go_on_without(errors)
                and self._opened.generations.load_progress() is not None
            ):
                self._tables.held.fail(self._lease, errors, self._orders)
            raise

    def hold_lost(self) -> None:
        """Hold tables again that are retried or resumed, and whose topic is gone. Raises NewlyHeld. Otherwise the
        query and the sink's other tables would wait for the topic, in vain: what the table lacks was in it."""
        again = [table for table, held in self._tables.held.now.items() if held.is_read]
        errors = without_topic(self._plan, self._cluster, again) if again else {}
        if errors:
            self._tables.held.fail(self._lease, errors, self._orders)

    def check_resuming(
        self,
        log: LogFacts,
        progress: Progress | None,
        *,
        ends: Offsets,
        now_ms: int,
    ) -> None:
        """Hold tables again whose topic has lost what they lack. Raises NewlyHeld."""
        errors: dict[TableName, LockstepError] = {}
        begins = self._cluster.begin_offsets(log.partitions)
        for topic in self._tables.held.by_topic():
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
            self._tables.held.fail(self._lease, errors, self._orders)

    def epoch_to_go_on_with(self, log: LogFacts, progress: Progress | None, *, ends: Offsets, now_ms: int) -> int:
        """The epoch of the log that the sink may go on with: everything that it reads from now on is as new, or
        newer."""
        begins = {} if self._plan.trimmed else self._cluster.begin_offsets(log.partitions)
        check_resume(self._plan.name, progress, topics=log.topics, begins=begins, ends=ends, now_ms=now_ms)
        newest = self._newest_epoch()
        if progress is not None and newest > known_epoch(progress):
            records = read_progress(self._plan.kafka.client(), self._plan.pipeline)
            check_epochs(self._plan.name, progress, records)
        return newest

    def _newest_epoch(self) -> int:
        """The log's newest epoch; 0 if unknown."""
        with closing(ProgressReader(self._plan.kafka.client(), self._plan.pipeline, [])) as reader:
            return max((record.epoch for record in reader.new_records()), default=0)


def _of_topic(progress: Progress, topic: str) -> Progress:
    """The progress of this topic alone."""
    return replace(
        progress,
        next_offsets={at: offset for at, offset in progress.next_offsets.items() if at[0] == topic},
        skipped={at: offset for at, offset in progress.skipped.items() if at[0] == topic},
        reads_again={at: offset for at, offset in progress.reads_again.items() if at[0] == topic},
    )
