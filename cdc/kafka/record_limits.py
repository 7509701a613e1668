"""How large a record a topic takes, and what helps where that is less than the settings say. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

OF_RECORDS: Final = ("max.message.bytes", "segment.bytes")
"""The settings of a topic that limit its records: a batch has to fit into a segment, too."""


@dataclass(frozen=True, slots=True)
class RecordLimit:
    """``size`` is how many bytes a batch of records may have, compressed; ``setting`` of the topic says so."""

    size: int
    setting: str

    def __str__(self) -> str:
        return f"{self.size:,} bytes ({self.setting})"


_UNLIMITED: Final = RecordLimit(2**31 - 1, "max.message.bytes")
"""The largest that Kafka can be set to."""


def record_limit(config: Mapping[str, str | None]) -> RecordLimit:
    """The smaller limit of a topic with these settings. What brokers of another make don't tell is no limit."""
    limits = [RecordLimit(int(value), name) for name in OF_RECORDS if (value := config.get(name))]
    return min(limits, key=lambda limit: limit.size, default=_UNLIMITED)


def set_command(bootstrap_servers: object, topic: str, setting: str, value: object) -> str:
    """The command that gives a topic a setting."""
    return (
        f"kafka-configs.sh --bootstrap-server {bootstrap_servers} --alter --entity-type topics"
        f" --entity-name {topic} --add-config {setting}={value}"
    )
