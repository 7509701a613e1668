"""A sink in memory that reads the topics from their beginning, and judges by tags alone, as sinks do."""

from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import LockstepError
from tests.captured import Captured, Published, Row, carried


class _Table:
    """What is known of one topic: the newest event of each key, including deletes, and what to read next."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.newest: dict[bytes, Published] = {}
        self.following: dict[int, int] = {}


class Follower:
    """Of each key, the event with the greatest tag counts; an equal tag is there already. A deleted topic is read from
    its beginning, since its sinks must be rebuilt."""

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self._tables: dict[str, _Table] = {}

    def read(self) -> None:
        """Read on, up to what is committed now. A topic that can't be read now is read the next time."""
        for table in map(str, self._captured.config.source.table_names):
            try:
                self._read(table)
            except LockstepError:
                continue

    def _read(self, table: str) -> None:
        topic = self._captured.topic(table)
        identity = TopicAdmin(self._captured.client).identities([topic])[topic].topic_id
        known = self._tables.get(table)
        if known is None or known.identity != identity:
            known = self._tables[table] = _Table(identity)
        for record in TopicReader(self._captured.client).records(topic, known.following):
            known.following[record.partition] = record.offset + 1
            if record.value is None:
                known.newest.pop(record.key, None)  # the delete before it, which has a tag, may be compacted away
                continue
            event = Published(record.partition, record.key, record.value)
            before = known.newest.get(record.key)
            if before is None or event.tag > before.tag:
                known.newest[record.key] = event

    def rows(self, table: str) -> dict[bytes, Row]:
        records = self._captured.schemas(table)
        indexes = {record.table.schema_id: index for index, record in enumerate(records)}
        rows = {}
        for key, event in self._tables[table].newest.items():
            if event.op != "d":
                row = event.after
                for record in records[indexes[event.schema_id] + 1 :]:
                    row = carried(row, record)
                rows[key] = row
        return rows
