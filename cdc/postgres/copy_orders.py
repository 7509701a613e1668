"""Orders to capture about copies that wait or run: messages in the WAL, as requests for copies are. One is::

    {"format":4,"slot":"lockstep_shop","action":"pause","table":["public","orders"]}

``"table":null`` is about all copies. An order is for the slot that it names.

Nobody reads the WAL before the first copy is complete. Orders about that one are notifications, which nobody keeps: who
gives one gives it again until the state says what became of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

import orjson
import psycopg

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from cdc.postgres.connection import connection_error
from cdc.postgres.repair_messages import UnreadableRequest
from cdc.postgres.slot import emit_messages
from cdc.protocol.record_fields import FORMAT, parse_record

COPIES_PREFIX: Final = "lockstep.copies"
"""Prefix of the messages, which are never published, whatever prefixes are configured; channel of the notifications."""


class CopyAction(StrEnum):
    """``CANCEL`` is for a copy that was asked for; the table has one of before."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """One message. ``table`` is None for all copies."""

    slot: str
    action: CopyAction
    table: TableName | None

    def to_bytes(self) -> bytes:
        name = None if self.table is None else [self.table.schema, self.table.name]
        return orjson.dumps({"format": FORMAT, "slot": self.slot, "action": self.action.value, "table": name})

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Anybody may write such messages, so nothing is taken for granted. Raises UnreadableRequest."""
        try:
            fields = parse_record(content, "it")
            name = fields.row("table", str, str)
            table = None if name is None else TableName(*name)
            return cls(fields.text("slot"), fields.one_of("action", CopyAction), table)
        except LockstepError as error:
            raise UnreadableRequest(error.message) from None


def send_order(connection: psycopg.Connection[Any], order: CopyOrder) -> int:
    """Give the order; returns an LSN after its commit. Raises as ``emit_messages``."""
    return emit_messages(connection, COPIES_PREFIX, [order.to_bytes()])


def notify_order(connection: psycopg.Connection[Any], order: CopyOrder) -> None:
    """Give the order to those that listen now. Raises LockstepError, Unavailable when PostgreSQL can't be reached."""
    try:
        connection.execute("select pg_notify(%s, %s)", (COPIES_PREFIX, order.to_bytes().decode()))
    except psycopg.Error as error:
        raise connection_error(error) from error


def listen_to_orders(connection: psycopg.Connection[Any], heard: Callable[[bytes], None]) -> None:
    """Have ``heard`` called with the content of each notification, whenever the connection is used.

    Anybody may send them. Raises psycopg's errors.
    """
    connection.add_notify_handler(lambda notification: heard(notification.payload.encode()))
    connection.execute(f'listen "{COPIES_PREFIX}"')
