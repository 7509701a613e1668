"""What is still to be delivered: a queue and a thread per channel, so that no channel holds up another, nor the look.

A message leaves its queue once the channel has taken it, and that is kept on disk. So a message may come twice, where
the process dies between the two; none is lost. Its id and kind are then the same.
"""

import collections
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from cdc.model.errors import LockstepError
from cdc.model.log_message import LogMessage
from monitor.alerts.book import Message
from monitor.alerts.channels import Channel

logger = logging.getLogger("lockstep.alerts")

_WAIT_FIRST_S: Final = 1.0
_WAIT_MAX_S: Final = 60.0
_QUEUE_MAX: Final = 1000
"""A channel that is down for so long loses the oldest messages."""


class Outbox:
    """Delivers messages in order, per channel, again and again until the channel takes them."""

    def __init__(
        self,
        channels: Mapping[str, Channel],
        queues: Mapping[str, Sequence[Message]],
        *,
        delivered: Callable[[], None],
        wait_first_s: float = _WAIT_FIRST_S,
    ) -> None:
        """``queues`` is what is left of before, and ``delivered`` is called after each delivery."""
        self._delivered = delivered
        self._wait_first_s = wait_first_s
        self._changed = threading.Condition()
        self._is_closed = False
        self._queues = {name: collections.deque(queues.get(name, ()), _QUEUE_MAX) for name in channels}
        self._threads = [
            threading.Thread(target=self._work, args=(name, channel), name=f"alert-{name}", daemon=True)
            for name, channel in channels.items()
        ]
        for thread in self._threads:
            thread.start()

    def put(self, messages: Iterable[Message]) -> None:
        """Have these delivered by every channel."""
        with self._changed:
            for queue in self._queues.values():
                queue.extend(messages)
            self._changed.notify_all()

    def queues(self) -> dict[str, list[Message]]:
        """What is still to be delivered."""
        with self._changed:
            return {name: list(queue) for name, queue in self._queues.items()}

    def close(self) -> None:
        """Deliver nothing more. Who is at it may go on for a few seconds."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(2.0)

    def _work(self, name: str, channel: Channel) -> None:
        queue = self._queues[name]
        wait_s, has_said = self._wait_first_s, False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: queue or self._is_closed)
                if self._is_closed:
                    return
                message = queue[0]
            try:
                channel.send(message)
            except Exception as error:  # a bug of one channel may not end its thread: the next message may get through
                if not has_said:
                    has_said = True
                    reason = error.message if isinstance(error, LockstepError) else type(error).__name__
                    logger.warning(
                        LogMessage("alert isn't delivered", {"channel": name}, f"{reason}; it goes on trying")
                    )
                self._pause(wait_s)
                wait_s = min(wait_s * 2, _WAIT_MAX_S)
                continue
            wait_s, has_said = self._wait_first_s, False
            with self._changed:
                if queue and queue[0] is message:
                    queue.popleft()
            self._delivered()

    def _pause(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        with self._changed:
            while not self._is_closed and (left_s := until_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
