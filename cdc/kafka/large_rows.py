"""What is published in place of rows that are too large for their topic."""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from cdc.event_format.decode import LEFT_OUT, fitting, op_of
from cdc.kafka.record_limits import RecordLimit

_RECORD_OVERHEAD_BYTES: Final = 128
"""The most that a batch of one record has besides key and value."""


class LargeRows:
    """Leaves rows of these topics of tables out if their record would exceed ``max_message_bytes`` or the topic's own
    limit. ``say`` gets a sentence for each such row, without its key or a value.

    ``limits`` are those of the topics that accept smaller records than ``max_message_bytes``, as read a moment ago.
    None: they weren't read, and won't be after a publisher ends with Unavailable.
    """

    def __init__(
        self,
        topics: Collection[str] = (),
        *,
        max_message_bytes: int,
        limits: Mapping[str, RecordLimit] | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.max_message_bytes = max_message_bytes
        self.limits = limits
        smaller = limits or {}
        self._bytes_max = {
            topic: min(max_message_bytes, smaller[topic].size) if topic in smaller else max_message_bytes
            for topic in topics
        }
        self._say = say

    def __contains__(self, topic: str) -> bool:
        return topic in self._bytes_max

    def fitted(self, topic: str, key: bytes, value: bytes) -> bytes:
        """The event, or its replacement if it is too large. The topic must be one of these."""
        record_max = self._bytes_max[topic]
        bytes_max = record_max - len(key) - _RECORD_OVERHEAD_BYTES
        if len(value) <= bytes_max:
            return value
        smaller = fitting(value, bytes_max, has_key=key != b"{}")
        if op_of(smaller) == LEFT_OUT:
            self._say(
                f"warning: a row of {len(value):,} bytes is left out of topic {topic}, which takes"
                f" {record_max:,}: each sink rejects it (`lockstep rejections list`)"
            )
        return smaller
