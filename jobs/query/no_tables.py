"""A sink's job while none of its tables is read: it waits until one is."""

import threading
from typing import Final

from cdc.kafka.control_topics import ProgressReader
from cdc.kafka.topic_admin import TopicAdmin, control_topic_plans
from cdc.model.errors import DataLost, Unavailable
from cdc.protocol.control_records import ProgressRecord
from jobs.clock import now_ms
from jobs.generations.held_tables import Orders
from jobs.generations.lease import GenerationLease
from jobs.query.consistency import claim_and_keep
from jobs.query.held_tables import is_any_due
from jobs.query.log_facts import LogFacts
from jobs.query.progress import ProgressKeeper
from jobs.query.progress_at_start import as_of_start, progress_at_start
from jobs.query.sink_tables import SinkTables
from jobs.report import Reporter, WatermarkRaised
from sinks.contract import OpenedSink, Progress

ORDERS_LOOK_S: Final = 1.0
"""How often a job that reads nothing looks for new orders."""


def wait_for_tables(
    tables: SinkTables,
    opened: OpenedSink,
    lease: GenerationLease,
    orders: Orders,
    stop: threading.Event,
    report: Reporter,
) -> bool:
    """Wait until there is a table to read. Returns whether another query is due. If none of the sink's tables is
    captured, it lacks nothing meanwhile and its watermark goes on. Raises DataLost if the destination was put back."""
    plan, watch, keeper = tables.plan, tables.watch(), keeper_of_none(tables, opened, lease)
    tables.held.report()
    if watch is not None:
        cluster = TopicAdmin(plan.kafka.client())
        cluster.create(cluster.missing(control_topic_plans(plan.pipeline, plan.kafka.topics)))
    progress = ProgressReader(plan.kafka.client(), plan.pipeline, [])
    unlearned: list[ProgressRecord] = []
    try:
        while not plan.once and not stop.wait(ORDERS_LOOK_S):
            try:
                lease.check()
                if tables.held.orders(lease) != orders or is_any_due(tables.held.now):
                    return True
                if watch is None:
                    continue
                if not unlearned:  # the reader gives each record once, so those left over must not be lost
                    unlearned = progress.new_records()
                if watch.has_changed(unlearned):
                    return True
                records, unlearned = unlearned, []
                if keeper is not None:
                    raised = keeper.learn(filter(watch.holds, records), selection=watch.selection)
                    _report(raised, plan.name, plan.generation, report)
            except DataLost:  # the claim and what was stored are gone: begin anew
                raise
            except Unavailable:
                pass
    finally:
        progress.close()
    return False


def _report(progress: Progress | None, sink: str, generation: int, report: Reporter) -> None:
    if progress is not None:
        report(WatermarkRaised(sink, generation, progress.watermark_lsn, progress.commit_time_ms))


def keeper_of_none(tables: SinkTables, opened: OpenedSink, lease: GenerationLease) -> ProgressKeeper | None:
    """The progress of a sink none of whose tables is captured. None if its watermark waits for a table that is set
    held, or for a part of the log that was left out."""
    plan, stored = tables.plan, opened.generations.load_progress()
    waits = tables.all or any(held.holds_watermark for held in tables.held.now.values())
    if stored is None or stored.skipped or waits:
        return None
    claim_and_keep(opened, plan.generation, lambda: lease.claim(opened.sink.claim))
    stored, nothing = as_of_start(stored, {}, now_ms()), LogFacts({}, [], {}, {})
    begun = progress_at_start(plan.pipeline, nothing, stored, now_ms=now_ms())
    return ProgressKeeper(opened.generations, begun, nothing, sink=plan.name, check_claim=lease.check)
