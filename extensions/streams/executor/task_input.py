"""What the driver tells each task of a stream query, besides what it tells each task of a sink."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StreamInput:
    """What a task needs to know besides its sink.

    ``topic_ids`` are Kafka's ids of the topics whose records it was given. ``result_topic`` gets the result besides the
    sink. Records have so many bytes at most.
    """

    query: str
    generation: int
    topic_ids: Mapping[str, str]
    side_topic: str
    side_record_bytes_max: int
    result_topic: str | None = None
    result_record_bytes_max: int = 0
