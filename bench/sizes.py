"""How much is measured. The quick size starts Spark as often as the full one, so it isn't much quicker."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Rows, rates and times of all phases."""

    drain_rows: int
    drain_transaction_rows: int
    drain_warm_rows: int
    """Drained once before the measured backlog, to warm up servers and page cache. Each capture is a new process."""
    large_rows: int
    """In one transaction."""
    snapshot_rows: int
    snapshot_rate: int
    """Transactions a second on the source while its table is copied, and without a copy."""
    snapshot_quiet_s: float
    """How long they are measured without a copy."""
    latency_rate: int
    latency_high_rate: int
    latency_s: float
    latency_warm_s: float
    """The broker is a JVM, and gets faster for longer than our process does. The next phase uses the same one."""
    sink_rate: int
    sink_probes: int
    """With 100, the p99 isn't the worst one."""
    sink_warm_s: float
    everyday_rates: tuple[int, ...]
    """Transactions a second, of four rows each."""
    everyday_s: float
    """How long each rate is measured, and an idle pipeline."""
    everyday_warm_s: float
    everyday_settle_s: float
    """At each rate, before it is measured."""
    bootstrap_keys: int
    """Each has two events in the log."""
    replay_events: int
    """In each backlog; tens of thousands."""
    many_tables: int
    many_batches: int
    many_idle_s: float
    view_entries: tuple[int, ...]
    """Of the states of a view, from small to large: rows that its operators store."""
    watched_s: float
    """How long the page's processor time is measured, idle and under traffic."""
    watched_rounds: int
    """Rounds of simultaneous waits."""
    view_events: int
    """In the log from which a timeline is built; a multiple of ten."""
    view_followers: int
    """Of the user whose tweets are awaited in all timelines."""
    view_tweets: int
    """Of that user."""
    timeline_users: int
    """Of the timeline beside Flink's; each has 15 events in the backlog."""
    timeline_s: float
    """How long its changes are measured, at the rate of the sinks."""


FULL = Sizes(
    drain_rows=1_000_000,
    drain_transaction_rows=1_000,
    drain_warm_rows=100_000,
    large_rows=1_000_000,
    snapshot_rows=1_000_000,
    snapshot_rate=100,
    snapshot_quiet_s=15.0,
    latency_rate=200,
    latency_high_rate=1_000,
    latency_s=30.0,
    latency_warm_s=30.0,
    sink_rate=50,
    sink_probes=100,
    sink_warm_s=30.0,
    everyday_rates=(5, 50, 200),
    everyday_s=30.0,
    everyday_warm_s=45.0,
    everyday_settle_s=8.0,
    bootstrap_keys=1_000_000,
    replay_events=500_000,
    many_tables=2_000,
    many_batches=30,
    many_idle_s=30.0,
    view_entries=(10_000, 100_000, 1_000_000, 5_000_000),
    watched_s=30.0,
    watched_rounds=20,
    view_events=1_000_000,
    view_followers=10_000,
    view_tweets=20,
    timeline_users=10_000,
    timeline_s=30.0,
)

QUICK = Sizes(
    drain_rows=100_000,
    drain_transaction_rows=1_000,
    drain_warm_rows=10_000,
    large_rows=100_000,
    snapshot_rows=100_000,
    snapshot_rate=100,
    snapshot_quiet_s=5.0,
    latency_rate=200,
    latency_high_rate=1_000,
    latency_s=8.0,
    latency_warm_s=12.0,
    sink_rate=50,
    sink_probes=12,
    sink_warm_s=10.0,
    everyday_rates=(50,),
    everyday_s=20.0,
    everyday_warm_s=20.0,
    everyday_settle_s=5.0,
    bootstrap_keys=50_000,
    replay_events=30_000,
    many_tables=200,
    many_batches=10,
    many_idle_s=10.0,
    view_entries=(10_000, 100_000),
    watched_s=10.0,
    watched_rounds=4,
    view_events=50_000,
    view_followers=10_000,
    view_tweets=5,
    timeline_users=1_000,
    timeline_s=10.0,
)
