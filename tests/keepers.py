"""Keepers of progress, made as a job makes them."""

from collections.abc import Callable, Mapping
from typing import Any

from cdc.model.table import TableName
from jobs.query.log_facts import LogFacts
from jobs.query.progress import ProgressKeeper
from jobs.query.progress_at_start import progress_at_start
from jobs.query.resume_check import FOR_EVER_MS, TopicFacts
from sinks.contract import Generations, Progress


def log_of(
    *topics: str,
    retention_ms: int | Mapping[str, int] = FOR_EVER_MS,
    ids: Mapping[str, str] | None = None,
    uncopied: str = "",
) -> LogFacts:
    """A log of these topics, each with one partition, and with the table that the last part of its name says."""
    kept_ms = dict.fromkeys(topics, retention_ms) if isinstance(retention_ms, int) else retention_ms
    facts = {topic: TopicFacts((ids or {}).get(topic, "id"), 1, kept_ms[topic]) for topic in topics}
    tables = {topic: TableName("public", topic.rpartition(".")[2]) for topic in topics}
    return LogFacts({}, [], facts, tables, uncopied=[TableName("public", uncopied)] if uncopied else [])


def keeper_of(
    generations: Generations,
    log: LogFacts,
    stored: Progress | None = None,
    *,
    now_ms: Callable[[], int] = lambda: 1_000_000,
    check_claim: Callable[[], None] = lambda: None,
    lacks_columns: bool = False,
    **start: Any,
) -> ProgressKeeper:
    """The keeper of a query of pipeline ``p`` that begins at ``stored``. ``start`` is for ``progress_at_start``."""
    begun = progress_at_start("p", log, stored, now_ms=now_ms(), **start)
    return ProgressKeeper(
        generations,
        begun,
        log,
        sink="search",
        check_claim=check_claim,
        now_ms=now_ms,
        lacks_columns=lacks_columns,
    )
