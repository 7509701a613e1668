"""A start in the middle of a transaction that was published in part, with other settings than before.

What counts as a change differs between them. Where the transaction was left is known by its messages, which don't.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from cdc.capture.assembler import Assembler
from cdc.capture.outbox import OUTBOX_COLUMNS, OutboxChannel
from cdc.capture.questions import Event
from cdc.event_format.messages import MessageChannel
from cdc.model.lsn import Lsn
from cdc.model.table import Table, TableName
from cdc.model.tag import Tag
from cdc.protocol.control_records import CaptureState, StreamedTransaction
from cdc.protocol.pgoutput import LogicalMessage, Message, Truncate
from tests.builders import column, table
from tests.history import Answers, assembler, events, state
from tests.wal import RELATION_ID, History, insert, relation, update

_ORDERS = table()
_ITEMS_BY_ID, _ITEMS_BY_CODE = (
    table(column("id", "int8"), column("code"), name=TableName("public", "items"), key=(key,), identity="f")
    for key in ("id", "code")
)
_OUTBOX = table(*map(column, OUTBOX_COLUMNS), name=TableName("public", "outbox"), key=("id",))
_LOG = table(key=(), name=TableName("public", "log"))
_OF_ITEMS, _OF_OUTBOX, _OF_LOG = (RELATION_ID + index for index in (1, 2, 3))


@dataclass(frozen=True)
class _Settings:
    prefixes: Sequence[str] = ("audit",)
    has_outbox: bool = True
    items: Table = _ITEMS_BY_ID
    has_log: bool = False

    def start(self, at: CaptureState, begun: StreamedTransaction | None = None) -> Assembler:
        tables = [_ORDERS, self.items, *([] if self.has_outbox else [_OUTBOX]), *([_LOG] if self.has_log else [])]
        return assembler(
            *tables,
            at=replace(at, begun=begun),
            messages=MessageChannel(self.prefixes, "messages", server="shop", database="app", version="1"),
            outbox=OutboxChannel(_OUTBOX.name, _OneTopic()) if self.has_outbox else None,
        )


class _OneTopic:
    shared = "outbox"

    def of(self, key: bytes) -> str:
        return self.shared

    def instead(self, wanted: str) -> str:
        return self.shared


class _Log:
    """Items has two rows, which a TRUNCATE takes away."""

    def live_keys(self, topic: str) -> Iterator[bytes]:
        yield from (b'{"id":8}', b'{"id":9}') if topic.endswith("items") else ()

    def row_before(self, topic: str, key: bytes, prefix: bytes) -> bytes | None:
        raise AssertionError


_ANSWERS = Answers(log=_Log())
_ALL = [
    _Settings(),
    _Settings(prefixes=()),
    _Settings(prefixes=("audit", "other")),
    _Settings(has_outbox=False),
    _Settings(items=_ITEMS_BY_CODE),
    _Settings(has_log=True),
]
_OUTBOX_ROW = [b"1", b"a", b"k", b"t", b"{}"]
_BODY: list[Message] = [
    insert(b"1", b"x"),
    LogicalMessage(True, Lsn(1), "audit", b"c"),
    update(b"1", b"b", full=(b"1", b"a"), of=_OF_ITEMS),
    insert(b"9", b"x", of=_OF_LOG),
    insert(*_OUTBOX_ROW, of=_OF_OUTBOX),
    insert(b"2", b"x"),
    Truncate((_OF_ITEMS, _OF_LOG), cascade=False, restart_identity=False),
    update(b"2", b"d", full=(b"2", b"c"), of=_OF_ITEMS),
    LogicalMessage(True, Lsn(1), "other", b"c"),
    insert(b"3", b"x"),
]
_RELATIONS = [
    relation(shape, number)
    for shape, number in ((_ORDERS, RELATION_ID), (_ITEMS_BY_ID, _OF_ITEMS), (_OUTBOX, _OF_OUTBOX), (_LOG, _OF_LOG))
]
_MESSAGES = History(_BODY, [insert(b"4", b"x")]).messages(*_RELATIONS)


def _left(follower: Assembler) -> CaptureState:
    commit_lsn, seq = follower.progress.position
    return state(commit_lsn=commit_lsn, seq=seq, end_lsn=follower.progress.end_lsn)


def _tags(published: Sequence[Event]) -> list[Tag]:
    texts = [value[15:43].decode() for topic, _, value, _ in published if value is not None and topic[-5:] != "utbox"]
    return [Tag.parse(text) for text in texts if text[0].isdigit()]


@pytest.mark.parametrize(("before", "after"), [*itertools.permutations(_ALL, 2)])
def test_nothing_is_left_out_nor_published_again(before: _Settings, after: _Settings) -> None:
    """Of a table that neither of them touches. Nor does a later event get an earlier number."""
    for ended in range(len(_MESSAGES)):
        first = before.start(state())
        published = [*events(first, _MESSAGES[:ended], _ANSWERS)]
        published += events(after.start(_left(first), first.progress.begun), _MESSAGES, _ANSWERS)
        keys = [key for topic, key, *_ in published if topic.endswith("orders")]
        assert keys == [b'{"id":%d}' % number for number in (1, 2, 3, 4)]
        tags = _tags(published)
        assert tags == sorted(tags)


def test_an_interrupted_restart_goes_on_where_the_first_one_would() -> None:
    """What is committed while the transaction comes again says still how much of it is published."""
    for ended in range(len(_MESSAGES)):
        first = _Settings().start(state())
        begun = [*events(first, _MESSAGES[:ended], _ANSWERS)]
        second = _Settings().start(_left(first), first.progress.begun)
        for looked in range(len(_MESSAGES)):
            begun += events(second, [_MESSAGES[looked]], _ANSWERS)
            third = _Settings().start(_left(second), second.progress.begun)
            published = [*begun, *events(third, _MESSAGES, _ANSWERS)]
            assert [key for topic, key, *_ in published if topic.endswith("orders")] == [
                b'{"id":%d}' % number for number in (1, 2, 3, 4)
            ]
