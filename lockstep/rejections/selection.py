"""Which rejections a command selects: by table, generation, key or reason. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from cdc.kafka.topic_names import table_topic
from cdc.model.errors import ConfigurationError
from cdc.model.table import TableName
from jobs.dead_letters.limit import kind_of
from jobs.dead_letters.record import DeadLetter
from sinks.view_settings import VIEWS_SCHEMA

_POSITION: Final = re.compile(r"(?:(?P<where>.+):)?(?P<partition>\d{1,10}):(?P<offset>\d{1,19})")


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects rejections of a sink; a missing field excludes none. ``reason`` is part of a reason, or its kind."""

    tables: tuple[str, ...] = ()
    generation: int | None = None
    keys: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def is_unlimited(self) -> bool:
        return self == EVERYTHING

    def check(self) -> None:
        """Raise ConfigurationError for what can't be a table, a key, a position or a reason."""
        for text in self.tables:
            try:
                TableName.parse(text)
            except ValueError as error:
                raise ConfigurationError(f"--table: {error}") from None
        if self.reason is not None and not self.reason.strip():
            raise ConfigurationError("--reason is empty, which every reason has in it", hint="--all means all of them")
        for text in self.keys:
            if _is_object(text) and _canonical(text) is None:
                raise ConfigurationError("a key begins with { and isn't a JSON object", hint='for example {"id":42}')

    def takes(self, dead_letter: DeadLetter, pipeline: str) -> bool:
        """Whether this dead letter of a pipeline is selected. The selection has been checked."""
        topics = {table_topic(pipeline, TableName.parse(text)) for text in self.tables}
        return (
            (not topics or dead_letter.position.topic in topics)
            and self.generation in (None, dead_letter.generation)
            and (not self.keys or any(is_named(dead_letter, text, pipeline) for text in self.keys))
            and (self.reason is None or _has_reason(dead_letter.reason, self.reason))
        )


EVERYTHING: Final = Selection()


def selection_of(
    *,
    tables: Sequence[str] | None,
    generation: int | None,
    keys: Sequence[str] | None,
    reason: str | None,
    everything: bool,
) -> Selection:
    """The selection of a command that changes something. Raises ConfigurationError if its options select nothing, or
    two things at once."""
    if everything and (keys or reason is not None):
        raise ConfigurationError("--all excludes --key and --reason")
    if not (everything or keys or reason is not None):
        raise ConfigurationError("say which rejections: --key, --reason or --all")
    return Selection(tuple(tables or ()), generation, tuple(keys or ()), reason)


def is_named(dead_letter: DeadLetter, text: str, pipeline: str) -> bool:
    """Whether a text names a dead letter: by the row's key as JSON, by the key's only value, or by
    ``[topic or table:]partition:offset``. A view's row has no position: all of them report the same one."""
    if _is_object(text):
        return _canonical(dead_letter.key) == _canonical(text)
    values = list(orjson.loads(dead_letter.key).values())
    if len(values) == 1 and text in (values[0], orjson.dumps(values[0]).decode()):
        return True
    match, position = _POSITION.fullmatch(text), dead_letter.position
    if position.topic == table_topic(pipeline, TableName(VIEWS_SCHEMA, dead_letter.sink)):
        return False
    if match is None or (int(match["partition"]), int(match["offset"])) != (position.partition, position.offset):
        return False
    return match["where"] in (None, position.topic) or _topic(match["where"], pipeline) == position.topic


def _topic(table: str, pipeline: str) -> str | None:
    """The topic of a table; None for what is no table's name."""
    try:
        return table_topic(pipeline, TableName.parse(table))
    except (ValueError, ConfigurationError):
        return None


def _has_reason(reason: str, part: str) -> bool:
    return part.lower() in reason.lower() or part.lower() in kind_of(reason).lower()


def _is_object(text: str) -> bool:
    return text.lstrip().startswith("{")


def _canonical(key: str | bytes) -> bytes | None:
    """A JSON object in canonical form, whatever its order and spaces; None for anything else."""
    try:
        parsed = orjson.loads(key)
    except orjson.JSONDecodeError:
        return None
    return orjson.dumps(parsed, option=orjson.OPT_SORT_KEYS) if isinstance(parsed, dict) else None
