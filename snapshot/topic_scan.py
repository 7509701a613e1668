"""Finds the keys of a topic whose newest event is older than a copy, beside the stream."""

import time
from collections.abc import Generator, Iterator
from itertools import islice

from cdc.event_format.decode import DELETED, op_of, tag_of
from cdc.kafka.topic_reader import Record
from cdc.spilling import SpillingMap
from snapshot.chunk_session import KEYS_AT_ONCE


class TopicScan:
    """Finds the keys whose newest event is a row from before a copy, a little at a time."""

    def __init__(self, records: Generator[list[Record], None, None], since_tag: bytes, keys: SpillingMap) -> None:
        self._records: Generator[list[Record], None, None] | None = records
        self._since_tag = since_tag
        self._keys = keys
        self._left: Iterator[bytes] | None = None
        self._portion: list[bytes] = []

    def go_on(self, seconds: float) -> bool:
        """Read for about so long. Returns whether all is read."""
        deadline = time.monotonic() + seconds
        while self._records is not None and time.monotonic() < deadline:
            records = next(self._records, None)
            if records is None:
                self._records = None
                break
            for record in records:
                value = record.value
                if value is None or op_of(value) == DELETED:
                    self._keys.discard(record.key)
                elif op_of(value):
                    if tag_of(value) < self._since_tag:
                        self._keys[record.key] = b""
                    else:
                        self._keys.discard(record.key)
        return self._records is None

    def portion(self, keys: int) -> list[bytes]:
        """So many of the found keys, the same ones until they are ``answered``; none after the last."""
        if not self._portion:
            if self._left is None:
                self._left = iter(self._keys)
            self._portion = list(islice(self._left, KEYS_AT_ONCE))
        return self._portion[:keys]

    def answered(self, keys: int) -> None:
        """Go on after so many of them."""
        del self._portion[:keys]

    def close(self) -> None:
        if self._records is not None:
            self._records.close()
        self._records = self._left = None
        self._keys.close()
