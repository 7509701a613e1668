"""Capture without servers: tables, states and assemblers as they are after a start, for histories of ``tests.wal``."""

from collections.abc import Iterable, Sequence
from typing import Any

from cdc.capture.assembler import Assembler, Event
from cdc.capture.published_table import PublishedTable
from cdc.kafka.topic_names import table_topic
from cdc.model.lsn import Lsn
from cdc.model.table import Table, TableName
from cdc.protocol.control_records import CaptureState, SnapshotPhase
from cdc.protocol.envelope import TableEncoder
from cdc.protocol.pgoutput import Message, Relation
from cdc.stream.row_encoding import chosen_row_encoding
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


def assembler(*shapes: Table, at: CaptureState | None = None, **parts: Any) -> Assembler:
    """An assembler that goes on from a state. ``parts`` are its shapes, log and memory, where a test has them."""
    begin = at or state()
    return Assembler(
        published(*shapes),
        epoch=begin.epoch,
        skip_to=(begin.commit_lsn, begin.seq),
        end_lsn=Lsn(begin.end_lsn),
        commit_time_ms=begin.commit_time_ms,
        **{"begun": begin.begun, **parts},
    )


def relations(*shapes: Table) -> list[Relation]:
    """How the stream describes them; the first has ``RELATION_ID``, the next ones have the numbers after it."""
    return [relation(shape, RELATION_ID + index) for index, shape in enumerate(shapes or (table(),))]


def events(follower: Assembler, messages: Iterable[tuple[int, Message]]) -> Sequence[Event]:
    """Everything that the messages come to."""
    return [event for lsn, message in messages for event in follower.feed(message, lsn)]
