"""Erases from topics of other extensions whose records' keys have a row's key."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from cdc.kafka.key_records import KeyRecord
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import LockstepError
from extensions.erase.deleted_row import DeletedRow
from extensions.erase.report import Place
from extensions.erase.stopping import Waiting
from extensions.erase.topics import RecordWords, TopicErasing
from lockstep.config import Config
from lockstep.extension import Extension, KeyedTopic

_WORDS: Final = RecordWords(with_what="with its key", have_values=False)


class KeyedTopicErasing:
    """``timeout_s`` is how long it waits for who writes to a topic at most."""

    def __init__(
        self,
        config: Config,
        row: DeletedRow,
        topics: TopicErasing,
        extensions: Sequence[Extension],
        *,
        timeout_s: float,
        check: Callable[[], None],
    ) -> None:
        self._config = config
        self._row = row
        self._topics = topics
        self._extensions = extensions
        self._timeout_s = timeout_s
        self._waiting = Waiting(check)

    def places(self, *, only_look: bool) -> Iterator[Place]:
        """The topics that there are. They are the last places: a sink that has the row writes of it again."""
        for extension in self._extensions:
            try:
                found = list(extension.keyed_topics(self._config, self._row.table.name, self._row.key))
            except LockstepError as error:
                yield Place(f"topics of the extension {extension.name}", unasked=error.message)
                continue
            for topic in found:
                if TopicAdmin(self._config.kafka.client()).exists(topic.name):
                    yield self._place(topic, only_look=only_look)

    def _place(self, topic: KeyedTopic, *, only_look: bool) -> Place:
        if only_look:
            return self._topics.look(topic.name, topic.is_of_row, _WORDS)
        why = self._waited(topic)
        place = self._topics.erase(topic.name, topic.is_of_row, _WORDS)
        return place if why is None else place.unproven(why)

    def _waited(self, topic: KeyedTopic) -> str | None:
        """Why records of the row are open still, once that changes no more; None where none is."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            keys: list[bytes] = []

            def noted(record_key: bytes, keys: list[bytes] = keys) -> bool:
                wanted = topic.is_of_row(record_key)
                if wanted:
                    keys.append(record_key)
                return wanted

            newest: dict[bytes, KeyRecord] = dict(zip(keys, self._topics.records(topic.name, noted), strict=True))
            why = topic.why_open(key for key, record in newest.items() if not record.is_tombstone)
            if why is None or time.monotonic() > deadline:
                return why
            self._waiting.wait()
