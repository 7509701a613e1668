"""Erases what standing searches have told of a row: records with the id of its document, and with its key."""

import time
from collections.abc import Callable, Iterator
from typing import Final

import orjson

from cdc.kafka.key_records import KeyRecord
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import MATCHES, control_topic
from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from extensions.erase.deleted_row import DeletedRow
from extensions.erase.report import Place
from extensions.erase.stopping import Waiting
from extensions.erase.topics import RecordWords, TopicErasing
from lockstep.config import Config
from lockstep.generations import list_of, settings_of_generation
from sinks.opensearch.ids import document_id
from sinks.opensearch.settings import OpenSearchSettings

_WORDS: Final = RecordWords(with_what="with its key", have_values=False)


class MatchErasing:
    """Erases from the topic of matches. ``timeout_s`` is how long it waits for who tells of searches at most."""

    def __init__(
        self, config: Config, row: DeletedRow, topics: TopicErasing, *, timeout_s: float, check: Callable[[], None]
    ) -> None:
        self._config = config
        self._row = row
        self._topics = topics
        self._timeout_s = timeout_s
        self._waiting = Waiting(check)
        self._topic = control_topic(config.pipeline.name, MATCHES)

    def places(self, *, only_look: bool) -> Iterator[Place]:
        """The topic, where there is one. It is the last place: a sink that has the document tells of it again."""
        if not TopicAdmin(self._config.kafka.client()).exists(self._topic):
            return
        try:
            ids = self._ids()
        except LockstepError as error:
            yield Place(f"topic {self._topic}", unasked=error.message)
            return

        def is_wanted(record_key: bytes) -> bool:
            return is_of(record_key, self._row.table.name, ids, document_id(list(self._row.key.values())))

        if only_look:
            yield self._topics.look(self._topic, is_wanted, _WORDS)
            return
        told = self._waited(is_wanted)
        place = self._topics.erase(self._topic, is_wanted, _WORDS)
        if told:
            sinks = ", ".join(sorted(told))
            place = place.unproven(
                f"nobody has told that its document ceases to match a search of {sinks}: start `lockstep searches"
                " watch`, or remove the search, then run the command again"
            )
        yield place

    def _waited(self, is_wanted: Callable[[bytes], bool]) -> set[str]:
        """The sinks whose searches the document matches as far as was told, once that changes no more."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            keys: list[bytes] = []

            def noted(record_key: bytes, keys: list[bytes] = keys) -> bool:
                wanted = is_wanted(record_key)
                if wanted:
                    keys.append(record_key)
                return wanted

            newest: dict[bytes, KeyRecord] = dict(zip(keys, self._topics.records(self._topic, noted), strict=True))
            told = {str(orjson.loads(key)["sink"]) for key, record in newest.items() if not record.is_tombstone}
            if not told or time.monotonic() > deadline:
                return told
            self._waiting.wait()

    def _ids(self) -> dict[str, set[str]]:
        """By sink, what the document is called in a generation that is there. Raises LockstepError."""
        name, found = self._row.table.name, dict[str, set[str]]()
        for sink, today in self._config.sinks.items():
            if not isinstance(today, OpenSearchSettings) or today.view is not None:
                continue
            built = [settings_of_generation(self._config, sink, each) for each in list_of(self._config, sink)]
            for settings in (today, *built):
                assert isinstance(settings, OpenSearchSettings)
                found.setdefault(sink, set()).add(self._id(settings, sink, name))
        return found

    def _id(self, settings: OpenSearchSettings, sink: str, table: TableName) -> str:
        template = settings.id_of(table)
        if template is None:
            return document_id(list(self._row.key.values()))
        key = settings.renaming().row(table, self._row.key)
        if template.problems(list(key)):
            raise LockstepError(
                f"the document of the row in sink {sink} isn't known: ids of the sink names columns that the key hasn't"
                " any more. Remove its searches, and records of the row go in time"
            )
        return template.maker()(key)


def is_of(record_key: bytes, table: TableName, ids: dict[str, set[str]], otherwise: str) -> bool:
    """Whether a record of the topic is of a document: by its id in the sink, or what it is called by default. Pure."""
    try:
        told = orjson.loads(record_key)
    except orjson.JSONDecodeError:
        return False  # what forces a compaction has such keys
    if not isinstance(told, dict) or told.get("table") != str(table):
        return False
    return told.get("id") in ids.get(str(told.get("sink")), set()) | {otherwise}
