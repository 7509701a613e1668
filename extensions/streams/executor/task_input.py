"""What each task of a stream query gets from the driver, besides the input of a sink's task."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StreamInput:
    """A task's input besides its sink. ``topic_ids`` are Kafka's ids of the topics whose records it was given.
    ``result_topic`` gets the rows after the sink. The limits are the largest records of the topics, in bytes.
    """

    query: str
    generation: int
    topic_ids: Mapping[str, str]
    side_topic: str
    side_record_bytes_max: int
    result_topic: str | None = None
    result_record_bytes_max: int = 0
