"""What Kafka says of the pipeline."""

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from cdc.kafka.control_topics import ProgressReader, read_state
from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.kafka.topic_names import STATE, control_topic
from cdc.pipeline_settings import Pipeline
from cdc.protocol.control_records import CaptureState, ProgressRecord, SnapshotPhase
from monitor.background_question import Asking
from monitor.open_rejections import OpenRejections

_STATE_EVERY_S = 3.0
"""How often to read the state while a table lacks its copy: its topic has a record for each range of a first copy."""

_TABLES_EVERY_S = 10.0
"""How often to look up the captured tables, if nothing reports changes: that reads capture's state."""

Topics = Callable[[Pipeline], Collection[str]]
"""The topics to read, given the pipeline with its present tables."""


@dataclass(frozen=True, slots=True)
class OfKafka:
    """What Kafka says in one look."""

    published: ProgressRecord | None
    ends: Mapping[tuple[str, int], int]
    open_rejections: Mapping[tuple[str, int], int]
    copying: CaptureState | None
    """At most a few seconds old; None if no table lacks its copy."""


class KafkaLook:
    """Looks at Kafka repeatedly, until it is closed. ``pipeline`` has the tables of the last look. Until one has found
    them, its patterns are unresolved."""

    def __init__(self, pipeline: Pipeline, resolve: Callable[[Pipeline], Pipeline]) -> None:
        self._configured = pipeline
        self._resolve = resolve
        self._resolved_at = -math.inf
        self._resolved_for = ""
        self.pipeline = pipeline
        self._cluster = TopicAdmin(pipeline.kafka.client())
        self._progress: ProgressReader | None = None
        # The newest record known, even if Kafka is silent now.
        self.published: ProgressRecord | None = None
        self.rejections = OpenRejections(pipeline, self._cluster)
        # Capture's state, and the epoch in which it needn't be read again.
        self._state_of: int | None = None
        self.state: CaptureState | None = None
        self._copying: tuple[float, CaptureState | None] = -math.inf, None
        # Where partitions last ended.
        self.ends: dict[tuple[str, int], int] = {}
        self._asking = Asking[OfKafka]()

    def ask(self, topics: Topics, *, is_slot_lost: bool) -> OfKafka:
        """What Kafka says. Raises Unavailable if it can't be asked, LockstepError if it refuses."""
        server = f"Kafka at {self.pipeline.kafka.bootstrap_servers}"
        return self._asking.ask(partial(self._look, topics, is_slot_lost=is_slot_lost), server)

    def _look(self, topics: Topics, *, is_slot_lost: bool) -> OfKafka:
        self._look_for_tables()
        published = self._newest_progress()
        ends = self._topic_ends(topics(self.pipeline))
        counts = self.rejections.counts()
        self._look_at_state(published, is_slot_lost=is_slot_lost)
        return OfKafka(published, ends, counts, self._while_copying(published))

    def _look_at_state(self, newest: ProgressRecord | None, *, is_slot_lost: bool) -> None:
        """Read capture's state once in each epoch, and while the slot is lost. Otherwise no gap can appear, and the
        source can't become another server."""
        if newest is not None and (is_slot_lost or self._state_of != newest.epoch):
            pipeline = self.pipeline
            state = read_state(pipeline.kafka.client(), pipeline.name, pipeline.slot)
            is_settled = state is not None and state.epoch == newest.epoch and state.phase is SnapshotPhase.DONE
            self._state_of, self.state = (newest.epoch if is_settled else None), state
            self._copying = time.monotonic(), state

    def _while_copying(self, newest: ProgressRecord | None) -> CaptureState | None:
        """The state, at most a few seconds old, while a configured table lacks its copy; else None."""
        pipeline = self.pipeline
        if newest is not None and not set(newest.uncopied) & set(pipeline.topics().values()):
            return None
        read_s, state = self._copying
        if time.monotonic() - read_s > _STATE_EVERY_S:
            state = None
            if newest is not None or self._cluster.exists(control_topic(pipeline.name, STATE)):
                state = read_state(pipeline.kafka.client(), pipeline.name, pipeline.slot)
            self._copying = time.monotonic(), state
        return state

    def _look_for_tables(self) -> None:
        """Look up the captured tables now and then. Raises as ``resolve``. If all are named, they can only change after
        a progress record says so."""
        selection = "" if self.published is None else self.published.selection
        is_known = self.published is not None and self._configured.source.is_resolved
        is_other = selection not in ("", self._resolved_for)
        if not is_other and (time.monotonic() - self._resolved_at < (math.inf if is_known else _TABLES_EVERY_S)):
            return
        found = self._resolve(self._configured)
        self._resolved_at, self._resolved_for = time.monotonic(), selection
        if self.pipeline.source.is_resolved and found.source.table_names == self.pipeline.source.table_names:
            return
        self.pipeline = found
        if self._progress is not None:  # it follows the progress of the old tables
            self._progress.close()
            self._progress = None

    def _newest_progress(self) -> ProgressRecord | None:
        if self._progress is None:
            name = self.pipeline.name
            topics = tuple(self.pipeline.topics().values())
            if not set(topics) <= self._cluster.partition_counts(topics, must_see=True).keys():
                return None  # capture has never run
            self._progress = ProgressReader(self.pipeline.kafka.client(), name, topics)
        for record in self._progress.new_records():
            self.published = record
        return self.published

    def _topic_ends(self, topics: Collection[str]) -> Mapping[tuple[str, int], int]:
        """Where the partitions of these topics end, without topics that the brokers don't list."""
        read = list(dict.fromkeys(topics))
        if not read:
            return {}
        counts = self._cluster.partition_counts(read)
        ends = self._cluster.end_offsets(partitions_of([topic for topic in read if topic in counts], counts))
        self.ends |= ends
        return ends

    def close(self) -> None:
        if not self._asking.is_open and self._progress is not None:  # otherwise it ends with the process
            self._progress.close()
