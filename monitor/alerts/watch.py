"""Looks at each lag report, and tells whoever is to be told: one process of a pipeline does."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from cdc.model.errors import LockstepError
from cdc.model.log_message import LogMessage
from monitor.alerts.book import Entry, Key, Kind, Message, opened_of, take
from monitor.alerts.channel import post_alert
from monitor.alerts.conditions import RETAINED_WAL_BYTES, Condition, Facts, Findings, Severity, find_conditions
from monitor.alerts.outbox import Outbox
from monitor.alerts.settings import AlertSettings
from monitor.alerts.store import AlertStore, State
from monitor.lag import LagReport
from monitor.verification import VerifySettings

logger = logging.getLogger("lockstep.alerts")


class AlertWatch:
    """Of several processes of one directory, the first tells. When it ends, another goes on where it was."""

    def __init__(
        self,
        pipeline: str,
        settings: AlertSettings,
        directory: Path,
        *,
        facts: Callable[[], Facts] = Facts,
        verify: VerifySettings | None = None,
        retained_max_bytes: int | None = None,
        retry_s: float = 1.0,
    ) -> None:
        """``directory`` has what was told and is still to be delivered; without it alerts come again after a restart.

        ``facts`` is what ``monitor.alerts.facts.FactsCollector.latest`` says, ``verify`` when sinks are compared,
        ``retained_max_bytes`` how much WAL the slot may hold back, where somebody has said that.
        """
        self._pipeline = pipeline
        self._settings = settings
        self._facts = facts
        self._verify = verify or VerifySettings()
        self._retained_max_bytes = retained_max_bytes or RETAINED_WAL_BYTES
        self._retry_s = retry_s
        self._store = AlertStore(directory)
        self._saving = threading.Lock()  # held while book and queues change together, and until both are on disk
        self._book: Mapping[Key, Entry] = {}
        self._outbox: Outbox | None = None
        self._is_loaded = False
        self._trouble: str | None = None
        self._open: tuple[Condition, ...] = ()
        self._held: Mapping[Key, int] = {}

    @property
    def open(self) -> tuple[Condition, ...]:
        """What was wrong at the last look, told or not; what has to hold for long, once it was told or held so long."""
        return self._open

    @property
    def tells(self) -> bool:
        """Whether this is the process that tells, as of the last look."""
        return self._outbox is not None

    def look(self, report: LagReport | LockstepError, *, now_ms: int) -> None:
        """Take the next report, or the error that came in its place. Waits for nobody who is told, and never raises.

        Where the directory can't be used, everything is told anyway, and maybe told again after a restart. A file of it
        that can't be read is left as it is, and nothing is kept until it can be read or is gone.
        """
        findings = find_conditions(
            report,
            self._facts(),
            self._settings,
            now_ms=now_ms,
            verify=self._verify,
            retained_max_bytes=self._retained_max_bytes,
        )
        self._held = {each.key: self._held.get(each.key, now_ms) for each in findings.open if each.hold_s}
        self._open = self._shown(findings, self._book, now_ms=now_ms)
        try:
            if not self._is_loaded:
                if not self._store.take_lock():
                    return
                self._resume(self._store.load(), now_ms=now_ms)
            self._store.mark_look()
            self._trouble = None
        except LockstepError as error:
            self._say_trouble(error)
        book, messages = take(self._book, findings, pipeline=self._pipeline, now_ms=now_ms)
        self._open = self._shown(findings, book, now_ms=now_ms)
        for message in messages:
            log_message(message)
        with self._saving:
            outbox = self._opened()
            self._book = book
            if messages:
                # Who was told and what is to be delivered get to disk together, and before anybody is told: else
                # a process that dies in between loses a message, or its successor tells it under another id.
                self._write(outbox, messages)
                outbox.add(messages)

    def close(self) -> None:
        """Stop. What isn't delivered by then is delivered by the next process."""
        if self._outbox is not None:
            self._outbox.close()
            self._save()
        with self._saving:  # a delivery that ends later is kept no more: the directory is another process's by then
            self._outbox = None
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _shown(self, findings: Findings, book: Mapping[Key, Entry], *, now_ms: int) -> tuple[Condition, ...]:
        told = {key for key, entry in book.items() if entry.told}
        return tuple(
            each
            for each in findings.open
            if not each.hold_s or each.key in told or now_ms - self._held[each.key] >= each.hold_s * 1000
        )

    def _resume(self, state: State, *, now_ms: int) -> None:
        """Go on where the process before was. What this one has told since it couldn't read that stays told.

        A webhook that is new is told of what is open.
        """
        with self._saving:
            untold = {key: entry for key, entry in state.book.items() if key not in self._book}
            self._book = {**state.book, **self._book}
            outbox = self._opened()
            queue = state.queue
            if queue is None:
                queue = opened_of(untold, pipeline=self._pipeline, now_ms=now_ms)
            elif queue and self._settings.webhook is None:
                why = f"alerts.webhook isn't set any more, and {len(queue)} messages were still to be delivered"
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
        """Keep the book, the queue and what comes after it. ``_saving`` is held."""
        if not self._is_loaded:
            return
        told = {key: entry for key, entry in self._book.items() if entry.told}
        left = outbox.left()
        try:
            self._store.save(State(told, None if left is None else [*left, *further]))
        except LockstepError as error:
            self._say_trouble(error)

    def _say_trouble(self, error: LockstepError) -> None:
        if self._trouble != error.message:
            self._trouble = error.message
            logger.error("alerts aren't remembered: %s", error)


def log_message(message: Message) -> None:
    """One line in the log, of the severity that the message has. One that is over needs no advice."""
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
                "severity": condition.severity.name.lower(),
                "id": "_".join(message.id.split()),
            },
            "it is over" if message.kind is Kind.CLEARED else f"{condition.sentence}: {condition.step}",
        ),
    )
