"""Looks at each lag report, and tells whoever is to be told: one process of a pipeline does."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Self

from cdc.model.errors import LockstepError
from cdc.model.log_message import LogMessage
from monitor.alerts.book import Entry, Key, Kind, Message, take
from monitor.alerts.channels import channels_of
from monitor.alerts.outbox import Outbox
from monitor.alerts.settings import AlertSettings
from monitor.alerts.store import AlertStore, State
from monitor.conditions import Condition, Facts, Severity, find_conditions
from monitor.lag import LagReport
from monitor.verification import VerifySettings

logger = logging.getLogger("lockstep.alerts")


class AlertWatch:
    """Of several processes of one directory, the first tells. When it ends, another goes on where it was."""

    def __init__(
        self,
        pipeline: str,
        settings: AlertSettings,
        *,
        facts: Callable[[], Facts] = Facts,
        verify: VerifySettings | None = None,
        retry_s: float = 1.0,
    ) -> None:
        """``facts`` is what ``monitor.alerts.facts.FactsCollector.latest`` says, ``verify`` when sinks are compared."""
        self._pipeline = pipeline
        self._settings = settings
        self._facts = facts
        self._verify = verify or VerifySettings()
        self._retry_s = retry_s
        self._store = AlertStore(settings.directory)
        self._saving = threading.Lock()
        self._book: Mapping[Key, Entry] = {}
        self._outbox: Outbox | None = None
        self._trouble: str | None = None
        self._open: tuple[Condition, ...] = ()

    @property
    def open(self) -> tuple[Condition, ...]:
        """What was wrong at the last look, whether it was told or not."""
        return self._open

    @property
    def tells(self) -> bool:
        """Whether this is the process that tells, as of the last look."""
        return self._outbox is not None

    def look(self, report: LagReport | LockstepError, *, now_ms: int) -> None:
        """Take the next report, or the error that came in its place. Waits for nobody who is told, and never raises.

        Where the directory can't be used, everything is told anyway, and maybe told again after a restart.
        """
        findings = find_conditions(report, self._facts(), self._settings, now_ms=now_ms, verify=self._verify)
        self._open = findings.open
        silences: Mapping[str, int] = {}
        try:
            if self._outbox is None and not self._store.take_lock():
                return
            if self._outbox is None:
                self._begin(self._store.load())
            silences = self._store.silences(now_ms=now_ms)
            self._trouble = None
        except LockstepError as error:
            self._say_trouble(error)
            if self._outbox is None:
                self._begin(State())
        assert self._outbox is not None
        book, messages = take(
            self._book,
            findings,
            silences=silences,
            open_after_s=self._settings.open_after_s,
            clear_after_s=self._settings.clear_after_s,
            pipeline=self._pipeline,
            now_ms=now_ms,
        )
        with self._saving:
            self._book = book
        if messages:
            for message in messages:
                log_message(message)
            self._outbox.put(messages)
            self._save()

    def close(self) -> None:
        """Stop. What isn't delivered by then is delivered by the next process."""
        if self._outbox is not None:
            self._outbox.close()
            self._save()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, state: State) -> None:
        self._book = state.book
        channels = channels_of(self._settings)
        self._outbox = Outbox(channels, state.queues, delivered=self._save, wait_first_s=self._retry_s)
        self._save()  # what was delivered before the outbox was ours

    def _save(self) -> None:
        outbox = self._outbox
        if outbox is None:
            return
        try:
            with self._saving:
                self._store.save(
                    State({key: entry for key, entry in self._book.items() if entry.told}, outbox.queues())
                )
        except LockstepError as error:
            self._say_trouble(error)

    def _say_trouble(self, error: LockstepError) -> None:
        if self._trouble != error.message:
            self._trouble = error.message
            logger.error("alerts aren't remembered: %s", error)


def log_message(message: Message) -> None:
    """One line in the log, of the severity that the message has."""
    condition = message.condition
    level = logging.WARNING if condition.severity is Severity.WARNING else logging.ERROR
    if message.kind in (Kind.CLEARED, Kind.TEST):
        level = logging.INFO
    logger.log(
        level,
        LogMessage(
            f"alert {message.kind.value}",
            {"name": condition.name, "subject": condition.subject},
            f"{condition.sentence}: {condition.step}",
        ),
    )
