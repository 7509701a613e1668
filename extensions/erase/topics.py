"""Erases keys from a topic: compacts it, and reads it to see what is left."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdc.kafka.topic_admin import TopicAdmin
from extensions.erase.forced_compaction import Compacted, ForcedCompaction, TopicRecord
from extensions.erase.key_records import KeyRecord, key_records
from jobs.clock import now_ms
from lockstep.erasing import Place, RecordWords
from sinks.capabilities.erasing import Leftover

_POLICY: Final = "cleanup.policy"
_DELETE_RETENTION: Final = "delete.retention.ms"
_LAG: Final = "min.compaction.lag.ms"
_RETENTION: Final = "retention.ms"


@dataclass(frozen=True, slots=True)
class TopicRules:
    """How long records stay according to a topic's settings, in milliseconds."""

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
    records: Sequence[KeyRecord],
    rules: TopicRules,
    remembered: TopicRecord,
    *,
    now_ms: int,
    words: RecordWords | None = None,
) -> tuple[Leftover, ...]:
    """The records of a key as leftovers, with the latest time until which they stay. Pure. A record with a later one
    behind it is removed by a compaction. A tombstone stays for a while after the first compaction that has passed it.
    With a compaction lag, a mark behind the records has to be old enough.
    """
    words = words or RecordWords()
    found = []
    values = [record for record in records if not record.is_tombstone]
    if values:
        until_ms = None
        newest_ms = max(record.timestamp_ms for record in values)
        if not rules.is_compacted:
            until_ms = None if rules.retention_ms < 0 else now_ms + rules.retention_ms
        elif (ripe_ms := _ripe_ms(values, rules, remembered, now_ms=now_ms)) is not None:
            until_ms = ripe_ms
        elif rules.min_compaction_lag_ms and now_ms < newest_ms + rules.min_compaction_lag_ms:
            until_ms = now_ms + rules.min_compaction_lag_ms  # from the newest record of its segment, perhaps now
        found.append(Leftover(_values(words, len(values)), words.have_values, until_ms))
    tombstones = [record for record in records if record.is_tombstone]
    if tombstones:
        times = [remembered.compacted_since_ms(record.partition, record.offset) for record in tombstones]
        known = [time_ms + rules.delete_retention_ms for time_ms in times if time_ms is not None]
        until_ms = max(known) if len(known) == len(times) else None
        if until_ms is None and (ripe_ms := _ripe_ms(tombstones, rules, remembered, now_ms=now_ms)) is not None:
            until_ms = ripe_ms + rules.delete_retention_ms
        # The next compaction removes expired ones, but its time is unknown: forcing one was just tried.
        until_ms = None if until_ms is not None and until_ms < now_ms else until_ms
        what = "tombstones with keys of rows that are gone" if words.of_many else "a tombstone with the key"
        found.append(Leftover(what, words.of_many, until_ms))
    return tuple(found)


def _values(words: RecordWords, count: int) -> str:
    return f"records {words.with_what}" if words.of_many else f"{_counted(count, 'record')} {words.with_what}"


def _ripe_ms(records: Sequence[KeyRecord], rules: TopicRules, remembered: TopicRecord, *, now_ms: int) -> int | None:
    """When marks behind all of these records are old enough; None if unknown or in the past."""
    times = [remembered.marked_since_ms(record.partition, record.offset) for record in records]
    known = [time_ms + rules.min_compaction_lag_ms for time_ms in times if time_ms is not None]
    latest_ms = max(known, default=0)
    return latest_ms if len(known) == len(times) and latest_ms > now_ms else None


def needs_compaction(
    records: Sequence[KeyRecord], rules: TopicRules, remembered: TopicRecord, *, now_ms: int
) -> set[int]:
    """The partitions where a compaction removes something, or starts the time of a tombstone. Pure."""
    if not rules.is_compacted:
        return set()
    wanted = set()
    for record in records:
        since_ms = remembered.compacted_since_ms(record.partition, record.offset)
        if not record.is_tombstone or since_ms is None or now_ms > since_ms + rules.delete_retention_ms:
            wanted.add(record.partition)
    return wanted


