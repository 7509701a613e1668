"""Topics that are read again, or for the first time. Pure. Until they have caught up, they have a time of their own:
when they left, or when reading them began. Rows deleted before a topic was first read can't be in the sink."""

from collections.abc import Collection, Mapping

from jobs.query.log_facts import LogFacts
from jobs.query.resume_check import check_deletes_are_there
from jobs.query.watermark import Watermark


class ReturnedTopics:
    """Which topics haven't caught up yet, and whether deletes of read topics may be missing."""

    def __init__(self, sink: str, log: LogFacts, left_at_ms: Mapping[str, int], watermark: Watermark) -> None:
        self._sink = sink
        self._retention_ms = {topic: facts.delete_retention_ms for topic, facts in log.topics.items()}
        # As in Progress, with the topics that aren't read now.
        self.left_at_ms = dict(left_at_ms)
        # Those among them that are read and haven't caught up.
        self.resuming = frozenset(log.topics) & left_at_ms.keys()
        self._watermark = watermark
        self._began_joining = frozenset(watermark.joining)

    def complete_at_ms(self, others_at_ms: int) -> int:
        """The time as of which all of the log had been applied, given that of the other topics."""
        return min([others_at_ms, *(self.left_at_ms[topic] for topic in self.resuming)])

    def check_deletes(self, topics: Collection[str], *, others_at_ms: int, now_ms: int) -> None:
        """Raise PositionMismatch if records of these topics were read so late that deletes may be missing."""
        for topic in sorted(topics):
            at_ms = self.left_at_ms[topic] if topic in self.resuming else others_at_ms
            check_deletes_are_there(self._sink, {topic}, self._retention_ms, complete_at_ms=at_ms, now_ms=now_ms)

    def note(self, *, has_all: bool) -> None:
        """Forget the times of topics that have caught up: all, or those of which the watermark has become true. What
        these lack now, they lack like all others."""
        joined = self._began_joining.difference(self._watermark.joining)
        caught_up = self.resuming if has_all else self.resuming & joined
        self.left_at_ms = {topic: at_ms for topic, at_ms in self.left_at_ms.items() if topic not in caught_up}
        self.resuming -= caught_up
