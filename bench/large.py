"""One large transaction, and the work after its commit.

It commits when its last row is inserted. Another connection commits a row right after it, and waits until it is
published. Both times end with the progress record that shows it, of which there are ten a second.
"""

import time
from dataclasses import dataclass
from typing import Any

from bench.drain import Follower
from bench.figures import Figure, Target
from bench.rig import Rig, Say
from bench.sizes import Sizes
from bench.usage import cpu_seconds, main_thread_seconds
from cdc.postgres.slot import wal_end

PHASE = "large"

_PIECES = 20
_COMMIT_S_MAX = 6.0
_BYSTANDER_S_MAX = 7.0
_MEMORY_MB_MAX = 150
_ROWS_OF_TARGETS = 1_000_000
"""The targets in seconds are for this many rows."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor seconds. ``capture_main`` is capture's main thread alone."""

    capture: float
    capture_main: float
    sender: float
    kafka: float


@dataclass(frozen=True, slots=True)
class Large:
    """One transaction. Seconds count from its commit, and from that of the row after it."""

    last_row_s: float
    bystander_s: float
    before: Spent
    after: Spent
    memory_mb: float


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Returns figures and details. Raises LockstepError when capture fails or takes too long."""
    large = _transaction(rig, sizes, say=say)
    details = {"before_cpu_s": _rounded(large.before), "after_cpu_s": _rounded(large.after)}
    return figures_of(large, sizes.large_rows), details


def figures_of(large: Large, rows: int) -> list[Figure]:
    """Pure."""

    def figure(name: str, value: float, unit: str, target: float | None = None) -> Figure:
        bound = None if target is None else Target(bound="at most", amount=target)
        return Figure(phase=PHASE, name=name, value=value, unit=unit, target=bound)

    timed = rows == _ROWS_OF_TARGETS
    after, before = large.after, large.before
    return [
        figure("commit to last row", large.last_row_s, "s", _COMMIT_S_MAX if timed else None),
        figure("a bystander's commit to its row", large.bystander_s, "s", _BYSTANDER_S_MAX if timed else None),
        figure("after the commit: capture", after.capture, "cpu s"),
        figure("... its main thread", after.capture_main, "cpu s"),
        figure("... PostgreSQL's sender", after.sender, "cpu s"),
        figure("... Kafka", after.kafka, "cpu s"),
        figure("before the commit: capture and sender", before.capture + before.sender, "cpu s"),
        figure("peak memory of capture", large.memory_mb, "MB", _MEMORY_MB_MAX),
    ]


def _transaction(rig: Rig, sizes: Sizes, *, say: Say) -> Large:
    rows = sizes.large_rows
    with rig.pipeline("large") as pipeline, pipeline.sql() as writer, pipeline.sql() as bystander:
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
        pipeline.load(writer, first=0, rows=sizes.drain_transaction_rows, per_transaction=sizes.drain_transaction_rows)
        pipeline.wait_published(capture, wal_end(bystander), timeout_s=60)
        first, piece = sizes.drain_transaction_rows, rows // _PIECES
        follower = Follower(pipeline)
        sender, kafka = pipeline.sender_pid(), rig.server_pids["kafka"]

        def spent() -> Spent:
            pid = capture.process.pid
            return Spent(cpu_seconds(pid), main_thread_seconds(pid), cpu_seconds(sender), cpu_seconds(kafka))

        try:
            began = spent()
            with writer.transaction():
                for number in range(_PIECES):
                    pipeline.insert_rows(writer, first=first + number * piece, rows=piece)
                # Not after the commits: other WAL that is written by then would have to be published, too.
                before_commit = wal_end(writer)
            committed_at, committed, before_bystander = time.time(), spent(), wal_end(bystander)
            pipeline.insert(bystander, first + rows)
            bystander_at = time.time()
            last_row_at = follower.published_at(capture, after_lsn=before_commit, rows=rows)
            ended = spent()
            bystander_row_at = follower.published_at(capture, after_lsn=before_bystander, rows=rows)
        finally:
            follower.close()
        pipeline.stop(capture)
    large = Large(
        last_row_s=last_row_at - committed_at,
        bystander_s=bystander_row_at - bystander_at,
        before=_between(began, committed),
        after=_between(committed, ended),
        memory_mb=capture.memory.megabytes,
    )
    say(
        f"{rows:,} rows: {large.last_row_s:.1f} s from the commit to the last,"
        f" {large.after.capture:.1f} s of capture's processor time, {large.memory_mb:.0f} MB"
    )
    return large


def _between(earlier: Spent, later: Spent) -> Spent:
    return Spent(
        later.capture - earlier.capture,
        later.capture_main - earlier.capture_main,
        later.sender - earlier.sender,
        later.kafka - earlier.kafka,
    )


def _rounded(spent: Spent) -> dict[str, float]:
    return {
        name: round(value, 2)
        for name, value in (
            ("capture", spent.capture),
            ("capture_main", spent.capture_main),
            ("sender", spent.sender),
            ("kafka", spent.kafka),
        )
    }
