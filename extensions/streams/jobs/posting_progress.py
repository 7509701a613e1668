"""How far the rows of each build are posted, in the coordination records beside the result."""

import time
import uuid
from contextlib import suppress

from cdc.kafka.topic_admin import TopicAdmin
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.posted import Posted, going_on, kept_back
from extensions.streams.jobs.records import POSTER, posted_name
from extensions.streams.topic_names import stream_result_topic
from jobs.clock import now_ms
from jobs.generations.lease import GenerationLease
from jobs.generations.record import Phase, Record, record_name

SAVE_EVERY_S = 1.0
"""How often progress is stored while rows go through."""


class Replaced(Exception): ...


class PostingProgress:
    """The progress of one job. Only the thread that posts may use it, except ``has_posted``."""

    def __init__(self, plan: StreamQueryPlan, lease: GenerationLease) -> None:
        self._plan = plan
        self._lease = lease
        self._cluster = TopicAdmin(plan.kafka.client())
        self._known: dict[int, Posted] = {}
        self._saved_at = 0.0
        self._run = uuid.uuid4().hex
        self._has_begun = False

    def begin(self) -> None:
        """Become the job that posts, before reading the progress: from then on no other job stores any."""
        if not self._has_begun:
            self._lease.save_record(POSTER, self._run)
            self._has_begun = True

    def topic(self, generation: int) -> str:
        return stream_result_topic(self._plan.pipeline, self._plan.name, generation)

    def found(self, generation: int) -> tuple[Posted, str]:
        """As ``going_on``, with what the brokers say now."""
        known = self._known.get(generation) or Posted.parse(self._lease.record(posted_name(generation)))
        return self._going_on(self.topic(generation), known)

    def has_posted(self, generation: int) -> bool:
        """Whether the receiver has all rows of a build that gets no more. Raises what store and brokers raise."""
        known = Posted.parse(self._lease.record(posted_name(generation)))
        at, lost = self._going_on(self.topic(generation), known)
        # The posting thread reports losses, and records that it did.
        return not lost and not at.waiting

    def is_given_up(self, generation: int) -> bool:
        """Whether a build is being dropped with its topic, so that nobody waits for its rows."""
        record = self._lease.record(record_name(generation))
        return record is not None and Record.from_json(record).phase is Phase.RETIRED

    def remember(self, generation: int, at: Posted) -> None:
        self._known[generation] = at

    def note(self, generation: int, at: Posted, *, at_once: bool) -> None:
        """Remember the progress, and store it now and then. Raises Replaced, and what the lease raises."""
        self.remember(generation, at)
        if at_once or time.monotonic() - self._saved_at > SAVE_EVERY_S:
            self.save(generation, at)

    def save(self, generation: int, at: Posted) -> None:
        """Store the progress. Raises as ``note``."""
        self.remember(generation, at)
        self.check_alone(self._lease.record(POSTER))
        self._lease.save_record(posted_name(generation), at.text())
        self._saved_at = time.monotonic()

    def keep_reason(self, generation: int, reason: str) -> None:
        """Store why nothing gets through, if the store answers; the log has the reason anyway."""
        with suppress(Exception):  # the error to report is the earlier one
            if self.is_given_up(generation):  # its records are being deleted, and must not come back
                return
            known = self._known.get(generation) or Posted.parse(self._lease.record(posted_name(generation)))
            self.save(generation, kept_back(known, reason, now_ms=now_ms()))

    def check_alone(self, poster: str | None) -> None:
        """Raise Replaced if another job has begun to post since. A store that was put back may lack the record."""
        if poster not in (None, self._run):
            raise Replaced

    def _going_on(self, topic: str, known: Posted) -> tuple[Posted, str]:
        if not self._cluster.exists(topic):
            return going_on(known, topic_id=None, begin=0, end=0)
        at = topic, 0
        topic_id = self._cluster.topic_ids([topic])[topic]
        begin, end = self._cluster.begin_offsets([at])[at], self._cluster.end_offsets([at])[at]
        return going_on(known, topic_id=topic_id, begin=begin, end=end)
