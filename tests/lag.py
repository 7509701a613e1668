"""Facts of lag reports: what one look has found of the source and of a sink."""

from dataclasses import replace
from typing import Any

from monitor.lag import APPLIED, SinkFacts, SourceFacts, Stage

NOW_MS = 1_700_000_000_000


def source_facts(**changes: Any) -> SourceFacts:
    """A source whose capture has everything, as of a minute ago."""
    facts = SourceFacts(
        wal_end=1000,
        received_lsn=1000,
        published_lsn=1000,
        published_commit_time_ms=NOW_MS - 60_000,
        slot_active=True,
        retained_bytes=0,
    )
    return replace(facts, **changes)


def sink_facts(name: str = "cache", generation: int = 1, **changes: Any) -> SinkFacts:
    """A live generation that has applied all of that."""
    facts = SinkFacts(
        name,
        generation,
        is_live=True,
        watermark_lsn=1000,
        commit_time_ms=NOW_MS - 60_000,
        records_behind=0,
        rejected=0,
    )
    return replace(facts, **changes)


def applied_stage(name: str, lsn: int | None = 10) -> Stage:
    """The stage of a sink's live generation, which has applied everything up to ``lsn``."""
    return Stage(f"{APPLIED}{name}", lsn, 0, 0.0, 0, sink_facts(name, watermark_lsn=lsn or 0))
