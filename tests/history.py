"""Capture without servers: tables, states and assemblers as they are after a start, for histories of ``tests.wal``."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from cdc.capture.assembler import Assembler
from cdc.capture.published_table import PublishedTable
from cdc.capture.questions import (
    Event,
    LeftUnread,
    NeedLargeValues,
    NeedLiveKeys,
    NeedRowBefore,
    NeedShape,
    Notice,
    Question,
    Steps,
    Uncaptured,
)
from cdc.capture.relations import Relations
from cdc.capture.resume import StreamProgress
from cdc.capture.row_changes import RowChanges
from cdc.event_format.encode import TableEncoder
from cdc.event_format.messages import MessageChannel
from cdc.kafka.topic_names import table_topic
from cdc.model.lsn import Lsn
from cdc.model.table import Table, TableName
from cdc.protocol.control_records import CaptureState, SnapshotPhase
from cdc.protocol.pgoutput import Message, Relation
from cdc.stream.row_encoding import chosen_row_encoding
from cdc.toast.memory import MemoryStore
from tests.builders import table
from tests.wal import HANDOFF, RELATION_ID, relation

EPOCH = 1


def state(**changes: Any) -> CaptureState:
    """Capture's state right after the snapshot."""
    values: dict[str, Any] = {
        "slot": "lockstep_shop",
        "owner": "one",
        "publication": "lockstep_shop",
        "database": "app",
        "system_id": "7000000000000000001",
        "timeline": 1,
        "epoch": EPOCH,
        "phase": SnapshotPhase.DONE,
        "handoff": HANDOFF,
        "commit_lsn": HANDOFF,
        "seq": 0,
        "end_lsn": HANDOFF,
        "commit_time_ms": 1000,
        "copied": {TableName("public", "orders"): 2},
        "memberships": {TableName("public", "orders"): "1 2"},
        "topics": {},
    }
    return CaptureState(**{**values, **changes})


def published(*shapes: Table) -> dict[TableName, PublishedTable]:
    """The tables with their topics and encoders; without shapes ``public.orders``."""
    return {shape.name: _published(shape) for shape in shapes or (table(),)}


def _published(shape: Table) -> PublishedTable:
    encoder = TableEncoder(shape, server="shop", database="app", version="1")
    return PublishedTable(table_topic("shop", shape.name), encoder, kernel=chosen_row_encoding().kernel(encoder))


class Answers:
    """Answers for source, topics and memory. Shapes stay as they were known, and no topic holds anything."""

    def __init__(
        self,
        *,
        log: Any = None,
        shapes: Any = None,
        notices: Mapping[str, Callable[[bytes], object]] = MappingProxyType({}),
        on_uncaptured: Callable[[TableName], object] = lambda _: None,
    ) -> None:
        self._log = log
        self._shapes = shapes
        self._notices = notices
        self._on_uncaptured = on_uncaptured
        self.asked: list[LeftUnread | Question] = []

    def answer(self, question: LeftUnread | Question) -> Any:
        self.asked.append(question)
        match question:
            case NeedShape(relation, known, xid):
                return self._shapes.adopt(relation, known, xid) if self._shapes is not None else known
            case NeedLiveKeys(topic):
                return self._log.live_keys(topic)
            case NeedRowBefore():
                return self._log.row_before(question.topic, question.key, question.prefix)
            case Notice(prefix, content):
                return self._notices[prefix](content)
            case Uncaptured(name):
                self._on_uncaptured(name)
            case NeedLargeValues():
                pass  # no topic has what the memory lacks
        return None


def assembler(
    *shapes: Table,
    at: CaptureState | None = None,
    tables: Mapping[TableName, PublishedTable] | None = None,
    memory: Any = None,
    messages: MessageChannel | None = None,
    notices: Sequence[str] = (),
    **known: Any,
) -> Assembler:
    """An assembler that continues from a state. ``known`` is what else is known of relations."""
    begin = at or state()
    progress = StreamProgress(
        position=(begin.commit_lsn, begin.seq),
        end_lsn=Lsn(begin.end_lsn),
        commit_time_ms=begin.commit_time_ms,
        begun=begin.begun,
    )
    followed = Relations(published(*shapes) if tables is None else tables, **known)
    rows = RowChanges(followed, progress, MemoryStore() if memory is None else memory, epoch=begin.epoch)
    return Assembler(rows, messages=messages, notices=notices)


def relations(*shapes: Table) -> list[Relation]:
    """How the stream describes them. The first has ``RELATION_ID``, the next ones the numbers after it."""
    return [relation(shape, RELATION_ID + index) for index, shape in enumerate(shapes or (table(),))]


def events(
    follower: Assembler, messages: Iterable[tuple[int, Message]], answers: Answers | None = None
) -> Sequence[Event]:
    return [event for lsn, message in messages for event in fed(follower, message, lsn, answers)]


def fed(follower: Assembler, message: Message, lsn: int = 0, answers: Answers | None = None) -> Iterator[Event]:
    """The events of one message, one by one, as the loop publishes them."""
    outcome = follower.feed(message, lsn)
    yield from outcome if isinstance(outcome, tuple) else followed(outcome, answers)


def followed(steps: Steps, answers: Answers | None = None) -> Iterator[Event]:
    answers, answer = answers or Answers(), None
    with contextlib.suppress(StopIteration):
        while True:
            step = steps.send(answer)
            answer = None if isinstance(step, tuple) else answers.answer(step)
            if isinstance(step, tuple):
                yield from step
            elif isinstance(step, NeedLiveKeys):
                for key in answer:
                    yield from step.gone(key)


def copied(follower: Assembler, published: PublishedTable) -> None:
    """The stream has reached a copy of the table, and has described the table as it is known."""
    assert not list(followed(follower.relations.replace(published)))
