"""Whether the topics that a job reads are still those that it began with. Nothing else would notice: tasks go on at
their offsets, past a new topic's first records."""

import threading
from collections.abc import Collection, Mapping
from typing import Final

from cdc.kafka.topic_admin import TopicAdmin
from cdc.protocol.control_records import TopicIdentity
from jobs.query.resume_check import TopicFacts, check_same_topics

TOPICS_AT_ONCE: Final = 200
"""How many silent topics one look asks about: an answer about thousands takes the client a tenth of a second."""

QUIET_S: Final = 5.0
"""How often to look at the log while nothing is published."""


class Looks:
    """When to look at the log: at each chance until all topics had their turn since something was published. Pure.
    While nothing is published, the topics have nothing that a sink lacks, so looks may be rare."""

    def __init__(self, topics: int) -> None:
        self._turns = max(1, -(-topics // TOPICS_AT_ONCE))
        self._left = self._turns
        self._looked_s = float("-inf")

    def is_due(self, now_s: float, *, has_news: bool) -> bool:
        """Whether to look now. ``has_news``: something was published since the last call."""
        if has_news:
            self._left = self._turns
        return self._left > 0 or now_s - self._looked_s >= QUIET_S

    def has_looked(self, now_s: float) -> None:
        """A look got its answers."""
        self._left = max(0, self._left - 1)
        self._looked_s = now_s


class TopicWatch:
    """Asks the brokers about ``topics``. Thread-safe; each thread passes a ``cluster`` of its own. Topics of a batch
    are checked before it is applied, the others in turn."""

    def __init__(self, sink: str, topics: Mapping[str, TopicFacts]) -> None:
        self._sink = sink
        self._topics = topics
        self._names = list(topics)
        self._turn = 0
        self._lock = threading.Lock()
        self._heard: set[str] = set()

    def __len__(self) -> int:
        return len(self._topics)

    def check(self, cluster: TopicAdmin, topics: Collection[str]) -> None:
        """Raises PositionMismatch if one of these was recreated, and Unavailable without an answer."""
        if topics:
            self.check_identities(cluster.identities(list(topics)))

    def check_identities(self, identities: Mapping[str, TopicIdentity]) -> None:
        """The same, with the brokers' answer."""
        check_same_topics(self._sink, {topic: self._topics[topic] for topic in identities}, identities)

    def heard_of(self, topics: Collection[str]) -> None:
        """Events of these topics were read: the next look includes them."""
        with self._lock:
            self._heard.update(topics)

    @property
    def has_heard(self) -> bool:
        """Whether events were read since the last look."""
        return bool(self._heard)

    def look(self, cluster: TopicAdmin) -> None:
        """Check the topics with events since the last look, and the next ones in turn. Raises as ``check``."""
        with self._lock:
            heard, self._heard = self._heard, set()
        in_turn = self._names[self._turn : self._turn + TOPICS_AT_ONCE]
        try:
            self.check(cluster, heard.union(in_turn))
        except BaseException:
            self.heard_of(heard)
            raise
        self._turn = self._turn + TOPICS_AT_ONCE if self._turn + TOPICS_AT_ONCE < len(self._names) else 0
