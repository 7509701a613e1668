"""Whether the first copy must wait: the order, from its notification until it is in the state. The process keeps it
across its sessions: pausing a copy ends the session, and with it the open Kafka transaction, snapshot and locks."""

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
    def __init__(self, slot: str, say: Callable[[str], None]) -> None:
        self._slot = slot
        self._say = say
        self._secret: bytes | None = None
        self._ordered: bool | None = None
        self._is_over = False
        self._due_s = 0.0

    def trust(self, secret: bytes) -> None:
        """The secret that orders are signed with. Orders that come before the first call are ignored; it is given
        again."""
        self._secret = secret

    def listen(self, sql: psycopg.Connection[Any]) -> None:
        """Accept orders over this connection from now on. Raises psycopg's errors."""
        listen_to_orders(sql, self.heard)

    def look_if_due(self, sql: psycopg.Connection[Any]) -> None:
        """Process notifications that have come; safe to call all the time. Raises as ``connection_error``."""
        now_s = time.monotonic()
        if self._is_over or now_s < self._due_s:
            return
        self._due_s = now_s + _LOOK_EVERY_S
        try:
            sql.execute("select 1")  # notifications are delivered with any answer
        except psycopg.Error as error:
            raise connection_error(error) from error

    def heard(self, content: bytes, pid: int) -> None:
        """Process a notification, from any sender, from the server process ``pid``."""
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
        """Whether the running copy must end, and wait."""
        return self._ordered is True

    def obeyed(self, state: CaptureState) -> CaptureState:
        """The state with the order applied; the same object if it changes nothing. The order counts until the state is
        ``committed``: if the session is lost before, the next one obeys it."""
        if self._ordered is None or self._ordered == state.first_copy_paused:
            return state
        return replace(state, first_copy_paused=self._ordered)

    def committed(self, state: CaptureState) -> None:
        """The state is in Kafka: the order has been obeyed, unless another one came since."""
        if self._ordered == state.first_copy_paused:
            self._ordered = None

    def over(self) -> None:
        """The first copy is complete: an order that came too late is reported. Later ones come through the WAL."""
        if self.is_ordered:
            self._say("warning: pause is ignored: the first copy is complete")
        self._ordered, self._is_over = None, True
