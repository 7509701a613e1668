"""The topic of a view's result: its rows by key, in whole steps, for whoever wants to follow them.

One transactional producer writes it, and a newer one fences it off. Each Kafka transaction has rows of one step, and
the record that says up to where whole steps are. A deleted row is a tombstone.

That record names the run that wrote it: another run goes on with the topic only with the state that wrote it. It also
has Kafka's id of the topic: a topic that was made anew lacks what was written before, and gets all of it.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Final

import orjson

from cdc.kafka.control_topics import read_compacted
from cdc.kafka.large_rows import LargeRows
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import VIEWS, control_topic, view_topic
from cdc.kafka.topic_reader import TopicReader
from cdc.kafka.transactions import Transactions
from cdc.model.errors import Unavailable
from cdc.model.event import JsonValue
from cdc.model.tag import Tag
from cdc.protocol.view_steps import ViewStep, step_key
from jobs.executor.log_reader import Client
from jobs.executor.task_input import ViewTopicInput
from jobs.offsets import Offsets
from views.state.file import FileState

_STEP_BYTES_MAX: Final = 1024 * 1024


class ViewTopic:
    """Writes one generation's topic, and fences its earlier writer. Every method raises Unavailable if the open
    transaction is lost, and LockstepError if the brokers refuse. Close it then, and open a new one."""

    def __init__(self, client: Client, where: ViewTopicInput) -> None:
        self._client = client
        self._where = where
        self._steps_topic = control_topic(where.pipeline, VIEWS)
        self._publisher = Transactions(client, where.topic, LargeRows(max_message_bytes=where.max_message_bytes))
        try:
            self._publisher.start()
            self._cluster = TopicAdmin(client)
            self._topic_id = self._current_id()
            self._last = self._read_last()
            self._rows = 0
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._publisher.close()

    @property
    def last(self) -> ViewStep | None:
        """The last step that was written; None if there is none, or not all of it is there any more."""
        return self._last

    def is_there(self) -> bool:
        """Whether the topic is still the one that this was opened for."""
        return self._current_id() == self._topic_id

    def keys(self) -> Iterator[Mapping[str, JsonValue]]:
        """The keys of the existing rows. All records are read before the first key. Keys of deleted rows are left out:
        the sink may have erased the marks of their deletions, and gets no new ones."""
        reader = TopicReader(self._client)
        with reader.key_set() as keys, closing(reader.records(self._where.topic)) as records:
            for record in records:
                if record.value is None:
                    keys.discard(record.key)
                else:
                    keys[record.key] = b""
            yield from map(orjson.loads, keys)

    def write(self, key: bytes, row: bytes | None, tag: Tag) -> None:
        """Add a row to the open transaction, or its deletion if None. Both are JSON."""
        self._rows += 1
        self._publisher.send(self._where.topic, key, row, str(tag).encode())

    def commit(self, *, tag: Tag, offsets: Offsets, run: str, is_complete: bool) -> None:
        """Commit the rows of this tag's step written so far. ``is_complete``: these were the last of the step. Raises
        Unavailable if the topic was made anew meanwhile: these rows lie before the old end."""
        where, last = self._where, self._last
        end = self._publisher.end_of(where.topic) if last is None or self._rows else last.end
        if last is not None and end < last.end + self._rows:
            raise Unavailable(
                f"topic {where.topic} was deleted and made anew: it has to get all rows of the view again"
            )
        self._commit(
            ViewStep(
                where.view,
                where.generation,
                tag.epoch,
                tag.commit_lsn,
                end,
                run,
                is_complete,
                offsets,
                self._topic_id,
            )
        )

    def take_over(self, run: str) -> None:
        """This run goes on with what is there. Nothing else changes."""
        assert self._last is not None
        self._commit(replace(self._last, run=run, topic_id=self._topic_id))

    def _commit(self, step: ViewStep) -> None:
        self._publisher.send(self._steps_topic, step.key(), step.to_bytes())
        self._publisher.commit_events()
        self._last, self._rows = step, 0

    def _current_id(self) -> str:
        return self._cluster.topic_ids([self._where.topic])[self._where.topic]

    def _read_last(self) -> ViewStep | None:
        key = step_key(self._where.view, self._where.generation)
        stored = read_compacted(self._client, self._steps_topic).get(key)
        if stored is None:
            return None
        last = ViewStep.from_bytes(stored.value, stored.what)
        if last.topic_id != self._topic_id:
            return None
        at = (self._where.topic, 0)
        return last if self._cluster.end_offsets([at])[at] >= last.end else None


def remove_steps(client: Client, *, pipeline: str, view: str, generation: int) -> None:
    """Fence whoever writes this generation's topic, and remove the record of its steps."""
    topic = view_topic(pipeline, view, generation)
    publisher = Transactions(client, topic, LargeRows(max_message_bytes=_STEP_BYTES_MAX))
    try:
        publisher.start()
        publisher.send(control_topic(pipeline, VIEWS), step_key(view, generation), None)
        publisher.commit_events()
    finally:
        publisher.close()


@dataclass(slots=True)
class _Open:
    """An open writer, the run that opened it, and who had the view's state open when it was last used."""

    topic: ViewTopic
    run: str
    state_writer: bytes


_open: dict[str, _Open] = {}
"""By topic. A worker outlives batches, and opening takes time."""


def view_topic_for(client: Client, where: ViewTopicInput, run: str, state: FileState) -> ViewTopic:
    """This run's writer for a view whose ``state`` was just opened. Raises as ``ViewTopic``. If another worker had the
    state meanwhile, it has written the topic and fenced off this worker's writer. A topic that was made anew is opened
    again, and then known to lack what was written."""
    opened = _open.get(where.topic)
    is_own = opened is not None and (opened.run, opened.state_writer) == (run, state.writer_before)
    if opened is not None and is_own and opened.topic.is_there():
        opened.state_writer = state.writer
        return opened.topic
    close_view_topic(where)
    topic = ViewTopic(client, where)
    _open[where.topic] = _Open(topic, run, state.writer)
    return topic


def close_view_topic(where: ViewTopicInput) -> None:
    """Close this worker's writer, if it has one. The next one begins with what was committed."""
    opened = _open.pop(where.topic, None)
    if opened is not None:
        with suppress(Exception):  # it was given up; how it ends doesn't matter
            opened.topic.close()
