"""Which rows of a result's topic were erased before they were posted: a tombstone of their key stands behind them."""

from contextlib import closing

from cdc.kafka.control_topics import ClientSettings
from cdc.kafka.topic_reader import Record, TopicReader
from extensions.streams.jobs.posted import Posted


class ErasedRows:
    """Of the build at work, as of the last look at its topic."""

    def __init__(self, client: ClientSettings) -> None:
        self._client = client
        self.erased_to: str | None = None
        """What the record says of the build: up to which offset there may be tombstones."""
        self._tombstones: dict[bytes, int] = {}
        """Key of an erased row -> the offset of its newest tombstone."""
        self._looked_for: tuple[str, str | None] | None = None
        """The topic's id and that record, where the look has come to its end: later rows need no other one."""

    def forget(self) -> None:
        """Look again: tombstones may be lost."""
        self._looked_for = None

    def look(self, topic: str, at: Posted, erased_to: str | None) -> None:
        """Find those that aren't posted yet, unless that is known from an earlier look."""
        looked_for = at.topic_id, erased_to
        if looked_for == self._looked_for:
            return
        self._looked_for, self._tombstones = None, {}
        self.erased_to = erased_to
        if erased_to is not None and int(erased_to) > at.offset:
            with closing(TopicReader(self._client).records(topic, {0: at.offset})) as records:
                for record in records:
                    if record.offset >= int(erased_to):
                        break
                    if record.value is None:
                        self._tombstones[record.key] = record.offset
        self._looked_for = looked_for

    def has(self, record: Record) -> bool:
        """Whether the row of this record was erased."""
        return self._tombstones.get(record.key, -1) > record.offset
