"""How large a record a topic accepts, and how to raise that to the settings. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

OF_RECORDS: Final = ("max.message.bytes", "segment.bytes")
"""The settings of a topic that limit its records: a batch must also fit into a segment."""


@dataclass(frozen=True, slots=True)
class RecordLimit:
    """``size`` is how many bytes a compressed batch of records may have; the topic's ``setting`` says so."""

    size: int
    setting: str

    def __str__(self) -> str:
        return f"{self.size:,} bytes ({self.setting})"


_UNLIMITED: Final = RecordLimit(2**31 - 1, "max.message.bytes")
"""The largest value that Kafka allows."""


def record_limit(config: Mapping[str, str | None]) -> RecordLimit:
    """The smaller limit of a topic with these settings. A setting that another make of brokers doesn't show is no
    limit."""
    limits = [RecordLimit(int(value), name) for name in OF_RECORDS if (value := config.get(name))]
    return min(limits, key=lambda limit: limit.size, default=_UNLIMITED)


def set_command(bootstrap_servers: object, topic: str, setting: str, value: object) -> str:
    return (
        f"kafka-configs.sh --bootstrap-server {bootstrap_servers} --alter --entity-type topics"
        f" --entity-name {topic} --add-config {setting}={value}"
    )
