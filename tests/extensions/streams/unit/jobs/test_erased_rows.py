"""How far a result's topic is read for rows that were erased."""

from collections.abc import Iterator

import pytest

from cdc.kafka.topic_reader import Record
from extensions.streams.jobs.erased_rows import ErasedRows
from extensions.streams.jobs.posted import Posted

_ROWS = tuple(Record(0, offset, b"%d" % (offset % 2), b"{}") for offset in range(2))
"""Before the tombstones, one of each key."""


def test_a_topic_is_read_once_for_erased_rows_and_no_further_than_they_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that is away for long is tried again and again, and a topic may be long."""
    read = list[int]()

    class Reader:
        def __init__(self, _: object) -> None: ...

        def records(self, _: str, start: dict[int, int]) -> Iterator[Record]:
            for offset in range(start[0], 6):
                read.append(offset)
                yield Record(0, offset, b"%d" % (offset % 2), None if offset in (2, 3, 5) else b"{}")

    monkeypatch.setattr("extensions.streams.jobs.erased_rows.TopicReader", Reader)
    rows = ErasedRows({})

    def erased(at: Posted, erased_to: str | None) -> list[bool]:
        rows.look("t", at, erased_to)
        return [rows.has(row) for row in _ROWS]

    assert erased(Posted("id", 1), None) == [False, False]
    assert erased(Posted("id", 1), "3") == erased(Posted("id", 2), "3") == [True, False]
    assert read == [1, 2, 3]
    assert erased(Posted("id", 2), "6") == [True, True]
    assert read == [1, 2, 3, 2, 3, 4, 5]
    assert erased(Posted("made anew", 0), "6") == [True, True]
