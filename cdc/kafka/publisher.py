"""Publishes batches of events, each in one Kafka transaction together with the state and progress that describe it."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdc.kafka.large_rows import LargeRows
from cdc.kafka.topic_names import PROGRESS, SCHEMA, STATE, control_topic, table_topic
from cdc.kafka.transactions import Transactions
from cdc.model.table import TableName
from cdc.protocol.control_records import CaptureState, ProgressRecord, SchemaRecord, TableTexts

PROGRESS_EVERY_S: Final = 0.1
"""How often a progress record is written under load. It needs a flush in the middle of its transaction, and after many
events a request to the brokers, so the transaction takes up to twice as long."""

_FEW_EVENTS: Final = 500
"""A transaction with more events counts as load."""


class TransactionalPublisher(Transactions):
    """The transactions of one pipeline's capture, each committed with its state. Raises as ``Transactions``."""

    def __init__(
        self,
        client: Mapping[str, str | int],
        transactional_id: str,
        sizes: LargeRows,
        *,
        prefix: str,
        progress_every_s: float = PROGRESS_EVERY_S,
        **options: Any,
    ) -> None:
        """``progress_every_s`` is the time between two progress records without load, in seconds. ``options`` are those
        of ``Transactions``."""
        self._prefix = prefix
        control = [control_topic(prefix, name) for name in (STATE, PROGRESS, SCHEMA)]
        self._state_topic, self._progress_topic, self._schema_topic = control
        super().__init__(client, transactional_id, sizes, control=control, **options)
        self._progress_every_s = progress_every_s
        self._progress_at = 0.0
        self._owes_progress = False
        self._events = 0
        self._touched: set[str] = set()
        self._topic_of: dict[TableName, str] = {}
        self._table_texts = TableTexts()

    def _touch(self, topic: str, events: int) -> None:
        if not self._open and not self._held:
            self._events = 0
        super()._touch(topic, events)
        self._events += events
        self._touched.add(topic)

    def commit(
        self,
        state: CaptureState,
        schemas: Sequence[SchemaRecord] = (),
        *,
        covering: Sequence[str] = (),
        progress: bool = True,
        interval_s: float | None = None,
    ) -> dict[tuple[str, int], int] | None:
        """Commit the open batch with its state. When this returns, a read-committed reader sees all of it.

        Returns the progress record's bounds, by topic and partition, if one was written.

        A progress record goes with the batch, or with a later one if the last was written a moment ago
        (``owes_progress``). There is none while rows are being copied: until the last row is there, it isn't known what
        has been applied. For copies in the middle of the stream, ``progress`` is False. ``interval_s``, the present
        seconds between two commits, goes into the record, if known. ``covering`` names topics whose end is recorded
        though no event touched them. The first commit of a process names all, since it doesn't know what an earlier
        process owed.
        """
        if not self._open and not self._held:
            self._events = 0
        self._send_held()
        slot = state.slot.encode()
        self._touched.update(covering)
        is_first_copy = state.is_first_copy
        with_progress = progress and not is_first_copy and (bool(covering) or self._progress_is_due())
        bounds: dict[str, tuple[int, ...]] = {}
        if with_progress:
            self.flush()
            for topic in covering:  # others have written there
                self._ends.lose(topic)
            bounds = self._bounds(self._touched)
            record = ProgressRecord(
                state.end_lsn,
                state.commit_time_ms,
                bounds,
                state.epoch,
                self._uncopied_topics(state),
                self._table_texts.selection(state),
                round((interval_s or 0.0) * 1000),
            )
            self._add(self._progress_topic, slot, record.to_bytes())
        for schema in schemas:
            self._add(self._schema_topic, schema.key(), schema.to_bytes())
        self._add(self._state_topic, slot, state.to_bytes(self._table_texts))
        self._commit()
        self._owes_progress = not with_progress
        if not with_progress:
            return None
        self._touched.clear()
        self._progress_at = time.monotonic()
        return {(topic, partition): end for topic, ends in bounds.items() for partition, end in enumerate(ends)}

    def send_beside_state(self, key: bytes, value: bytes | None) -> None:
        """Add a record to the topic of the state; None removes the one of this key. Raises as ``send``."""
        self._send_held()
        self._add(self._state_topic, key, value)

    def _uncopied_topics(self, state: CaptureState) -> tuple[str, ...]:
        for name in state.copied.keys() - self._topic_of.keys():
            self._topic_of[name] = table_topic(self._prefix, name)
        copied = {self._topic_of[name] for name in state.copied}
        return tuple(sorted(state.topics.keys() - copied - {self._schema_topic}))

    def owes_progress(self) -> bool:
        """Whether an idle caller should commit once more, so that readers learn of what was published last."""
        return self._owes_progress and self._progress_is_due()

    def _progress_is_due(self) -> bool:
        is_loaded = self._events > _FEW_EVENTS
        every_s = max(self._progress_every_s, PROGRESS_EVERY_S) if is_loaded else self._progress_every_s
        return time.monotonic() - self._progress_at >= every_s
