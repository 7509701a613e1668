"""Erases keys from a topic: has it compacted, and reads it to see what is left."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.kafka.forced_compaction import ForcedCompaction, TopicRecord
from cdc.kafka.key_records import KeyRecord, key_records
from cdc.kafka.topic_admin import TopicAdmin
from lockstep.erase.report import Place
from sinks.contract import Leftover

_POLICY: Final = "cleanup.policy"
_DELETE_RETENTION: Final = "delete.retention.ms"
_LAG: Final = "min.compaction.lag.ms"
_RETENTION: Final = "retention.ms"


@dataclass(frozen=True, slots=True)
class TopicRules:
    """What a topic's settings say of how long records stay, in milliseconds."""

    is_compacted: bool
    delete_retention_ms: int
    min_compaction_lag_ms: int
    retention_ms: int

    @classmethod
    def of(cls, config: Mapping[str, str]) -> "TopicRules":
        return cls(
            "compact" in config[_POLICY],
            int(config[_DELETE_RETENTION]),
            int(config[_LAG]),
            int(config[_RETENTION]) if "delete" in config[_POLICY] else -1,
        )


def leftovers_of(
    records: Sequence[KeyRecord], rules: TopicRules, remembered: TopicRecord, *, now_ms: int
) -> tuple[Leftover, ...]:
    """What records of a key are, and until when at the latest. Pure.

    One that has a later one behind it goes when the topic is compacted. A tombstone stays for a while after the first
    compaction that came by it.
    """
    found = []
    values = [record for record in records if not record.is_tombstone]
    if values:
        until_ms = None
        newest_ms = max(record.timestamp_ms for record in values)
        if rules.is_compacted and rules.min_compaction_lag_ms and now_ms < newest_ms + rules.min_compaction_lag_ms:
            until_ms = now_ms + rules.min_compaction_lag_ms  # of the segment's newest record, which may be from now
        elif not rules.is_compacted and rules.retention_ms >= 0:
            until_ms = now_ms + rules.retention_ms
        found.append(Leftover(f"{_counted(len(values), 'record')} with the row", True, until_ms))
    tombstones = [record for record in records if record.is_tombstone]
    if tombstones:
        times = [remembered.compacted_since_ms(record.partition, record.offset) for record in tombstones]
        known = [time_ms + rules.delete_retention_ms for time_ms in times if time_ms is not None]
        until_ms = max(known) if len(known) == len(times) else None
        # Expired ones go with the next compaction, whenever that is: who could have it made has just tried.
        until_ms = None if until_ms is not None and until_ms < now_ms else until_ms
        found.append(Leftover("a tombstone with the key", False, until_ms))
    return tuple(found)


def needs_compaction(
    records: Sequence[KeyRecord], rules: TopicRules, remembered: TopicRecord, *, now_ms: int
) -> set[int]:
    """The partitions in which a compaction takes something away, or lets the time of a tombstone begin. Pure."""
    if not rules.is_compacted:
        return set()
    wanted = set()
    for record in records:
        since_ms = remembered.compacted_since_ms(record.partition, record.offset)
        if not record.is_tombstone or since_ms is None or now_ms > since_ms + rules.delete_retention_ms:
            wanted.add(record.partition)
    return wanted


class TopicErasing:
    """Erases from topics of a pipeline. ``compaction`` has them compacted, ``timeout_s`` says how long at most."""

    def __init__(
        self,
        client: Mapping[str, str | int],
        compaction: ForcedCompaction,
        *,
        timeout_s: float,
        check: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._client = client
        self._cluster = TopicAdmin(client)
        self._compaction = compaction
        self._timeout_s = timeout_s
        self._check = check
        self._say = say

    def records(self, topic: str, is_wanted: Callable[[bytes], bool]) -> list[KeyRecord]:
        """All that the topic has of these keys."""
        return key_records(self._client, topic, is_wanted, while_waiting=self._check)

    def look(self, topic: str, is_wanted: Callable[[bytes], bool]) -> Place:
        """What is there. Changes nothing."""
        left = self._leftovers(topic, self.records(topic, is_wanted))
        return Place(f"topic {topic}", left, left)

    def erase(self, topic: str, is_wanted: Callable[[bytes], bool]) -> Place:
        """Have the topic compacted where that takes something away, and read it again."""
        records = self.records(topic, is_wanted)
        rules = self._rules(topic)
        found = self._leftovers(topic, records)
        partitions = needs_compaction(records, rules, self._compaction.remembered(topic), now_ms=_now_ms())
        why = None if rules.is_compacted else f"its {_POLICY} isn't compact: set it, or delete the records by hand"
        if partitions:
            self._say(f"topic {topic} is being compacted; that takes up to {self._timeout_s:.0f} s")
            if not self._compaction.compact(topic, partitions, timeout_s=self._timeout_s):
                why = (
                    f"the brokers didn't compact it within {self._timeout_s:.0f} s: run the command again, with a"
                    " longer --timeout"
                )
            records = self.records(topic, is_wanted)
        return Place(f"topic {topic}", found, self._leftovers(topic, records), why)

    def _leftovers(self, topic: str, records: Sequence[KeyRecord]) -> tuple[Leftover, ...]:
        if not records:
            return ()
        return leftovers_of(records, self._rules(topic), self._compaction.remembered(topic), now_ms=_now_ms())

    def _rules(self, topic: str) -> TopicRules:
        return TopicRules.of(self._cluster.configs([topic])[topic])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
