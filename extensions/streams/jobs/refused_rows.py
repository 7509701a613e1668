"""Rows that a query's webhook has refused for good: dead letters, of all builds of the query's result. A dead letter of
a dropped build stays, because the next build may lack its row. It is closed once the webhook takes a row of the same
key from any build.
"""

from collections.abc import Collection
from typing import Final

from cdc.kafka.topic_admin import TopicAdmin, dead_letter_plan
from cdc.kafka.topic_policy import check_kept
from cdc.kafka.topic_reader import Record
from cdc.model.errors import LockstepError
from cdc.model.event import Position
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.topic_names import is_stream_result_topic
from jobs.dead_letters.limit import in_words
from jobs.dead_letters.record import dead_letter_key, dead_letter_value
from jobs.dead_letters.topic import DeadLetterTopic
from jobs.executor.result import RejectedEvent

REFUSED_IN_A_ROW_MAX: Final = 50
"""After this many refusals without a receipt, the rows can't be the cause."""


class TooManyRefused(LockstepError):
    """The webhook has refused so many rows that something else must be wrong. Nothing is skipped."""


class RefusedRows:
    """The dead letters of one query for its job. Commands may have closed some. For one thread."""

    def __init__(self, plan: StreamQueryPlan) -> None:
        self._plan = plan
        self._topic = DeadLetterTopic(plan.kafka.client(), plan.pipeline)
        self._known: dict[bytes, dict[bytes, str]] | None = None
        """Key of a row -> its dead letters' keys, each with the reason."""
        self._is_created = False

    def keep(self, record: Record, *, topic: str, generation: int, reason: str, at_ms: int) -> None:
        """Return once the row of this record of a result's topic is stored as a dead letter. Repeating it changes
        nothing. Closes dead letters of other builds' rows of the same key. Raises TooManyRefused before more are open
        than allowed, and what the brokers raise.
        """
        assert record.value is not None
        event = RejectedEvent(
            Position(topic, record.partition, record.offset), record.key, record.value, record.tag, reason
        )
        query = self._plan.name
        dead_letter = dead_letter_key(query, generation, topic, record.key, record.tag)
        self._check_room(record.key, reason)
        self._create()
        self._topic.send([(dead_letter, dead_letter_value(query, generation, event, rejected_at_ms=at_ms))])
        self._close([key for key in self._open().get(record.key, ()) if key != dead_letter])
        self._open()[record.key] = {dead_letter: reason}

    def close(self, row_key: bytes) -> None:
        """Close the open dead letters of this key: the webhook has a row of it. Raises what the brokers raise."""
        self._close(self._open().get(row_key, ()))
        self._open().pop(row_key, None)

    def _close(self, dead_letters: Collection[bytes]) -> None:
        if dead_letters:
            self._topic.send((key, None) for key in dead_letters)

    def _open(self) -> dict[bytes, dict[bytes, str]]:
        if self._known is None:
            self._known = {}
            for each in self._topic.read()[0]:
                if each.sink == self._plan.name and is_stream_result_topic(self._plan.pipeline, each.position.topic):
                    self._known.setdefault(each.key, {})[each.record_key] = each.reason
        return self._known

    def _check_room(self, row_key: bytes, reason: str) -> None:
        max_open = self._plan.settings.max_open_rejections
        if row_key in self._open() or len(self._open()) < max_open:
            return
        self._known = None  # read again: commands may have closed some
        if len(self._open()) < max_open:
            return
        name = self._plan.name
        reasons = [each for dead_letters in self._open().values() for each in dead_letters.values()]
        raise TooManyRefused(
            f"more rows of stream query {name!r} that its webhook refused would be open than max_open_rejections"
            f" allows, {len(self._open()) + 1:,} of {max_open:,}: {in_words([*reasons, reason])}",
            hint="nothing was skipped. Mend what the reasons say, then"
            f" `lockstep rejections retry {name} --all`, or give them up with `lockstep rejections discard {name}`;"
            f" max_open_rejections in [stream_queries.{name}] of lockstep.toml allows more",
        )

    def _create(self) -> None:
        """Create the topic if no capture has."""
        if self._is_created:
            return
        cluster = TopicAdmin(self._plan.kafka.client())
        letters = dead_letter_plan(self._plan.pipeline, self._plan.kafka.topics)
        cluster.create(cluster.missing([letters]))
        check_kept(cluster, letters, self._plan.kafka.bootstrap_servers)
        self._is_created = True


def check_refused(query: str, in_a_row: int, reason: str) -> None:
    """Raise TooManyRefused if this many rows in a row were refused. Pure."""
    if in_a_row >= REFUSED_IN_A_ROW_MAX:
        raise TooManyRefused(
            f"the webhook of stream query {query!r} has refused {in_a_row} rows in a row, this one with: {reason}",
            hint="mend the receiver, or the query's `webhook`, and start the job again: it goes on with this row."
            f" Then `lockstep rejections retry {query} --all` posts those that were refused",
        )
