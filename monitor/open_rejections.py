"""Counts the rows with an open rejection: by sink and generation, and by the name of an extension's target."""

from collections import Counter
from collections.abc import Collection, Mapping

from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import DEAD_LETTERS, control_topic
from cdc.kafka.topic_reader import TopicReader
from cdc.pipeline_settings import Pipeline
from jobs.dead_letters.record import DeadLetter, UnreadableDeadLetter, read_dead_letter


class OpenRejections:
    """Reads the dead-letter topic; each count reads only the records since the one before."""

    def __init__(self, pipeline: Pipeline, cluster: TopicAdmin) -> None:
        self._reader = TopicReader(pipeline.kafka.client())
        self._cluster = cluster
        self._topic = control_topic(pipeline.name, DEAD_LETTERS)
        self._dead_letters: dict[bytes, DeadLetter | UnreadableDeadLetter] = {}
        self._next = 0

    def counts(self) -> Mapping[tuple[str, int], int]:
        """(sink, generation) -> rows with an open rejection. Raises Unavailable if Kafka doesn't answer."""
        self._read()
        readable = [record for record in self._dead_letters.values() if isinstance(record, DeadLetter)]
        # A row may have several dead letters; it counts once.
        rows = {record.row: (record.sink, record.generation) for record in readable}
        return Counter(rows.values())

    def of(self, names: Collection[str]) -> Mapping[str, int]:
        """Name -> rows with an open rejection, as of the last count. A row of several generations counts once."""
        readable = [record for record in self._dead_letters.values() if isinstance(record, DeadLetter)]
        rows = Counter(name for name, _ in {(record.sink, record.key) for record in readable})
        return {name: rows[name] for name in names}

    @property
    def unreadable(self) -> int:
        """How many records the last count left out, because this version of Lockstep can't read them."""
        return sum(isinstance(record, UnreadableDeadLetter) for record in self._dead_letters.values())

    def _read(self) -> None:
        if not self._cluster.exists(self._topic):
            self._dead_letters, self._next = {}, 0
            return
        (end,) = self._cluster.end_offsets([(self._topic, 0)]).values()
        if end < self._next:  # the topic was recreated
            self._dead_letters, self._next = {}, 0
        if end == self._next:
            return
        for record in self._reader.records(self._topic, {0: self._next}):
            self._dead_letters.pop(record.key, None)
            if record.value is not None:
                self._dead_letters[record.key] = read_dead_letter(record.key, record.value, record.offset)
        self._next = end
