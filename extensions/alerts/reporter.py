"""Takes the findings of each look, and reports what is due."""

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from cdc.model.errors import LockstepError
from cdc.model.log_message import LogMessage
from extensions.alerts.channel import post_alert
from extensions.alerts.due_messages import Entry, Kind, Message, opened_of, take
from extensions.alerts.outbox import Outbox
from extensions.alerts.settings import AlertSettings
from extensions.alerts.store import AlertStore, State
from lockstep.config import Config
from monitor.conditions import Findings, Key, Severity

logger = logging.getLogger("lockstep.alerts")


class AlertReporter:
    """A ``monitor.condition_watch.Reporter``. When its process ends, another process goes on where it was."""

    def __init__(self, pipeline: str, settings: AlertSettings, directory: Path, *, retry_s: float = 1.0) -> None:
        """``directory`` stores what was reported and what is to be delivered; without it, restarts repeat alerts."""
        self._pipeline = pipeline
        self._settings = settings
        self._retry_s = retry_s
        self._store = AlertStore(directory)
        self._saving = threading.Lock()  # held while book and queue change together, and until both are on disk
        self._book: Mapping[Key, Entry] = {}
        self._outbox: Outbox | None = None
        self._is_loaded = False
        self._trouble: str | None = None

    @property
    def reported(self) -> Collection[Key]:
        return {key for key, entry in self._book.items() if entry.reported}

    def look(self, findings: Findings, *, now_ms: int) -> None:
        """Take the findings of a look. Waits for no delivery, and never raises. If the directory can't be used,
        everything is reported anyway, perhaps again after a restart. A damaged file stays as it is, and nothing is
        stored until it can be read or is gone.
        """
        try:
            if not self._is_loaded:
                self._resume(self._store.load(), now_ms=now_ms)
            self._trouble = None
        except LockstepError as error:
            self._say_trouble(error)
        book, messages = take(self._book, findings, pipeline=self._pipeline, now_ms=now_ms)
        for message in messages:
            log_message(message)
        with self._saving:
            outbox = self._opened()
            self._book = book
            if messages:
                # Book and queue get to disk together, and before any delivery. Otherwise a process that dies in between
                # loses a message, or its successor sends it with another id.
                self._write(outbox, messages)
                outbox.add(messages)

    def close(self) -> None:
        """Stop. The next process delivers the rest."""
        if self._outbox is not None:
            self._outbox.close()
            self._save()
        with self._saving:  # a delivery that ends later isn't stored: another process may own the directory by then
            self._outbox = None

    def _resume(self, state: State, *, now_ms: int) -> None:
        """Go on where the earlier process was. What this one has reported since it couldn't read that stays reported. A
        new webhook gets a message for each open condition.
        """
        with self._saving:
            unreported = {key: entry for key, entry in state.book.items() if key not in self._book}
            self._book = {**state.book, **self._book}
            outbox = self._opened()
            queue = state.queue
            if queue is None:
                queue = opened_of(unreported, pipeline=self._pipeline, now_ms=now_ms)
            elif queue and self._settings.webhook is None:
                why = f"alerts.url isn't set any more, and {len(queue)} messages were still to be delivered"
                logger.warning(LogMessage("alerts are given up", {}, why))
            outbox.add(queue)
            self._is_loaded = True
            self._write(outbox)

    def _opened(self) -> Outbox:
        if self._outbox is None:
            settings = self._settings.webhook
            post = None if settings is None else partial(post_alert, settings)
            self._outbox = Outbox(post, delivered=self._save, wait_first_s=self._retry_s)
        return self._outbox

    def _save(self) -> None:
        with self._saving:
            if self._outbox is not None:
                self._write(self._outbox)

    def _write(self, outbox: Outbox, further: Sequence[Message] = ()) -> None:
        """Store the book, the queue and ``further``, which comes after it. ``_saving`` must be held."""
        if not self._is_loaded:
            return
        reported = {key: entry for key, entry in self._book.items() if entry.reported}
        left = outbox.left()
        try:
            self._store.save(State(reported, None if left is None else [*left, *further]))
        except LockstepError as error:
            self._say_trouble(error)

    def _say_trouble(self, error: LockstepError) -> None:
        if self._trouble != error.message:
            self._trouble = error.message
            logger.error("alerts aren't remembered: %s", error)


def log_message(message: Message) -> None:
    """Log a message with its severity. A condition that is over needs no advice."""
    condition = message.condition
    level = logging.WARNING if condition.severity is Severity.WARNING else logging.ERROR
    if message.kind in (Kind.CLEARED, Kind.TEST):
        level = logging.INFO
    logger.log(
        level,
        LogMessage(
            f"alert {message.kind.value}",
            {
                "name": condition.name,
                "subject": condition.subject,
                "severity": condition.severity.label,
                "id": "_".join(message.id.split()),
            },
            "it is over" if message.kind is Kind.CLEARED else f"{condition.sentence}: {condition.step}",
        ),
    )


def reporter_of(config: Config) -> AlertReporter:
    return AlertReporter(config.pipeline.name, config.section(AlertSettings), config.watch_directory)
