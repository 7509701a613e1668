"""How a run of a stream query begins: its topics exist, and match what its result was begun with."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from cdc.kafka.topic_admin import TopicAdmin, TopicPlan, partitions_of
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.log_message import LogMessage
from extensions.streams.executor.topics import check_topic_ids
from extensions.streams.jobs.builds import Builds
from extensions.streams.jobs.checkpoint import Checkpoint
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.records import begun_name, waiting_name
from extensions.streams.jobs.resume import (
    Begun,
    check_definition,
    check_new_topic,
    check_state_form,
    load_figures,
    unfinished_batch,
)
from extensions.streams.settings import StreamSettings
from jobs.ending_thread import LOOK_S
from jobs.generations.lease import GenerationLease
from jobs.report import Reporter, SinkWaiting
from sinks.contract import CoordinationRecords

logger = logging.getLogger("lockstep.streams")

_TICK_S: Final = 0.2

_RECORD_BYTES: Final = "max.message.bytes"


class Beginning:
    def __init__(
        self,
        plan: StreamQueryPlan,
        lease: GenerationLease,
        records: CoordinationRecords,
        generation: int,
        builds: Builds,
        *,
        cluster: TopicAdmin,
    ) -> None:
        self._plan = plan
        self._lease = lease
        self._records = records
        self._generation = generation
        self._builds = builds
        self._cluster = cluster

    def await_topics(
        self, streams: Mapping[str, StreamSettings], *, stop: threading.Event, report: Reporter
    ) -> bool | None:
        """Wait for the topics of these streams, and record for observers which one is missing. Returns None once all
        exist, otherwise whether another run is due. Raises LockstepError if one is missing for a job that ends by
        itself (``once``), and what the lease raises.
        """
        look_at, told = 0.0, None
        while True:
            if time.monotonic() >= look_at:
                topics = [stream.topic for stream in streams.values()]
                counts = self._cluster.partition_counts(topics, must_see=True)
                lacking = lacking_topic(self._plan.name, streams, counts)
                if lacking is not None and self._plan.once:
                    raise lacking
                reason = None if lacking is None else f"{lacking.message}: {lacking.hint}"
                if reason != told or reason is None:
                    self._note_waiting(reason)
                if reason is None:
                    return None
                if reason != told:
                    report(SinkWaiting(self._plan.name, reason, LOOK_S))
                told = reason
                if self._builds.has_other():
                    return True
                look_at = time.monotonic() + LOOK_S
            if stop.wait(_TICK_S):
                return False
            self._lease.heartbeat()

    def _note_waiting(self, reason: str | None) -> None:
        name = waiting_name(self._generation)
        if self._lease.record(name) != reason:
            self._lease.save_record(name, reason)

    def begun(
        self,
        streams: Mapping[str, StreamSettings],
        result_topic: TopicPlan | None,
        checkpoint_of: Callable[[int], Checkpoint],
    ) -> Begun:
        """What the result was begun with; recorded now for a new result. Raises LockstepError if it doesn't match."""
        records, name = self._records, begun_name(self._generation)
        topics = sorted(stream.topic for stream in streams.values())
        counts = self._cluster.partition_counts(topics, must_see=True)
        own = [] if result_topic is None else [result_topic.name]
        topic_ids, definition = self._cluster.topic_ids([*topics, *own]), self._plan.definition(streams)
        text = records.load(name)
        if text is None:
            for topic in own:
                check_new_topic(self._plan.name, topic, end=self._cluster.end_offsets([(topic, 0)])[topic, 0])
            self._report_unfinished(checkpoint_of)
            start = self._cluster.begin_offsets(partitions_of(topics, counts))
            begun = Begun(definition, topic_ids, start, self._plan.state_form)
            records.save(name, begun.text())
            return begun
        begun = Begun.parse(text)
        check_definition(self._plan.name, begun, definition)
        check_state_form(self._plan.name, begun, form=self._plan.state_form)
        check_topic_ids(self._plan.name, begun.topic_ids, topic_ids)
        # If nothing was read yet, Spark needs an offset of new partitions too.
        joined = dict.fromkeys(partitions_of(topics, counts), 0)
        return replace(begun, start={**joined, **begun.start})

    def _report_unfinished(self, checkpoint_of: Callable[[int], Checkpoint]) -> None:
        """Log which earlier builds, whose rows are posted before this one's, have a batch that nobody will finish."""
        if self._plan.query.webhook is None:
            return
        for number in self._builds.look_shown():
            figures = load_figures(self._records.load, number)
            planned = checkpoint_of(number).newest_planned()
            if (batch := unfinished_batch(figures, planned=planned)) is not None:
                subject: Mapping[str, str | int] = {
                    "stream_query": self._plan.name,
                    "generation": number,
                    "batch": batch,
                }
                why = "its rows come from the new build, as far as the topics still have their events"
                logger.warning(LogMessage("a batch of the build before isn't finished", subject, why))


def record_bytes_max(cluster: TopicAdmin, plan: TopicPlan) -> int:
    """The largest record of a topic. It is altered to the planned size; if refused, the topic's own limit counts."""
    wanted = int(plan.config[_RECORD_BYTES])
    known = int(cluster.configs([plan.name])[plan.name][_RECORD_BYTES])
    if known >= wanted:
        return wanted
    try:
        cluster.change_config(plan.name, {_RECORD_BYTES: str(wanted)})
    except Unavailable:
        raise
    except LockstepError as refused:
        subject: Mapping[str, str | int] = {"topic": plan.name, "takes": known, "wanted": wanted}
        logger.warning(LogMessage("topic takes smaller records than the settings say", subject, str(refused)))
        return known
    return wanted


def lacking_topic(query: str, streams: Mapping[str, StreamSettings], topics: Collection[str]) -> LockstepError | None:
    """The error if Kafka lacks a topic of a query's streams; None if it has them all. Pure."""
    for name, stream in sorted(streams.items()):
        if stream.topic not in topics:
            return LockstepError(
                f"topic {stream.topic}, which stream query {query!r} reads as {name}, doesn't exist",
                hint=f"create it, or mend streams.{name}.topic",
            )
    return None
