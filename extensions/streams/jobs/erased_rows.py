"""Finds rows of a result's topic that were erased before they were posted: a later tombstone has their key."""

from contextlib import closing

from cdc.kafka.control_topics import ClientSettings
from cdc.kafka.topic_reader import Record, TopicReader
from extensions.streams.jobs.posted import Posted


class ErasedRows:
    """The erased rows of the build at work, as of the last read of its topic."""

    def __init__(self, client: ClientSettings) -> None:
        self._client = client
        self.erased_to: str | None = None
        """The build's record of where tombstones may end."""
        self._tombstones: dict[bytes, int] = {}
        """Key of an erased row -> the offset of its newest tombstone."""
        self._looked_for: tuple[str, str | None] | None = None
        """The topic's id and ``erased_to`` of the last complete read: it covers all later rows too."""

    def forget(self) -> None:
        """Read again next time, since tombstones may be lost."""
        self._looked_for = None

    def look(self, topic: str, at: Posted, erased_to: str | None) -> None:
        """Find the tombstones of rows that aren't posted yet, unless an earlier read found them."""
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
        return self._tombstones.get(record.key, -1) > record.offset
