"""What the assembler returns to the loop: events, or a question that only a catalogue, a topic or a store can answer.
The assembler never waits. A message that needs an answer comes as ``Steps``: the loop publishes the events among them,
answers the questions, and continues with the message."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from cdc.capture.published_table import PublishedTable
from cdc.model.event import Headers
from cdc.model.table import TableName
from cdc.protocol.pgoutput import Relation

Event = tuple[str, bytes, bytes | None, bytes | Headers | None]
"""(topic, key, value, a tombstone's tag or headers). A plain tuple, since one is made for every row."""

Events = tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class NeedShape:
    """Which table does this relation describe? In the answer, ``unrecorded`` is set if its shape is new. For a table
    that has no key by now, the answer is None; if the table is followed, UnsupportedChange is raised."""

    relation: Relation
    known: PublishedTable
    """The table as recorded."""
    xid: int | None
    """The transaction that describes it, None outside of one."""
    is_followed: bool


@dataclass(frozen=True, slots=True)
class NeedLiveKeys:
    """A table was emptied: which keys does its topic hold? Everything sent before is committed first. Each key's events
    are published as the key comes; a commit may come between two keys."""

    topic: str
    gone: Callable[[bytes], Events]
    """The events that delete a key."""


@dataclass(frozen=True, slots=True)
class NeedRowBefore:
    """Which row had this key before the transaction? Its event, None if none had. Everything sent before is committed
    first."""

    topic: str
    key: bytes
    prefix: bytes
    """The start of the tag that all events of the transaction share."""


@dataclass(frozen=True, slots=True)
class NeedLargeValues:
    """The memory lacks a table's large values: fill it from the table's topic. Everything sent before is committed
    first."""

    published: PublishedTable
    position: tuple[int, int]
    """(commit LSN, seq) of the last change that is committed then."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A message for capture itself. The answer says whether to inspect the source before the next transaction."""

    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Uncaptured:
    """The stream describes a table that isn't captured. If the answer raises, the run ends before the transaction's end
    is published."""

    name: TableName


@dataclass(frozen=True, slots=True)
class LeftUnread:
    """The rows of these keys changed, and the change isn't published: the copy of their table reads them."""

    topic: str
    keys: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A table isn't followed from here to its copy."""

    name: TableName
    why: str


Question = NeedShape | NeedLiveKeys | NeedRowBefore | NeedLargeValues | Notice | Uncaptured | PassedOver

Steps = Generator[Events | LeftUnread | Question, Any, None]
"""Events to publish and questions to answer, in this order. The answer is sent to the generator."""
