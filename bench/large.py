"""One large transaction, with `capture.spool_transactions` and without: what there is to do after its commit.

It commits when its last row is inserted. Somebody else commits a row right after it, and waits until it is published.
Both times end with the progress record that tells it, of which there are ten a second.
"""

import time
from dataclasses import dataclass
from typing import Any

from bench.drain import Follower
from bench.figures import Figure, Limit, Target
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
"""The targets in seconds are those of so many rows."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor seconds, capture's with those of its main thread alone."""

    capture: float
    capture_main: float
    sender: float
    kafka: float


@dataclass(frozen=True, slots=True)
class Large:
    """Of one transaction. Seconds count from its commit, and from that of the row after it."""

    last_row_s: float
    bystander_s: float
    before: Spent
    after: Spent
    memory_mb: float


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Returns figures and details. Raises LockstepError when capture fails or takes too long."""
    whole = _transaction(rig, sizes, in_parts=False, say=say)
    parts = _transaction(rig, sizes, in_parts=True, say=say)
    return figures_of(whole, parts, sizes.large_rows), {
        name: {"before_cpu_s": _rounded(it.before), "after_cpu_s": _rounded(it.after)}
        for name, it in (("whole", whole), ("in_parts", parts))
    }


def figures_of(whole: Large, parts: Large, rows: int) -> list[Figure]:
    """The figures with the spool, each beside that without it. Pure."""

    def figure(name: str, value: float, without: float, unit: str, target: float | None = None) -> Figure:
        return Figure(
            phase=PHASE,
            name=name,
            value=value,
            unit=unit,
            limit=Limit(value=without, what="the same with spool_transactions = false"),
            target=None if target is None else Target(bound="at most", amount=target),
        )

    timed = rows == _ROWS_OF_TARGETS
    after, after_whole = parts.after, whole.after
    return [
        figure("commit to last row", parts.last_row_s, whole.last_row_s, "s", _COMMIT_S_MAX if timed else None),
        figure(
            "a bystander's commit to its row",
            parts.bystander_s,
            whole.bystander_s,
            "s",
            _BYSTANDER_S_MAX if timed else None,
        ),
        figure("after the commit: capture", after.capture, after_whole.capture, "cpu s"),
        figure("... its main thread", after.capture_main, after_whole.capture_main, "cpu s"),
        figure("... PostgreSQL's sender", after.sender, after_whole.sender, "cpu s"),
        figure("... Kafka", after.kafka, after_whole.kafka, "cpu s"),
        figure(
            "before the commit: capture and sender",
            parts.before.capture + parts.before.sender,
            whole.before.capture + whole.before.sender,
            "cpu s",
        ),
        figure("peak memory of capture", parts.memory_mb, whole.memory_mb, "MB", _MEMORY_MB_MAX),
    ]


def _transaction(rig: Rig, sizes: Sizes, *, in_parts: bool, say: Say) -> Large:
    rows = sizes.large_rows
    settings = f'spool_transactions = {str(in_parts).lower()}\nspool_directory = "{rig.directory / "spool"}"'
    with rig.pipeline("large", capture=settings) as pipeline, pipeline.sql() as writer, pipeline.sql() as bystander:
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
                # Not after the commits: whatever else writes WAL by then would have to be published, too.
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
        f"{rows:,} rows, {'in parts' if in_parts else 'whole'}: {large.last_row_s:.1f} s from the commit to the last,"
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
