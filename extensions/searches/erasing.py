"""Erases from the reports of standing searches: their records have the id and the key of a row's document."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import orjson

from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import MATCHES, control_topic
from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue
from cdc.model.table import TableName
from extensions.searches.searchable import searchable
from lockstep.config import Config
from lockstep.erasing import DeletedRow, Eraser, Means, Place, RecordWords, Topics, Waiting
from lockstep.generations import list_of, settings_of_generation
from sinks.opensearch.ids import document_id
from sinks.opensearch.settings import OpenSearchSettings

_WORDS: Final = RecordWords(with_what="with its key", have_values=False)


class MatchesOfRow:
    """The topic of matches, and which of its records belong to the row."""

    def __init__(self, config: Config, table: TableName, key: Mapping[str, JsonValue]) -> None:
        """``key`` is the row's, in its table's order. Raises LockstepError if its document's id isn't known."""
        self.name = control_topic(config.pipeline.name, MATCHES)
        self._table = table
        self._by_default = document_id(list(key.values()))
        self._ids = _ids(config, table, key)

    def is_of_row(self, record_key: bytes) -> bool:
        """Goes by the document's id in the sink, or its default id."""
        try:
            reported = orjson.loads(record_key)
        except orjson.JSONDecodeError:
            return False  # a record that forces a compaction has such a key
        if not isinstance(reported, dict) or reported.get("table") != str(self._table):
            return False
        return reported.get("id") in self._ids.get(str(reported.get("sink")), set()) | {self._by_default}

    def why_open(self, record_keys: Iterable[bytes]) -> str | None:
        """The reason that records are open: the document still matches, according to the reports."""
        sinks = {str(orjson.loads(key)["sink"]) for key in record_keys}
        if not sinks:
            return None
        return (
            f"no record says that its document ceases to match a search of {', '.join(sorted(sinks))}: start `lockstep"
            " searches watch`, or remove the search, then run the command again"
        )


class MatchErasing(Eraser):
    """Erases from the topic of matches. If a sink still has the row, its searches still write records there."""

    def __init__(self, config: Config, row: DeletedRow, means: Means) -> None:
        self._config = config
        self._row = row
        self._topics = means.topics
        self._timeout_s = means.timeout_s
        self._waiting = Waiting(means.check)

    def places(self, _: Callable[[str], bool], *, only_look: bool) -> Iterator[Place]:
        matches = MatchesOfRow(self._config, self._row.table.name, self._row.key)
        if not TopicAdmin(self._config.kafka.client()).exists(matches.name):
            return
        read = partial(self._topics.records, matches.name, matches.is_of_row)
        if only_look:
            yield self._topics.look_at(matches.name, read, _WORDS)
            return
        why = self._waited(matches)
        place = self._topics.erase_those(matches.name, read, _WORDS)
        yield place if why is None else place.unproven(why)

    def _waited(self, matches: MatchesOfRow) -> str | None:
        """Why records of the row are still open after waiting; None if none is."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            why = matches.why_open(open_keys(self._topics, matches.name, matches.is_of_row))
            if why is None or time.monotonic() > deadline:
                return why
            self._waiting.wait()


def open_keys(topics: Topics, topic: str, is_of_row: Callable[[bytes], bool]) -> Sequence[bytes]:
    """The row's keys whose newest records aren't tombstones."""
    keys: list[bytes] = []

    def noted(record_key: bytes) -> bool:
        wanted = is_of_row(record_key)
        if wanted:
            keys.append(record_key)
        return wanted

    newest = dict(zip(keys, topics.records(topic, noted), strict=True))
    return [key for key, record in newest.items() if not record.is_tombstone]


def _ids(config: Config, table: TableName, key: Mapping[str, JsonValue]) -> dict[str, set[str]]:
    """By sink, the document's ids in all existing generations. Raises LockstepError."""
    found = dict[str, set[str]]()
    for sink, today in searchable(config).items():
        built = [settings_of_generation(config, sink, each) for each in list_of(config, sink)]
        for settings in (today, *built):
            assert isinstance(settings, OpenSearchSettings)
            found.setdefault(sink, set()).add(_id(settings, sink, table, key))
    return found


def _id(settings: OpenSearchSettings, sink: str, table: TableName, key: Mapping[str, JsonValue]) -> str:
    template = settings.id_of(table)
    if template is None:
        return document_id(list(key.values()))
    renamed = settings.renaming().row(table, key)
    if template.problems(list(renamed)):
        raise LockstepError(
            f"the document of the row in sink {sink} isn't known: ids of the sink names columns that the key hasn't"
            " any more. Remove its searches, and records of the row go in time"
        )
    return template.maker()(renamed)
