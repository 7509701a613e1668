"""The rejections of one query: stored as dead letters, and known to the tasks of its next batch."""

import threading
from collections.abc import Iterable, Mapping
from typing import Protocol

from cdc.model.table import TableName
from jobs.clock import now_ms
from jobs.dead_letters.limit import TooManyOpen
from jobs.executor.driver_line import TaskReport
from jobs.executor.result import RejectedEvent, Result, check_rejections
from jobs.generations.lease import GenerationLease
from sinks.contract import TablesRefused

OpenRejections = Mapping[tuple[str, bytes], str]
"""Topic and key -> tag of each open rejection."""


class Letters(Protocol):
    """Stores rejections; see ``jobs.dead_letters.store.DeadLetters``."""

    def keep(
        self,
        rejected: Iterable[RejectedEvent],
        void: Iterable[tuple[str, bytes]],
        *,
        rejected_at_ms: int,
        max_open: int,
    ) -> OpenRejections:
        """Write these, and remove void ones. Returns all open ones. Raises TooManyOpen, and Unavailable."""


class Rejections:
    """Thread-safe: rejections also come from the thread that listens to tasks."""

    def __init__(
        self,
        sink: str,
        letters: Letters,
        opened: OpenRejections,
        lease: GenerationLease,
        *,
        tables: Mapping[str, TableName] | None,
        max_open: int,
    ) -> None:
        """``opened`` are the open ones from before. ``tables``, by topic, can each be held; None if none can."""
        self._sink = sink
        self._letters = letters
        self._lease = lease
        self._tables = tables
        self._max_open = max_open
        self._keeping = threading.Lock()
        self._open = opened

    @property
    def open(self) -> OpenRejections:
        """The open rejections: another object after each change."""
        with self._keeping:
            return self._open

    def keep(self, result: Result | TaskReport) -> None:
        """Write dead letters, remove void ones, and let the next batch know. Raises LockstepError if there are too
        many, and as ``GenerationLease.check``: a newer job may have applied these events while this one hung, and
        closed their rejections."""
        if not (result.rejected or result.resolved):
            return
        self._lease.check()
        check_rejections(self._sink, result.rejected, self._tables)
        with self._keeping:
            try:
                self._open = self._letters.keep(
                    result.rejected, result.resolved, rejected_at_ms=now_ms(), max_open=self._max_open
                )
            except TooManyOpen as error:
                table = None if self._tables is None else self._tables.get(error.topic)
                if table is None:
                    raise
                raise TablesRefused({table: error}) from None
