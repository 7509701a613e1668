"""Orders to capture about copies that wait or run, sent as messages in the WAL like requests for copies. One is::

  {"format":4,"slot":"lockstep_shop","action":"pause","table":["public","orders"],
  "role":"ann","pid":4711,"signature":"<64 hex digits>"}

``"table":null`` means all copies. An order is for the slot that it names. Any role may write such a message, so it is
signed with a secret that only those with access to the pipeline's topics know. ``role`` gave the order, for the log.

Nobody reads the WAL before the first copy is complete. Orders about the first copy are therefore notifications, which
aren't stored: the sender repeats them until the state shows the result. Any role may hear and repeat them, but not with
the ``pid`` of the server process that sends them.
"""

import hmac
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, Self

import orjson
import psycopg

from cdc.model.errors import LockstepError
from cdc.model.printable import visible
from cdc.model.table import TableName
from cdc.postgres.connection import connection_error
from cdc.postgres.repair_messages import UnreadableRequest
from cdc.postgres.slot import emit_messages
from cdc.protocol.record_fields import FORMAT, parse_record

COPIES_PREFIX: Final = "lockstep.copies"
"""Prefix of the messages, which are never published, whatever prefixes are configured; channel of the notifications."""


class CopyAction(StrEnum):
    """``CANCEL`` is for a requested copy of a table that already had one."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """One message. ``table`` is None for all copies. ``pid`` is the server process that sends it as a notification, and
    0 in the WAL: so a signed notification that somebody overhears can't be repeated there."""

    slot: str
    action: CopyAction
    table: TableName | None
    role: str = ""
    pid: int = 0
    signature: str = ""

    def signed(self, secret: bytes) -> Self:
        return replace(self, signature=self._signature(secret))

    def is_signed(self, secret: bytes) -> bool:
        return hmac.compare_digest(self.signature.encode(), self._signature(secret).encode())

    def _signature(self, secret: bytes) -> str:
        return hmac.digest(secret, replace(self, signature="").to_bytes(), "sha256").hex()

    def to_bytes(self) -> bytes:
        name = None if self.table is None else [self.table.schema, self.table.name]
        return orjson.dumps({"format": FORMAT, **asdict(self), "table": name})

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Anybody may write such messages, so everything is checked. Raises UnreadableRequest."""
        try:
            fields = parse_record(content, "it")
            name = fields.row("table", str, str)
            table = None if name is None else TableName(*name)
            return cls(
                fields.text("slot"),
                fields.one_of("action", CopyAction),
                table,
                fields.text("role", ""),
                fields.number("pid", 0),
                fields.text("signature", ""),
            )
        except LockstepError as error:
            raise UnreadableRequest(error.message) from None


def send_order(connection: psycopg.Connection[Any], order: CopyOrder, secret: bytes) -> int:
    """Write the order to the WAL; returns an LSN after its commit. Raises as ``emit_messages``."""
    try:
        signed = replace(_from_here(connection, order), pid=0).signed(secret)
    except psycopg.Error as error:
        raise connection_error(error) from error
    return emit_messages(connection, COPIES_PREFIX, [signed.to_bytes()])


def notify_order(connection: psycopg.Connection[Any], order: CopyOrder, secret: bytes) -> None:
    """Send the order to present listeners. Raises LockstepError, Unavailable if PostgreSQL can't be reached."""
    try:
        with connection.transaction():  # a pooler may use another server process for each one
            content = _from_here(connection, order).signed(secret).to_bytes()
            connection.execute("select pg_notify(%s, %s)", (COPIES_PREFIX, content.decode()))
    except psycopg.Error as error:
        raise connection_error(error) from error


def _from_here(connection: psycopg.Connection[Any], order: CopyOrder) -> CopyOrder:
    row = connection.execute("select session_user::text, pg_backend_pid()").fetchone()
    assert row is not None
    return replace(order, role=visible(row[0]), pid=row[1])


def listen_to_orders(connection: psycopg.Connection[Any], heard: Callable[[bytes, int], None]) -> None:
    """Call ``heard`` for each notification, whenever the connection is used, with its content and the pid of the server
    process that sent it. Anybody may send them. Raises psycopg's errors."""
    connection.add_notify_handler(lambda notification: heard(notification.payload.encode(), notification.pid))
    connection.execute(f'listen "{COPIES_PREFIX}"')
