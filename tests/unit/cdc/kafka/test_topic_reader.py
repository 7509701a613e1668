"""cdc.kafka.topic_reader"""

from collections.abc import Generator, Mapping

import pytest

from cdc.event_format.decode import after_of
from cdc.event_format.encode import event_value
from cdc.kafka.topic_reader import Record, TopicReader
from cdc.model.tag import SNAPSHOT_SEQ, tag_prefix

_LSN = 0x5000
_KEY = b'{"id":1}'


class _Log(TopicReader):
    """A topic in memory."""

    def __init__(self, *values: bytes | None) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1"})
        self._values = values

    def records(self, topic: str, start: Mapping[int, int] | None = None) -> Generator[Record, None, None]:
        for offset, value in enumerate(self._values):
            yield Record(0, offset, _KEY, value)
            yield Record(0, offset, b'{"id":2}', _event(b"r", _LSN - 8, SNAPSHOT_SEQ, b"another key"))


def _event(op: bytes, lsn: int, seq: int, row: bytes) -> bytes:
    source = b'{"version":"1","lsn":'
    return event_value(op, tag_prefix(1, lsn), seq, b"null", row, source, lsn, 0)


_BEFORE = _event(b"c", _LSN - 8, 3, b'{"id":1,"n":1}')
_COPIED = b'{"id":1,"n":2}'
_OWN = (_event(b"u", _LSN, 1, b'{"id":1,"n":9}'), _event(b"d", _LSN, 2, b"null"), None)


@pytest.mark.parametrize(
    ("log", "row"),
    [
        ((_BEFORE, *_OWN), b'{"id":1,"n":1}'),
        ((_BEFORE, _event(b"r", _LSN + 0x1000, SNAPSHOT_SEQ, _COPIED), *_OWN), _COPIED),
        ((_event(b"r", _LSN + 0x1000, SNAPSHOT_SEQ, _COPIED),), _COPIED),
        ((_BEFORE, _event(b"r", _LSN, SNAPSHOT_SEQ, _COPIED), *_OWN), _COPIED),
        ((_BEFORE, _event(b"d", _LSN, SNAPSHOT_SEQ, b"null"), None, *_OWN), None),
        (_OWN, None),
    ],
    ids=["of the stream", "of a resumed first snapshot", "of it alone", "of a copy at the position", "deleted", "none"],
)
def test_the_row_before_a_transaction_is_the_last_that_others_published(
    log: tuple[bytes | None, ...], row: bytes | None
) -> None:
    event = _Log(*log).row_before("topic", _KEY, tag_prefix(1, _LSN))
    assert (None if event is None else after_of(event)) == row


@pytest.mark.parametrize("value", [b"", b"x", b"hello, world", b"{}", b'{"op":1}'])
def test_what_is_no_event_is_nobodys_row(value: bytes) -> None:
    assert set(_Log(value).live_keys("topic")) == {b'{"id":2}'}
    assert set(_Log(_BEFORE, value).live_keys("topic")) == {_KEY, b'{"id":2}'}
