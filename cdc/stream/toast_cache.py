"""The local store of large values, beside the published log."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from cdc.capture.published_table import PublishedTable
from cdc.event_format.decode import tag_of
from cdc.kafka.control_topics import read_shapes
from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.kafka.topic_reader import TopicReader
from cdc.model.tag import SNAPSHOT_SEQ, tag_prefix, tag_text
from cdc.pipeline_settings import Pipeline
from cdc.protocol.control_records import CaptureState
from cdc.toast.catch_up import catch_up
from cdc.toast.store import ToastStore

_NO_TAGS: Final[Mapping[str, bytes]] = {}


class ToastCache:
    """Opens the store as of a state, and fills it from the topics. A recreated store stays empty. A table's topic is
    read when the first update leaves out a value that the store lacks, so tables without such updates cost nothing.
    After a crash the store may lack what Kafka has; then it reads on from its position."""

    def __init__(
        self,
        pipeline: Pipeline,
        log: TopicReader,
        state: CaptureState,
        published: Collection[PublishedTable],
        say: Callable[[str], None],
    ) -> None:
        self._pipeline = pipeline
        self._client = pipeline.kafka.client()
        self._log = log
        self._say = say
        self._topics = list(pipeline.topics().values())
        ids = TopicAdmin(self._client).topic_ids(self._topics)
        self.store = ToastStore(
            pipeline.values_directory / pipeline.slot,
            # After a recovery its rows belong to a server that isn't captured any more.
            identity=f"{pipeline.name} {pipeline.slot} {sorted(ids.items())}{f' {state.epoch}' if state.epoch else ''}",
            say=say,
        )
        for table in published:
            if table.toast is None:  # a process that died may have published rows that the store lacks
                self.store.clear(table.topic)
        position = (state.commit_lsn, state.seq)
        stored = self.store.position()
        if stored is None and not self.store.offsets():
            self._begin(position)
        elif stored is not None and stored > position:
            # Kafka has lost what it had committed: the store knows values of changes that are still to come.
            self.store.empty()
            self._begin(position)
        elif stored != position:
            self._fill(published, position, self.store.offsets(), since=_since(pipeline, state))

    def reload(self, table: PublishedTable, position: tuple[int, int]) -> None:
        """Read one table's values again from its topic's start, up to ``position``, that of the last committed change.
        Raises Unavailable if Kafka doesn't answer, LockstepError for a record that isn't an event, and what the store
        raises."""
        if table.toast is not None:
            self.store.clear(table.topic)
            self._fill([table], position, {})

    def close(self) -> None:
        self.store.close()

    def _begin(self, position: tuple[int, int]) -> None:
        """Begin with an empty store at this position."""
        cluster = TopicAdmin(self._client)
        partitions = partitions_of(self._topics, cluster.partition_counts(self._topics))
        self.store.commit(position, cluster.end_offsets(partitions))

    def _fill(
        self,
        tables: Collection[PublishedTable],
        position: tuple[int, int],
        offsets: Mapping[tuple[str, int], int],
        *,
        since: Mapping[str, bytes] = _NO_TAGS,
    ) -> None:
        """Bring the store up to ``position`` from the tables' topics, from ``offsets`` on. From topics in ``since``,
        only events with at least that tag are used."""
        rules = {shape.topic: shape.toast for shape in tables if shape.toast is not None}
        newest = {shape.topic: shape.table for shape in tables}

        def records() -> Iterator[tuple[str, int, int, bytes, bytes | None]]:
            for topic in rules:
                start = {partition: offset for (name, partition), offset in offsets.items() if name == topic}
                oldest = since.get(topic, b"")
                for record in self._log.records(topic, start):
                    if record.value is not None and tag_of(record.value) < oldest:
                        continue
                    yield topic, record.partition, record.offset, record.key, record.value

        shapes = read_shapes(self._client, self._pipeline.name)
        count = catch_up(records(), self.store, rules, tables=newest, shapes=shapes)
        self.store.commit(position)
        if count:
            self._say(f"read {count} events for the values that updates leave out")


def _since(pipeline: Pipeline, state: CaptureState) -> dict[str, bytes]:
    """Topics of tables being copied -> the tag of the copy's beginning: older values may be wrong."""
    return {
        topic: tag_text(tag_prefix(state.epoch, state.copying[name].since), SNAPSHOT_SEQ)
        for name, topic in pipeline.topics().items()
        if name in state.copying and state.copying[name].has_begun
    }
