"""What an event costs on its way into Kafka: capture, PostgreSQL's sender and the brokers.

Capture runs and is warm. It is stopped while the backlog is written and goes on then, so it doesn't matter how fast
rows are written, and its start doesn't count.
"""

import os
import signal
import time
from collections.abc import Callable

from bench.cost_tables import TRANSACTION_ROWS, CostTables, cost_tables
from bench.rig import Child, Rig, Say, wait_until
from bench.usage import cpu_seconds, main_thread_seconds
from cdc.kafka.control_topics import read_state
from cdc.model.errors import LockstepError
from cdc.postgres.slot import find_slot, wal_end
from cdc.protocol.control_records import SnapshotPhase

_WARM_SHARE = 5
"""The first backlog is this part of one."""

_START_S = 900.0
_EVENTS_PER_S_MIN = 500
_TABLE_S_MAX = 0.5
"""What the first row of a table may take: the catalogue is asked about it."""


def capture_costs(rig: Rig, *, tables: int, partitions: int, events: int, say: Say) -> dict[str, float]:
    """Processor time per event in microseconds, by stage. Raises LockstepError when capture fails or hangs."""
    with cost_tables(rig, tables=tables, partitions=partitions) as source:
        began = time.monotonic()
        capture = rig.start("capture", "capture", "--config", str(source.path))
        wait_until(_streams(source, capture), what="capture streams", timeout_s=_START_S, every_s=0.2)
        say(f"{tables:,} tables, {partitions} partitions: capture streams after {time.monotonic() - began:.1f} s")
        # Each table once at least: its first row has it described.
        warm = max(events // _WARM_SHARE, tables * TRANSACTION_ROWS // 10)
        _backlog(rig, source, capture, first=0, rows=warm)
        used = _backlog(rig, source, capture, first=warm, rows=events)
        rig.stop(capture)
    costs = {stage: 1e6 * seconds / events for stage, seconds in used.items()}
    say(", ".join(f"{stage} {us:.1f} us" for stage, us in costs.items()))
    return costs


def _backlog(rig: Rig, source: CostTables, capture: Child, *, first: int, rows: int) -> dict[str, float]:
    """Processor seconds, by stage, of a backlog that capture finds when it goes on."""
    slot = find_slot(source.connection, source.config.slot)
    if slot is None or slot.active_pid is None:
        raise LockstepError("capture doesn't read its slot any more")
    sender, pid, kafka = slot.active_pid, capture.process.pid, rig.server_pids["kafka"]
    stages: dict[str, Callable[[], float]] = {
        "capture": lambda: cpu_seconds(pid),
        "capture, main thread": lambda: main_thread_seconds(pid),
        "sender": lambda: cpu_seconds(sender),
        "kafka, published": lambda: cpu_seconds(kafka),
    }
    os.kill(pid, signal.SIGSTOP)
    try:
        # The sender works ahead of capture, as far as the socket's buffers go.
        before = {stage: seconds() for stage, seconds in stages.items()}
        source.load(first=first, rows=rows - TRANSACTION_ROWS)
        almost_all = wal_end(source.connection)
        source.load(first=first + rows - TRANSACTION_ROWS, rows=TRANSACTION_ROWS)
        before["kafka, published"] = stages["kafka, published"]()
    finally:
        os.kill(pid, signal.SIGCONT)
    config = source.config

    def published() -> bool:
        capture.check()
        state = read_state(config.kafka.client(), config.pipeline.name, config.slot)
        return state is not None and state.end_lsn > almost_all

    timeout_s = 60 + rows / _EVENTS_PER_S_MIN + _TABLE_S_MAX * len(config.topics())
    wait_until(published, what="the backlog is published", timeout_s=timeout_s, every_s=0.5)
    return {stage: seconds() - before[stage] for stage, seconds in stages.items()}


def _streams(source: CostTables, capture: Child) -> Callable[[], bool]:
    config = source.config

    def streams() -> bool:
        capture.check()
        slot = find_slot(source.connection, config.slot)
        if slot is None or slot.active_pid is None:
            return False
        state = read_state(config.kafka.client(), config.pipeline.name, config.slot)
        return state is not None and state.phase is SnapshotPhase.DONE

    return streams
