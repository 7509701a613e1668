"""Names of topics: table -> topic, without two tables ever sharing one. Pure."""

import hashlib
import re

from cdc.model.errors import ConfigurationError
from cdc.model.table import TableName

_LEGAL = re.compile(rb"[A-Za-z0-9_]")
_ESCAPED = re.compile(rb"-([0-9a-f]{2})")
_NAME_LENGTH_MAX = 249  # Kafka's limit

STATE = "__state"
SCHEMA = "__schema"
PROGRESS = "__progress"
DEAD_LETTERS = "__dead_letters"
"""The dead-letter topic of all sinks of a pipeline."""

ERASURES = "__erasures"
"""The topic settings that ``lockstep erase`` has changed temporarily, and when it had topics compacted."""

MESSAGES = "__messages"
"""Logical messages of the configured prefixes."""

VIEWS = "__views"
"""Up to where the topics of views hold whole steps."""

MATCHES = "__matches"
"""Which documents begin and cease to match the standing searches of all sinks of a pipeline."""

_OUTBOX = "__outbox"


def escaped(part: str) -> str:
    """Bytes that a topic name can't hold, and the dot that separates parts, become ``-`` and two hex digits."""
    return "".join(chr(byte) if _LEGAL.fullmatch(bytes([byte])) else f"-{byte:02x}" for byte in part.encode())


def _unescaped(part: str) -> str:
    """Raises ValueError for texts that ``escaped`` doesn't return."""
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), part.encode()).decode()


def table_topic(prefix: str, table: TableName) -> str:
    """``<prefix>.<schema>.<table>``. Raises ConfigurationError if that is longer than Kafka allows."""
    schema = escaped(table.schema)
    if schema.startswith("__"):  # reserved for other topics: ``<prefix>.__outbox.<aggregate type>``
        schema = f"-5f{schema[1:]}"
    topic = f"{prefix}.{schema}.{escaped(table.name)}"
    if len(topic) > _NAME_LENGTH_MAX:
        raise ConfigurationError(
            f"the topic name for {table} has {len(topic)} characters, Kafka allows {_NAME_LENGTH_MAX}",
            hint="choose a shorter pipeline name or rename the table",
        )
    return topic


def table_of_topic(prefix: str, topic: str) -> TableName | None:
    """The table whose topic this is, None for another topic."""
    parts = topic.removeprefix(f"{prefix}.").split(".")
    if not topic.startswith(f"{prefix}.") or len(parts) != 2:
        return None
    try:
        schema, name = map(_unescaped, parts)
    except ValueError:
        return None
    table = TableName(schema, name)
    return table if table_topic(prefix, table) == topic else None


def like_metrics(topic: str) -> str:
    """A topic's name in Kafka's metrics. Kafka refuses a topic if another one has the same name there."""
    return topic.replace(".", "_")


def control_topic(prefix: str, name: str) -> str:
    """``<prefix>.__state`` and its like. Tables' topics have two dots, so the names never collide."""
    return f"{prefix}.{name}"


def view_topic(prefix: str, view: str, generation: int) -> str:
    """``<prefix>.__views.<view>.g<generation>``: the rows of a view's result. No table's topic has a third dot."""
    return f"{control_topic(prefix, VIEWS)}.{escaped(view)}.g{generation}"


def is_view_topic(prefix: str, topic: str) -> bool:
    """Whether it has the rows of some view's result."""
    return topic.startswith(f"{control_topic(prefix, VIEWS)}.")


def is_outbox_topic(prefix: str, topic: str) -> bool:
    """Whether it is the topic of some aggregate type."""
    return topic.startswith(f"{prefix}.{_OUTBOX}.")


def shared_outbox_topic(prefix: str) -> str:
    """The topic of rows without one of their own: they have no type, or there are too many types."""
    return control_topic(prefix, _OUTBOX)


def outbox_topic(prefix: str, aggregate_type: str) -> str:
    """``<prefix>.__outbox.<aggregate type>``. If that is too long for Kafka, a hash replaces the end of the type. The
    writers of rows choose the type: no row may stop capture."""
    topic = f"{prefix}.{_OUTBOX}.{escaped(aggregate_type)}"
    if len(topic) <= _NAME_LENGTH_MAX:
        return topic
    digest = hashlib.sha256(aggregate_type.encode()).hexdigest()[:32]
    # No escaped name has two dashes, so it never collides with another topic.
    return f"{topic[: _NAME_LENGTH_MAX - len(digest) - 2]}--{digest}"
