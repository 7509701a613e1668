"""Stores rejected events in the dead-letter topic until the same or a newer event of the key is applied."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from cdc.kafka.control_topics import ClientSettings
from jobs.dead_letters.from_log import with_values
from jobs.dead_letters.limit import check_open
from jobs.dead_letters.record import DeadLetter, UnreadableDeadLetter, dead_letter_key, dead_letter_value
from jobs.dead_letters.topic import DeadLetterTopic
from jobs.executor.result import RejectedEvent
from jobs.report import Reporter, UnreadableDeadLetters, log_report

Row = tuple[str, bytes]
"""Topic and key of an event."""

OpenRejections = dict[Row, str]
"""The row of a rejected event -> its tag."""


def unreadable_report(
    sink: str, generation: int, topic: str, unreadable: Sequence[UnreadableDeadLetter]
) -> UnreadableDeadLetters | None:
    """A job's report of unreadable records, oldest first, that may be its sink's; None without any. Pure."""
    own = [record for record in unreadable if record.sink in (None, sink)]
    if not own:
        return None
    return UnreadableDeadLetters(sink, generation, topic, len(own), own[0].record_offset, own[0].why)


@dataclass(frozen=True, slots=True)
class _Open:
    """A dead letter as the job that wrote or read it knows it."""

    record_key: bytes
    reason: str


@dataclass(slots=True)
class KnownDeadLetters:
    """What a job knows of its generation's dead letters, by row and tag. Commands may have closed some since."""

    rows: dict[Row, dict[str, _Open]] = field(default_factory=dict)

    def add(self, row: Row, tag: str, record_key: bytes, reason: str) -> None:
        self.rows.setdefault(row, {})[tag] = _Open(record_key, reason)

    def newest(self) -> OpenRejections:
        """The newest tag of each row."""
        return {row: max(by_tag) for row, by_tag in self.rows.items()}

    def open_with(self, rejected: Iterable[RejectedEvent], void: Iterable[Row]) -> list[str]:
        """The reason of each row whose rejection would be open with the new ones and without the void ones."""
        reasons = {row: by_tag[max(by_tag)].reason for row, by_tag in self.rows.items()}
        for row in void:
            reasons.pop(row, None)
        reasons |= {(event.position.topic, event.key): event.reason for event in rejected}
        return list(reasons.values())

    def new_topics(self, rejected: Iterable[RejectedEvent]) -> list[str]:
        """The topic of each row that has no rejection yet; if all have one, the topic of each."""
        rows = [(event.position.topic, event.key) for event in rejected]
        return [topic for topic, _ in [row for row in rows if row not in self.rows] or rows]

    def record_keys(self, row: Row, *, older_than: str | None = None) -> list[bytes]:
        """The keys of the records of a row's dead letters, or only of those with older tags."""
        by_tag = self.rows.get(row, {})
        return [known.record_key for tag, known in by_tag.items() if older_than is None or tag < older_than]

    def forget(self, row: Row, *, older_than: str | None = None) -> None:
        """Forget a row's dead letters, or only those with older tags."""
        by_tag = self.rows.get(row, {})
        left = {tag: known for tag, known in by_tag.items() if older_than is not None and tag >= older_than}
        if left:
            self.rows[row] = left
        else:
            self.rows.pop(row, None)


