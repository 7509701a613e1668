"""What is kept of a comparison in the sink itself, and that no two of one sink run at once on this machine."""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from cdc.model.errors import LockstepError
from lockstep.config import Config
from lockstep.generations import settings_of
from lockstep.verify.options import SOURCE, VerifyOptions
from lockstep.verify.report import VerifyReport
from monitor.verification import Verification, VerifyOutcome, save_verification
from sinks.registry import open_sink

logger = logging.getLogger("lockstep.verify")


def is_of_everything(options: VerifyOptions) -> bool:
    """Whether the comparison says something of a generation as a whole."""
    return options.against == SOURCE and not options.tables and not options.keys


@contextlib.contextmanager
def only_one(directory: Path, sink: str) -> Iterator[None]:
    """Be the only comparison of a sink for the length of the block, whatever ends it.

    Raises LockstepError where another one runs. Where there can't be a lock, nothing is locked.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / f"verify-{sink}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        logger.warning("%s can't be used, so nothing keeps two comparisons apart: %s", directory, error.strerror)
        yield
        return
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LockstepError(
                f"sink {sink!r} is being compared already", hint="wait for that, `lockstep lag` shows what it finds"
            ) from None
        yield
    finally:
        os.close(lock)


def keep(config: Config, report: VerifyReport, *, began_ms: int) -> None:
    """Store what a comparison of everything has found. Raises what the destination raises."""
    through = report.lsn if report.outcome is VerifyOutcome.EQUAL else None
    verification = Verification(
        began_ms,
        _now_ms(),
        report.outcome,
        sum(len(table.differences) for table in report.tables),
        through_lsn=through or 0,
        through_ms=began_ms if through else 0,
    )
    _store(config, report.sink, report.generation, verification)


def keep_failure(config: Config, options: VerifyOptions, error: LockstepError, *, began_ms: int) -> None:
    """Store that a comparison of everything ended by an error, where the sink takes that."""
    verification = Verification(began_ms, _now_ms(), VerifyOutcome.FAILED, error=error.message)
    try:
        _store(config, options.sink, options.generation, verification)
    except LockstepError as refused:
        logger.warning("that the comparison failed isn't kept: %s", refused.message)


def _store(config: Config, sink: str, generation: int | None, verification: Verification) -> None:
    opened = open_sink(sink, settings_of(config, sink), generation or 1)
    try:
        number = opened.generations.live() if generation is None else generation
        if number is not None:
            save_verification(opened.records, number, verification)
    finally:
        opened.sink.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
