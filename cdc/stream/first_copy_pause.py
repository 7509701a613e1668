"""Whether the first copy is to wait: what was ordered, from the notification on until the state says so.

The process keeps it over the sessions that it starts: a copy that is to wait ends its session, and with it the Kafka
transaction, the snapshot and the locks that are open.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import psycopg

from cdc.postgres.connection import connection_error
from cdc.postgres.copy_orders import CopyAction, CopyOrder, listen_to_orders
from cdc.postgres.repair_messages import UnreadableRequest
from cdc.protocol.control_records import CaptureState
from cdc.stream.copy_orders import unsigned

_LOOK_EVERY_S: Final = 0.5


class FirstCopyPause:
    """The orders to pause and to resume the first copy of one slot."""

    def __init__(self, slot: str, say: Callable[[str], None]) -> None:
        self._slot = slot
        self._say = say
        self._secret: bytes | None = None
        self._ordered: bool | None = None
        self._is_over = False
        self._due_s = 0.0

    def trust(self, secret: bytes) -> None:
        """What orders are signed with. Until this is known none is taken in; it is given again."""
        self._secret = secret

    def listen(self, sql: psycopg.Connection[Any]) -> None:
        """Take in what comes over this connection from now on. Raises psycopg's errors."""
        listen_to_orders(sql, self.heard)

    def look_if_due(self, sql: psycopg.Connection[Any]) -> None:
        """Take in what has come; safe to call all the time. Raises as ``connection_error``."""
        now_s = time.monotonic()
        if self._is_over or now_s < self._due_s:
            return
        self._due_s = now_s + _LOOK_EVERY_S
        try:
            sql.execute("select 1")  # what has come is handed out with any answer
        except psycopg.Error as error:
            raise connection_error(error) from error

    def heard(self, content: bytes, pid: int) -> None:
        """Take in a notification, whoever has sent it, from the server process ``pid``."""
        try:
            order = CopyOrder.from_bytes(content)
        except UnreadableRequest as error:
            self._say(f"warning: an order about copies is ignored: {error}")
            return
        if order.slot != self._slot or self._is_over or order.action is CopyAction.CANCEL or self._secret is None:
            return
        if order.pid != pid or not order.is_signed(self._secret):
            self._say(unsigned(order))
            return
        is_to_pause = order.action is CopyAction.PAUSE
        if self._ordered is not is_to_pause:
            self._say(f"{order.action} of the first copy was ordered by role {order.role}")
        self._ordered = is_to_pause

    @property
    def is_ordered(self) -> bool:
        """Whether the copy that runs is to end, and to wait."""
        return self._ordered is True

    def obeyed(self, state: CaptureState) -> CaptureState:
        """The state with what was ordered; the same one where that changes nothing.

        The order counts until the state is ``committed``: a session that is lost before has the next one obey.
        """
        if self._ordered is None or self._ordered == state.first_copy_paused:
            return state
        return replace(state, first_copy_paused=self._ordered)

    def committed(self, state: CaptureState) -> None:
        """The state is in Kafka: what was ordered has been obeyed, unless another order has come since."""
        if self._ordered == state.first_copy_paused:
            self._ordered = None

    def over(self) -> None:
        """The first copy is complete: an order that came too late is told of, and later ones are in the WAL."""
        if self.is_ordered:
            self._say("warning: pause is ignored: the first copy is complete")
        self._ordered, self._is_over = None, True