def judged(place: Place, rules: TopicRules, outcome: Compacted | None, *, timeout_s: float) -> Place:
    """The place of a topic after its compaction; ``outcome`` is None if none was needed. Pure. If brokers don't compact
    records that are old enough, no record goes at its time, however young it is.
    """
    if not rules.is_compacted:
        return replace(place, why=f"its {_POLICY} isn't compact: set it, or delete the records by hand")
    if outcome is Compacted.LATE:
        return place.unproven(
            f"the brokers didn't compact it within {timeout_s:.0f} s: run the command again, with a longer --timeout"
        )
    if outcome is Compacted.NOTHING_RIPE:
        return replace(place, why=f"nothing is compacted that is younger than {_LAG}: run the command again then")
    return place


class TopicErasing:
    """Erases from topics of a pipeline with ``compaction``. ``timeout_s`` is the longest wait for a compaction."""

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
        return key_records(self._client, topic, is_wanted, while_waiting=self._check)

    def look(self, topic: str, is_wanted: Callable[[bytes], bool], words: RecordWords | None = None) -> Place:
        """The records on the topic. Changes nothing."""
        return self.look_at(topic, lambda: self.records(topic, is_wanted), words)

    def erase(self, topic: str, is_wanted: Callable[[bytes], bool], words: RecordWords | None = None) -> Place:
        """Compact the topic if that removes something, and read it again."""
        return self.erase_those(topic, lambda: self.records(topic, is_wanted), words)

    def look_at(self, topic: str, read: Callable[[], Sequence[KeyRecord]], words: RecordWords | None = None) -> Place:
        """As ``look``, for the records that ``read`` finds."""
        records = read()
        left = self._leftovers(topic, records, words)
        return self._place(topic, records, left, left)

    def erase_those(
        self, topic: str, read: Callable[[], Sequence[KeyRecord]], words: RecordWords | None = None
    ) -> Place:
        """As ``erase``, for the records that ``read`` finds, now and again after a compaction."""
        records = read()
        rules = self._rules(topic)
        found = self._leftovers(topic, records, words)
        partitions = needs_compaction(records, rules, self._compaction.remembered(topic), now_ms=now_ms())
        outcome = None
        if partitions:
            lag_ms = rules.min_compaction_lag_ms
            what = (
                "is being compacted" if not lag_ms else f"is being compacted, up to records {lag_ms / 1000:.0f} s old"
            )
            self._say(f"topic {topic} {what}; that takes up to {self._timeout_s:.0f} s")
            outcome = self._compaction.compact(topic, partitions, timeout_s=self._timeout_s, lag_ms=lag_ms)
            records = read()
        place = self._place(topic, records, found, self._leftovers(topic, records, words))
        return judged(place, rules, outcome, timeout_s=self._timeout_s)

    def _place(
        self, topic: str, records: Sequence[KeyRecord], found: tuple[Leftover, ...], left: tuple[Leftover, ...]
    ) -> Place:
        partitions = {record.partition for record in records}
        up_to_ms = self._compaction.remembered(topic).compacted_up_to_ms(partitions) if partitions else None
        return Place(f"topic {topic}", found, left, compacted_up_to_ms=up_to_ms)

    def _leftovers(
        self, topic: str, records: Sequence[KeyRecord], words: RecordWords | None = None
    ) -> tuple[Leftover, ...]:
        if not records:
            return ()
        rules, remembered = self._rules(topic), self._compaction.remembered(topic)
        return leftovers_of(records, rules, remembered, now_ms=now_ms(), words=words)

    def _rules(self, topic: str) -> TopicRules:
        return TopicRules.of(self._cluster.configs([topic])[topic])


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