class DeadLetters:
    """One generation's part of a pipeline's dead-letter topic, as its job sees it. One job at a time. Records that
    can't be read stay in the topic. Each reading reports them, unless it finds the same ones again."""

    def __init__(
        self, client: ClientSettings, pipeline: str, *, sink: str, generation: int, report: Reporter = log_report
    ) -> None:
        self._client = client
        self._topic = DeadLetterTopic(client, pipeline)
        self._sink = sink
        self._generation = generation
        self._report = report
        self._reported: UnreadableDeadLetters | None = None
        self._topics = frozenset[str]()
        self._known = KnownDeadLetters()

    def read(self, topics: Iterable[str]) -> OpenRejections:
        """The open rejections. Raises Unavailable."""
        self._topics = frozenset(topics)
        self._known = self._read(self._topics)
        return self._known.newest()

    def keep(
        self, rejected: Iterable[RejectedEvent], void: Iterable[Row], *, rejected_at_ms: int, max_open: int
    ) -> OpenRejections:
        """Store a batch's rejections, and close earlier ones that it has made void. Returns what is open then.

        Call it before the batch counts as done. Calling it again for the same batch changes nothing. Raises TooManyOpen
        if more than ``max_open`` would be open; nothing is written then, and the batch must come again. Raises as
        ``publish`` too.
        """
        given, void_rows = list(rejected), list(void)
        if given and len(self._known.open_with(given, void_rows)) > max_open:
            # Commands close rejections too, without telling the job.
            self._known = self._read(self._topics | {event.position.topic for event in given})
            reasons = self._known.open_with(given, void_rows)
            new_topics = self._known.new_topics(given)
            check_open(self._sink, self._generation, reasons, new_topics=new_topics, max_open=max_open)
        # First: a void row may have been rejected again in the same batch, in a newer version that stays.
        self.close(void_rows)
        self.publish(given, rejected_at_ms=rejected_at_ms)
        return self._known.newest()

    def publish(self, events: Iterable[RejectedEvent], *, rejected_at_ms: int) -> None:
        """Return once every event is acknowledged by all in-sync replicas. Publishing one twice changes nothing. Then
        closes dead letters of the same rows with older tags. Raises as ``with_values``; Unavailable if the brokers
        don't answer, LockstepError if they refuse a record."""
        given: list[RejectedEvent] = []

        def records() -> Iterator[tuple[bytes, bytes]]:
            for event in with_values(self._client, events):
                yield (
                    self._record_key(event),
                    dead_letter_value(self._sink, self._generation, event, rejected_at_ms=rejected_at_ms),
                )
                given.append(replace(event, value=None))

        self._topic.send(records())
        for event in given:
            self._known.add((event.position.topic, event.key), event.tag, self._record_key(event), event.reason)
        self._close([((event.position.topic, event.key), event.tag) for event in given])

    def close(self, rows: Iterable[Row]) -> None:
        """Remove the dead letters of these rows: their events or newer ones were applied. Raises as ``publish``."""
        self._close([(row, None) for row in rows])

    def close_generation(self) -> None:
        """Remove all dead letters of this generation, which is about to be dropped. Raises as ``publish``."""
        self._remove([dead_letter.record_key for dead_letter in self._read_own()])

    def _read(self, topics: frozenset[str]) -> KnownDeadLetters:
        dead_letters = KnownDeadLetters()
        for dead_letter in self._read_own():
            row = (dead_letter.position.topic, dead_letter.key)
            if row[0] in topics:
                dead_letters.add(row, dead_letter.tag, dead_letter.record_key, dead_letter.reason)
        return dead_letters

    def _read_own(self) -> list[DeadLetter]:
        dead_letters, unreadable = self._topic.read()
        report = unreadable_report(self._sink, self._generation, self._topic.name, unreadable)
        if report is not None and report != self._reported:
            self._report(report)
        self._reported = report
        own = (self._sink, self._generation)
        return [dead_letter for dead_letter in dead_letters if (dead_letter.sink, dead_letter.generation) == own]

    def _record_key(self, event: RejectedEvent) -> bytes:
        return dead_letter_key(self._sink, self._generation, event.position.topic, event.key, event.tag)

    def _close(self, rows: Sequence[tuple[Row, str | None]]) -> None:
        """Remove these rows' dead letters; with a tag, only those of older tags. Raises as ``publish``. They stay known
        until brokers have acknowledged that, so that a retry closes them."""
        self._remove([key for row, tag in rows for key in self._known.record_keys(row, older_than=tag)])
        for row, tag in rows:
            self._known.forget(row, older_than=tag)

    def _remove(self, record_keys: list[bytes]) -> None:
        if record_keys:
            self._topic.send((key, None) for key in record_keys)
