"""Whether the topics that a job reads are still those that it began with.

Nothing else would notice. Tasks go on at their offsets, past a new topic's first records.
"""

import threading
from collections.abc import Collection, Mapping
from typing import Final

from cdc.kafka.topic_admin import TopicAdmin
from cdc.protocol.control_records import TopicIdentity
from jobs.query.resume_check import TopicFacts, check_same_topics

TOPICS_AT_ONCE: Final = 200
"""As many of the topics of which nothing was heard are asked about in one look: an answer about thousands takes the
client a tenth of a second."""

QUIET_S: Final = 5.0
"""How often the log is looked at while nothing is published."""


class Looks:
    """When the log is looked at: at each chance until all topics had their turn since something was published.

    While nothing is published a topic has nothing that a sink lacks, and so these looks may be rare. Pure.
    """

    def __init__(self, topics: int) -> None:
        self._turns = max(1, -(-topics // TOPICS_AT_ONCE))
        self._left = self._turns
        self._looked_s = float("-inf")

    def is_due(self, now_s: float, *, has_news: bool) -> bool:
        """Whether to look now. ``has_news``: something was published since this was asked last."""
        if has_news:
            self._left = self._turns
        return self._left > 0 or now_s - self._looked_s >= QUIET_S

    def has_looked(self, now_s: float) -> None:
        """A look has got its answers."""
        self._left = max(0, self._left - 1)
        self._looked_s = now_s


class TopicWatch:
    """Asks the brokers about ``topics``. For several threads: each has a ``cluster`` of its own.

    What a batch reads is asked about before it is applied. The rest is looked at in turn.
    """

    def __init__(self, sink: str, topics: Mapping[str, TopicFacts]) -> None:
        self._sink = sink
        self._topics = topics
        self._names = list(topics)
        self._turn = 0
        self._lock = threading.Lock()
        self._heard: set[str] = set()

    def __len__(self) -> int:
        """How many topics there are."""
        return len(self._topics)

    def check(self, cluster: TopicAdmin, topics: Collection[str]) -> None:
        """Raises PositionMismatch when one of these isn't the same, and Unavailable without an answer."""
        if topics:
            self.check_identities(cluster.identities(list(topics)))

    def check_identities(self, identities: Mapping[str, TopicIdentity]) -> None:
        """The same, where somebody has asked."""
        check_same_topics(self._sink, {topic: self._topics[topic] for topic in identities}, identities)

    def heard_of(self, topics: Collection[str]) -> None:
        """Something of these was read: the next look is at them too."""
        with self._lock:
            self._heard.update(topics)

    @property
    def has_heard(self) -> bool:
        """Whether something was, since the last look."""
        return bool(self._heard)

    def look(self, cluster: TopicAdmin) -> None:
        """Check those that were heard of since the last look, and the next ones of all. Raises as ``check``."""
        with self._lock:
            heard, self._heard = self._heard, set()
        in_turn = self._names[self._turn : self._turn + TOPICS_AT_ONCE]
        try:
            self.check(cluster, heard.union(in_turn))
        except BaseException:
            self.heard_of(heard)
            raise
        self._turn = self._turn + TOPICS_AT_ONCE if self._turn + TOPICS_AT_ONCE < len(self._names) else 0
