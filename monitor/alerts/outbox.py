"""What is still to be delivered: a queue and a thread, so that the webhook doesn't hold up the look.

A message is kept on disk before the webhook gets it, and leaves the queue once the webhook has taken it. So a message
may come twice, where the process dies before that is kept as well; none is lost. Its id and kind are then the same.
"""

import collections
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cdc.model.errors import LockstepError
from cdc.model.log_message import LogMessage
from cdc.webhook import DocumentRefused
from monitor.alerts.book import Dropped, Message

logger = logging.getLogger("lockstep.alerts")

_WAIT_FIRST_S: Final = 1.0
_WAIT_MAX_S: Final = 60.0
_BUG_TRIES: Final = 5
"""How often a message is tried where not the webhook refuses it, but our code fails: it would fail for ever."""
_QUEUE_MAX: Final = 1000
"""A webhook that is down for so long loses the oldest messages."""

DROPPED_MAX: Final = 100
"""So many of those that were dropped are kept, the newest ones."""


class Outbox:
    """Delivers messages in order, again and again until the webhook takes them.

    One with which our own code fails is dropped after ``_BUG_TRIES``, so that those behind it get through. One that the
    webhook refuses for what it is, so often, is dropped once another one behind it is taken: as long as none is, it
    isn't known that the message is to blame.

    What was dropped is kept for somebody to list, until the webhook takes another message of the same condition.
    """

    def __init__(
        self,
        post: Callable[[Message], None] | None,
        *,
        delivered: Callable[[], None],
        wait_first_s: float = _WAIT_FIRST_S,
    ) -> None:
        """``post`` is ``post_alert`` without its settings; without it nothing is kept.

        ``delivered`` is called after each delivery.
        """
        self._delivered = delivered
        self._wait_first_s = wait_first_s
        self._changed = threading.Condition()
        self._is_closed = False
        self._queue = collections.deque[Message](maxlen=0 if post is None else _QUEUE_MAX)
        self._staged: list[Message] = []
        self._dropped = collections.deque[Dropped](maxlen=DROPPED_MAX)
        self._thread: threading.Thread | None = None
        if post is not None:
            self._thread = threading.Thread(target=self._work, args=(post,), name="alert-webhook", daemon=True)
            self._thread.start()

    def stage(self, messages: Iterable[Message]) -> None:
        """Have these among what is still to be delivered, and deliver none of them before ``release``."""
        if self._thread is not None:
            with self._changed:
                self._staged.extend(messages)

    def release(self) -> None:
        """Have what is staged delivered."""
        with self._changed:
            self._queue.extend(self._staged)
            self._staged = []
            self._changed.notify_all()

    def add(self, messages: Iterable[Message], dropped: Iterable[Dropped] = ()) -> None:
        """Have what is left of before delivered, and ``dropped`` among what was."""
        with self._changed:
            self._dropped.extend(dropped)
            self._queue.extend(messages)
            self._changed.notify_all()

    def left(self) -> tuple[list[Message] | None, list[Dropped]]:
        """What is still to be delivered, and what was dropped, oldest first. Of one moment: none is in neither.

        None without a webhook.
        """
        with self._changed:
            return None if self._thread is None else [*self._queue, *self._staged], list(self._dropped)

    def close(self) -> None:
        """Deliver nothing more. Who is at it may go on for a few seconds."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(2.0)

    def _work(self, post: Callable[[Message], None]) -> None:
        queue = self._queue
        tries = 0
        refused: list[Message] = []
        to_blame: list[Message] = []
        while True:
            with self._changed:
                self._changed.wait_for(lambda: queue or self._is_closed)
                if self._is_closed:
                    return
                message = next(each for each in queue if not _is_among(each, refused))
                is_last = queue[-1] is message
            tries += 1
            dropped: Dropped | None = None
            try:
                post(message)
            except DocumentRefused as refusal:
                if not _is_among(message, to_blame):
                    self._say_once(f"{refusal.message}; it goes on trying", tries)
                    if tries < _BUG_TRIES or is_last:
                        # With none behind it, it begins again with the first: one that comes meanwhile may be taken.
                        refused = [] if is_last else refused
                        self._pause(tries)
                    else:
                        refused.append(message)
                        tries = 0
                    continue
                why = f"{refusal.message}, and has taken one behind it"
                dropped = _dropped(message, why)
            except (LockstepError, OSError) as error:
                reason = error.message if isinstance(error, LockstepError) else type(error).__name__
                self._say_once(f"{reason}; it goes on trying", tries)
                self._pause(tries)
                continue
            except Exception as bug:
                self._say_once(f"{type(bug).__name__}; it is tried {_BUG_TRIES} times", tries)
                if tries < _BUG_TRIES:
                    self._pause(tries)
                    continue
                dropped = _dropped(message, f"it failed {tries} times with {type(bug).__name__}", bug)
            else:
                to_blame, refused = [*to_blame, *refused], []
            tries = 0
            to_blame = [each for each in to_blame if each is not message]
            with self._changed:
                left = [each for each in queue if each is not message]
                queue.clear()
                queue.extend(left)
                if dropped is not None:
                    self._dropped.append(dropped)
                else:
                    self._forget(message)
            self._delivered()

    def _forget(self, message: Message) -> None:
        """Whoever has been told of the condition by now lacks nothing of before. ``_changed`` is held."""
        kept = [each for each in self._dropped if each.message.condition.key != message.condition.key]
        self._dropped.clear()
        self._dropped.extend(kept)

    def _say_once(self, why: str, tries: int) -> None:
        if tries == 1:
            logger.warning(LogMessage("alert isn't delivered", {}, why))

    def _pause(self, tries: int) -> None:
        until_s = time.monotonic() + min(self._wait_first_s * 2 ** min(tries - 1, 16), _WAIT_MAX_S)
        with self._changed:
            while not self._is_closed and (left_s := until_s - time.monotonic()) > 0:
                self._changed.wait(left_s)


def _is_among(message: Message, messages: Sequence[Message]) -> bool:
    """Whether it is one of these itself. Another one may say the same."""
    return any(each is message for each in messages)


def _dropped(message: Message, why: str, bug: Exception | None = None) -> Dropped:
    """Give a message up, and say so."""
    subject = {"name": message.condition.name, "subject": message.condition.subject}
    logger.error(LogMessage("alert is dropped", subject, f"{why}; `lockstep alerts list` shows it"), exc_info=bug)
    return Dropped(message, why, time.time_ns() // 1_000_000)
