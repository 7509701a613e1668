"""As of which commit of the source all tables of a consistent sink are. ``g<n>.consistent`` is a coordination record of
the destination. Each step stores it with its rows, so one transaction can read both together."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import orjson

from cdc.kafka.topic_names import table_of_topic
from cdc.model.lsn import format_lsn
from cdc.model.table import TableName
from sinks.contract import CoordinationRecords, Progress
from sinks.stored_progress import behind_the_watermark


@dataclass(frozen=True, slots=True)
class Consistency:
    """The tables have everything committed up to ``lsn`` of this epoch, and nothing of what came after.

    ``since_lsn`` is the first LSN for which that was so. ``lsn`` is 0 while the generation is being filled and has
    parts of transactions. ``commit_time_ms`` is in milliseconds since 1970. ``fence`` is that of the job that maintains
    this: a writer with another fence knows nothing of it.
    """

    epoch: int = 0
    lsn: int = 0
    commit_time_ms: int = 0
    since_lsn: int = 0
    fence: int = 0

    @property
    def is_reached(self) -> bool:
        return self.lsn > 0

    def after(self, *, epoch: int, lsn: int, commit_time_ms: int) -> Self:
        """The record of the next step."""
        return type(self)(epoch, lsn, commit_time_ms, self.since_lsn or lsn, self.fence)

    def to_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "lsn": self.lsn,
            "commit_time_ms": self.commit_time_ms,
            "since_lsn": self.since_lsn,
            "fence": self.fence,
        }

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**orjson.loads(text))


@dataclass(frozen=True, slots=True)
class KnownConsistency:
    """A generation's consistency for readers, except ``but_tables``: they are held, have left, or are joining."""

    of_tables: Consistency
    but_tables: tuple[TableName, ...] = ()

    @property
    def text(self) -> str:
        """For people."""
        if not self.of_tables.is_reached:
            return "it is being filled: readers may see parts of transactions until it is consistent"
        lsn, since = format_lsn(self.of_tables.lsn), format_lsn(self.of_tables.since_lsn)
        text = f"its tables are together as of {lsn}; they first were as of {since}"
        return f"{text}, but for {', '.join(map(str, self.but_tables))}" if self.but_tables else text

    def to_json(self) -> dict[str, Any]:
        """LSNs are text, as PostgreSQL writes them; null until it is consistent."""
        of = self.of_tables
        return {
            "lsn": format_lsn(of.lsn) if of.is_reached else None,
            "since_lsn": format_lsn(of.since_lsn) if of.is_reached else None,
            "commit_time_ms": of.commit_time_ms if of.is_reached else None,
            "but_tables": list(map(str, self.but_tables)),
        }


def load_consistency(records: CoordinationRecords, generation: int) -> Consistency | None:
    """None if the generation isn't a consistent one. Raises what the destination raises."""
    text = records.load(_name(generation))
    return None if text is None else Consistency.from_json(text)


def save_consistency(records: CoordinationRecords, generation: int, consistency: Consistency | None) -> None:
    """Raises what the destination raises."""
    text = None if consistency is None else orjson.dumps(consistency.to_json()).decode()
    records.save(_name(generation), text)


def known_consistency(
    records: CoordinationRecords,
    generation: int,
    progress: Progress | None,
    *,
    held_tables: Iterable[TableName],
    pipeline: str,
) -> KnownConsistency | None:
    """None if the generation isn't a consistent one. Raises what the destination raises. ``progress`` is the
    generation's, and ``held_tables`` are the tables that its job holds."""
    kept = load_consistency(records, generation)
    if kept is None:
        return None
    topics = () if progress is None else behind_the_watermark(progress)
    behind = {table for topic in topics if (table := table_of_topic(pipeline, topic)) is not None}
    return KnownConsistency(kept, tuple(sorted(behind.union(held_tables))))


def _name(generation: int) -> str:
    return f"g{generation}.consistent"
