"""Finds rows in newer builds of a stream query's result whose keys the webhook refused in earlier builds."""

import hashlib
from collections.abc import Collection
from typing import Final

import orjson

from cdc.kafka.control_topics import ClientSettings
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_reader import TopicReader
from extensions.streams.topic_names import stream_result_generation

_ONLY: Final = 0
"""The topic of a result has one partition."""


class NewerBuilds:
    """The current rows of these keys in the topics of builds after ``generation``."""

    def __init__(
        self, client: ClientSettings, pipeline: str, query: str, *, keys: Collection[bytes], generation: int
    ) -> None:
        self._cluster = TopicAdmin(client)
        self._reader = TopicReader(client)
        self._pipeline = pipeline
        self._query = query
        self._keys = frozenset(keys)
        self._after = generation
        self._read_to: dict[str, int] = {}
        self._rows: dict[bytes, tuple[int, bytes]] = {}
        """Key -> the newest build that has a row of it, and that row's digest."""

    def other_row_in(self, key: bytes, row: bytes, generation: int) -> int | None:
        """The newest build after ``generation`` with another row of this key; None if there is none. Raises
        Unavailable.
        """
        self.read()
        newest, digest = self._rows.get(key, (0, b""))
        return newest if newest > generation and digest != _digest(row) else None

    def read(self) -> None:
        """Read the topics up to their present end. The next call reads only what is new then. Raises Unavailable."""
        topics = {
            topic: number
            for topic in self._cluster.all_partition_counts()
            if (number := stream_result_generation(self._pipeline, self._query, topic)) is not None
            and number > self._after
        }
        ends = self._cluster.end_offsets([(topic, _ONLY) for topic in topics]) if topics else {}
        for topic, number in topics.items():
            begin = self._read_to.get(topic, 0)
            if begin >= ends[topic, _ONLY]:
                continue
            for record in self._reader.records(topic, {_ONLY: begin}):
                known, _ = self._rows.get(record.key, (0, b""))
                if record.key in self._keys and record.value is not None and number >= known:
                    self._rows[record.key] = number, _digest(record.value)
                self._read_to[topic] = record.offset + 1
            self._read_to[topic] = max(self._read_to.get(topic, 0), ends[topic, _ONLY])


def _digest(row: bytes) -> bytes:
    """A digest of the row's values: a dead letter has them in another text."""
    return hashlib.sha256(orjson.dumps(orjson.loads(row), option=orjson.OPT_SORT_KEYS)).digest()
