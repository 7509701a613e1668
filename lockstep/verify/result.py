"""Stores a comparison's result in the sink itself, and keeps two comparisons of a sink from running at once here."""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from cdc.model.errors import LockstepError, Unavailable
from lockstep.config import Config
from lockstep.generations import settings_of
from lockstep.verify.options import SOURCE, VerifyOptions
from lockstep.verify.report import BY_TOPIC, VerifyReport
from lockstep.verify.sides.compared_columns import NOT_IN_LOG
from monitor.reporter_lock import make_directory, open_lock
from monitor.verification import Verification, VerifyOutcome, save_verification
from sinks.registry import open_sink

logger = logging.getLogger("lockstep.verify")

WAITS_S: Final = (1.0, 4.0)


def is_of_everything(options: VerifyOptions) -> bool:
    """Whether the comparison covers a generation as a whole."""
    return options.against == SOURCE and not options.tables and not options.keys


@contextlib.contextmanager
def only_one(directory: Path, sink: str) -> Iterator[None]:
    """Be the only comparison of a sink on this machine until the block ends, however it ends. Raises LockstepError if
    another one runs. If the lock file can't be used, nothing is locked."""
    try:
        make_directory(directory)
        lock = open_lock(directory / f"verify-{sink}.lock")
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


def result_of(report: VerifyReport, *, began_ms: int, ended_ms: int) -> Verification:
    """What to store of a comparison of everything. Pure."""
    verification = Verification(
        began_ms, ended_ms, report.outcome, sum(len(table.differences) for table in report.tables)
    )
    if report.outcome is VerifyOutcome.EQUAL:
        verification = replace(
            verification,
            through_lsn=report.lsn or 0,
            through_ms=began_ms if report.lsn else 0,
            through_epoch=report.epoch,
            but_for=tuple(_but_for(report)),
        )
    return verification


def _but_for(report: VerifyReport) -> Iterator[str]:
    """What a comparison that found nothing doesn't cover."""
    by_topic = sum(table.note == BY_TOPIC for table in report.tables)
    if by_topic:
        yield f"append-only tables, compared with their topics ({by_topic})"
    lacking = sum(table.may_lack_rows for table in report.tables)
    if lacking:
        yield f"tables that may lack rows ({lacking})"
    columns = sum(reason == NOT_IN_LOG for table in report.tables for _, reason in table.left_out)
    if columns:
        yield f"columns without an event so far ({columns})"


def failure_of(error: LockstepError, *, began_ms: int, ended_ms: int) -> Verification:
    """What to store of a comparison of everything that ended with an error. Pure."""
    return Verification(began_ms, ended_ms, VerifyOutcome.FAILED, error=error.message)


def keep(config: Config, sink: str, generation: int | None, verification: Verification) -> None:
    """Store it in the sink, for a generation or the live one. Retries a while, then the log has a warning."""
    for wait_s in (*WAITS_S, None):
        try:
            _store(config, sink, generation, verification)
        except LockstepError as error:
            if wait_s is None or not isinstance(error, Unavailable):
                logger.warning("the result isn't stored in sink %s: %s", sink, error.message)
                return
            time.sleep(wait_s)
        else:
            return


def _store(config: Config, sink: str, generation: int | None, verification: Verification) -> None:
    opened = open_sink(sink, settings_of(config, sink), generation or 1)
    try:
        number = opened.generations.live() if generation is None else generation
        if number is not None:
            save_verification(opened.records, number, verification)
    finally:
        opened.sink.close()
