"""What defines one capture: the pipeline's name, the captured database, the brokers, and the size of a batch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from cdc.capture.batch_size import COPY_BATCH, STREAM_BATCH, BatchSize
from cdc.capture.settings import CaptureSettings, SnapshotSettings
from cdc.kafka.settings import KafkaSettings
from cdc.kafka.topic_names import table_topic
from cdc.model.table import TableName
from cdc.postgres.settings import SourceSettings

_PROGRESS_AWAITED_MS: Final = 20
_PROGRESS_MS: Final = 100
"""A record costs the brokers about as much as a small transaction, and without views nobody waits for it."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One slot of one database, and the topics that its changes go to. ``name`` is the prefix of all topics."""

    name: str
    source: SourceSettings
    kafka: KafkaSettings
    capture: CaptureSettings
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    values_directory: Path = Path(".lockstep/values")
    """Where large values are stored that updates leave out. It may be lost, since the topics hold everything."""
    batch: BatchSize = STREAM_BATCH
    copy_batch: BatchSize = COPY_BATCH
    """That of the first copy. It gets smaller if Kafka is slow."""
    has_whole_transactions: bool = False
    """Whether views or consistent sinks wait for its progress records."""
    _topics: Mapping[TableName, str] | None = field(default=None, init=False, repr=False, compare=False)
    """Cached, since it is read repeatedly, also for each of thousands of tables."""

    @property
    def slot(self) -> str:
        return f"lockstep_{self.name}"

    @property
    def progress_every_s(self) -> float:
        """Seconds between two progress records at low load."""
        return (_PROGRESS_AWAITED_MS if self.has_whole_transactions else _PROGRESS_MS) / 1000

    @property
    def publication(self) -> str:
        """The configured publication, else ``lockstep_<name>``."""
        return self.source.publication or f"lockstep_{self.name}"

    @property
    def rejecting_topics(self) -> frozenset[str]:
        """The topics from which too large rows are left out."""
        return frozenset(self.topics().values()) if self.capture.large_rows == "reject" else frozenset()

    def capturing(self, found: Iterable[TableName]) -> Self:
        """The pipeline with its patterns resolved to those of these tables that they match."""
        return replace(self, source=self.source.resolved(found))

    def topics(self) -> Mapping[TableName, str]:
        """Captured table -> its topic. Raises ConfigurationError if a name is too long for Kafka."""
        topics = self._topics
        if topics is None:
            topics = {table: table_topic(self.name, table) for table in self.source.table_names}
            object.__setattr__(self, "_topics", topics)  # it depends on nothing that changes
        # The proxy isn't cached: a pipeline is sent to copy workers, which are other processes.
        return MappingProxyType(topics)
