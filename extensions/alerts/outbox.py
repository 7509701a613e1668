"""The messages to deliver: a queue and a thread, so that the webhook doesn't delay the next look. A message is on disk
before the webhook gets it, and leaves the queue once the webhook has taken it. So no message is lost. One may come
twice, with the same id and kind, if the process dies before the delivery is stored.
"""

import collections
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from cdc.model.errors import LockstepError
from cdc.model.log_message import LogMessage
from cdc.webhook import DocumentRefused
from extensions.alerts.due_messages import Message

logger = logging.getLogger("lockstep.alerts")

_WAIT_FIRST_S: Final = 1.0
_WAIT_MAX_S: Final = 60.0
_REFUSED_TRIES: Final = 5
"""Tries of a message whose content the webhook refuses, or for which our code fails. Later messages wait meanwhile."""
_QUEUE_MAX: Final = 1000
"""If a webhook is down for long, the oldest messages above this number are lost."""


class Outbox:
    """Delivers messages in order, each again and again until the webhook takes it. A message that the webhook refuses
    because of its content, or for which our own code fails, is dropped after ``_REFUSED_TRIES`` tries. The log has it.
    """

    def __init__(
        self,
        post: Callable[[Message], None] | None,
        *,
        delivered: Callable[[], None],
        wait_first_s: float = _WAIT_FIRST_S,
    ) -> None:
        """``post`` is ``post_alert`` with settings; None drops all. ``delivered`` is called after each delivery."""
        self._delivered = delivered
        self._wait_first_s = wait_first_s
        self._changed = threading.Condition()
        self._is_closed = False
        self._queue = collections.deque[Message](maxlen=0 if post is None else _QUEUE_MAX)
        self._thread: threading.Thread | None = None
        if post is not None:
            self._thread = threading.Thread(target=self._work, args=(post,), name="alert-webhook", daemon=True)
            self._thread.start()

    def add(self, messages: Iterable[Message]) -> None:
        with self._changed:
            self._queue.extend(messages)
            self._changed.notify_all()

    def left(self) -> list[Message] | None:
        """The messages to deliver, oldest first; None without a webhook."""
        with self._changed:
            return None if self._thread is None else list(self._queue)

    def close(self) -> None:
        """Deliver nothing more. A delivery under way may go on for a few seconds."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(2.0)

    def _work(self, post: Callable[[Message], None]) -> None:
        tries = 0
        while (message := self._next()) is not None:
            tries += 1
            failure, may_drop = _failure(post, message)
            if failure is not None and not (may_drop and tries >= _REFUSED_TRIES):
                if tries == 1:
                    logger.warning(LogMessage("alert isn't delivered", {}, f"{failure}; it goes on trying"))
                self._pause(tries)
                continue
            if failure is not None:
                condition = message.condition
                subject = {"name": condition.name, "subject": condition.subject}
                logger.error(LogMessage("alert is dropped", subject, failure))
            tries = 0
            with self._changed:
                if self._queue and self._queue[0] is message:  # a full queue may have dropped it meanwhile
                    self._queue.popleft()
            self._delivered()

    def _next(self) -> Message | None:
        """Waits for the oldest message; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closed)
            return None if self._is_closed else self._queue[0]

    def _pause(self, tries: int) -> None:
        until_s = time.monotonic() + min(self._wait_first_s * 2 ** min(tries - 1, 16), _WAIT_MAX_S)
        with self._changed:
            while not self._is_closed and (left_s := until_s - time.monotonic()) > 0:
                self._changed.wait(left_s)


def _failure(post: Callable[[Message], None], message: Message) -> tuple[str | None, bool]:
    """Why a message wasn't delivered, and whether the message is the cause."""
    try:
        post(message)
    except DocumentRefused as refusal:
        return refusal.message, True
    except LockstepError as error:
        return error.message, False
    except OSError as error:
        return type(error).__name__, False
    except Exception as bug:
        return type(bug).__name__, True
    return None, False
