"""How much is measured. The full size takes about eight minutes on two idle cores, the quick one two."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Rows, rates and times of all phases."""

    drain_rows: int
    drain_transaction_rows: int
    drain_warm_rows: int
    """Drained once before the measured backlog: servers and page cache are warm then; capture is a new process each time."""
    latency_rate: int
    latency_s: float
    latency_warm_s: float
    sink_rate: int
    sink_probes: int
    sink_warm_s: float
    bootstrap_keys: int
    """Each has two events in the log."""


FULL = Sizes(
    drain_rows=1_000_000,
    drain_transaction_rows=1_000,
    drain_warm_rows=100_000,
    latency_rate=200,
    latency_s=30.0,
    latency_warm_s=10.0,
    sink_rate=50,
    sink_probes=80,
    sink_warm_s=30.0,
    bootstrap_keys=1_000_000,
)

QUICK = Sizes(
    drain_rows=100_000,
    drain_transaction_rows=1_000,
    drain_warm_rows=10_000,
    latency_rate=200,
    latency_s=8.0,
    latency_warm_s=4.0,
    sink_rate=50,
    sink_probes=12,
    sink_warm_s=10.0,
    bootstrap_keys=50_000,
)
