"""What standing searches have told of a row: records with the id of its document, and with its key."""

from collections.abc import Iterable, Mapping

import orjson

from cdc.kafka.topic_names import MATCHES, control_topic
from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue
from cdc.model.table import TableName
from extensions.searches.searchable import searchable
from lockstep.config import Config
from lockstep.generations import list_of, settings_of_generation
from sinks.opensearch.ids import document_id
from sinks.opensearch.settings import OpenSearchSettings


class MatchesOfRow:
    """The topic of matches, as ``lockstep.extension.KeyedTopic``."""

    def __init__(self, config: Config, table: TableName, key: Mapping[str, JsonValue]) -> None:
        """``key`` is the row's, in the order of its table's. Raises LockstepError where its document isn't known."""
        self.name = control_topic(config.pipeline.name, MATCHES)
        self._table = table
        self._by_default = document_id(list(key.values()))
        self._ids = _ids(config, table, key)

    def is_of_row(self, record_key: bytes) -> bool:
        """By the document's id in the sink, or what it is called by default."""
        try:
            told = orjson.loads(record_key)
        except orjson.JSONDecodeError:
            return False  # what forces a compaction has such keys
        if not isinstance(told, dict) or told.get("table") != str(self._table):
            return False
        return told.get("id") in self._ids.get(str(told.get("sink")), set()) | {self._by_default}

    def why_open(self, record_keys: Iterable[bytes]) -> str | None:
        """Its document still matches, as far as was told."""
        sinks = {str(orjson.loads(key)["sink"]) for key in record_keys}
        if not sinks:
            return None
        return (
            f"nobody has told that its document ceases to match a search of {', '.join(sorted(sinks))}: start `lockstep"
            " searches watch`, or remove the search, then run the command again"
        )


def topics_of_row(config: Config, table: TableName, key: Mapping[str, JsonValue]) -> list[MatchesOfRow]:
    """The one that has records of it."""
    return [MatchesOfRow(config, table, key)]


def _ids(config: Config, table: TableName, key: Mapping[str, JsonValue]) -> dict[str, set[str]]:
    """By sink, what the document is called in a generation that is there. Raises LockstepError."""
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
