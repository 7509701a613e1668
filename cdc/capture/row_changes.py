"""Turns changes of a followed table's rows into events. Pure.

Tag rules: ``seq`` counts the changes of a transaction from 1. A key change takes two numbers, a TRUNCATE one per table.
Changes that were published before a restart are counted and give no events. So are those of a table that waits for its
copy: a restart within a transaction finds the same numbers, whichever tables are followed by then.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from cdc.capture.key_moves import KeyMoves, RowMap
from cdc.capture.old_rows import filled
from cdc.capture.published_table import PublishedTable
from cdc.capture.questions import (
    Events,
    LeftUnread,
    NeedLargeValues,
    NeedLiveKeys,
    NeedRowBefore,
    PassedOver,
    Steps,
)
from cdc.capture.relations import Relations
from cdc.capture.resume import StreamProgress
from cdc.capture.toast_rows import ToastRows
from cdc.capture.transaction_events import NULL, Envelopes
from cdc.event_format.decode import after_of, schema_id_of
from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from cdc.protocol.pgoutput import UNCHANGED, Begin, Delete, Fields, FullImage, Insert, KeyImage, Update
from cdc.protocol.walsender import Frame
from cdc.toast.memory import ToastMemory

_MAY_BE_MISSING: Final = (
    "a row was changed or deleted while the table's first copy was interrupted, and may be missing from it"
)
_OF_ANOTHER_SHAPE: Final = (
    "two rows shared a key for a moment, and the one that stays is only known from before the table was altered"
)


@dataclass(frozen=True, slots=True)
class OrdinaryRows:
    """Events of consecutive rows: the topic, keys and values, and the total size of the values in bytes. ``following``
    is a frame that was received after them."""

    topic: str
    rows: Sequence[tuple[bytes, bytes]]
    size: int
    following: Frame | None


class _Partial(NamedTuple):
    """An update that leaves values out. ``new`` is the row as far as its message shows it."""

    published: PublishedTable
    update: Update
    new: Fields
    old_key: bytes
    key: bytes


class RowChanges:
    """The changes of one stream. The caller finds the table in ``relations``, and counts the message afterwards.

    ``memory`` knows the values that updates leave out. ``moved_rows`` stores the rows of a transaction whose keys can
    swap. ``handoff`` is the last consistent point of a first copy. After an interrupted first copy the stream begins
    before it, and rows of an append-only table that changed in between may be missing from the copy.
    """

    def __init__(
        self,
        relations: Relations,
        progress: StreamProgress,
        memory: ToastMemory,
        *,
        epoch: int,
        moved_rows: RowMap | None = None,
        handoff: int = 0,
    ) -> None:
        self.relations = relations
        self.progress = progress
        self.toast = ToastRows(memory)
        """What is known of large values that updates leave out."""
        self.envelopes = Envelopes(relations, progress, epoch)
        self.unread: dict[TableName, dict[bytes, None]] = {}
        """Keys of tables being copied for which a change was left out; the committer clears it."""
        self._handoff = handoff
        self._moves = KeyMoves(moved_rows)

    def begin(self, begin: Begin) -> None:
        """Rows from now on belong to this transaction."""
        self.envelopes.begin(begin)
        self._moves.clear()

    def reshaped(self, relation_id: int, known: PublishedTable, before: PublishedTable | None) -> None:
        """A relation was described within a transaction: the table was ``known``, and rows came as of ``before``."""
        now = self.relations.followed(relation_id)
        if now is not None:
            self.toast.described(now)
        if known.table.oid not in (0, relation_id):
            self._moves.empty(known.topic)  # its rows aren't those of the relation that had the name
        if before is not None and now is not None and now.keys_can_swap:
            was = {column.identity: index for index, column in enumerate(before.table.columns)}
            self._moves.reshape(now.topic, [was.get(column.identity) for column in now.table.columns])

    def ordinary(
        self,
        published: PublishedTable,
        frame: Frame,
        receive: Callable[[], Frame | None],
        *,
        relation_id: int,
        rows_max: int,
        bytes_max: int,
    ) -> OrdinaryRows | None:
        """The events of a frame and of those that follow, as in ``Assembler.ordinary``."""
        kernel, short_bytes = published.kernel, self.toast.short_bytes(published)
        if kernel is None or published.keys_can_swap or short_bytes < 0 or published.unrecorded is not None:
            return None
        if self.progress.is_repeated():
            return None
        rows, following, size = kernel.encode(
            frame,
            receive,
            relation=relation_id,
            updates=not published.old_rows.lacking and not self._may_be_missing(published),
            prefix=self.envelopes.prefix,
            seq=self.progress.seq + 1,
            source=self.envelopes.source(published),
            time=b"%d" % self.envelopes.time_ms,
            text_max=short_bytes,
            rows_max=rows_max,
            bytes_max=bytes_max,
        )
        if not rows:
            return None
        self.progress.counted_rows(len(rows))
        self.toast.forget_short(published, rows)
        return OrdinaryRows(published.topic, rows, size, following)

    def insert(self, published: PublishedTable, insert: Insert, lsn: int) -> Events | Steps:
        new = insert.new
        if UNCHANGED in new and not self.progress.is_repeated():  # an update moved it into the filter
            lacking = [index for index, value in enumerate(new) if value is UNCHANGED]
            return self._incomplete(published, insert, _untouched(published, lacking))
        key = published.encoder.key(new)
        if published.keys_can_swap:
            self._moves.arrive(published.topic, key, new)
        if not self.progress.counted():
            return ()
        if published.toast is not None:
            self.toast.remember(published, key, new)
        return (self.envelopes.event(b"c", published, key, NULL, published.encoder.row(new), lsn),)

    def update(self, published: PublishedTable, update: Update, lsn: int) -> Events | Steps:
        """The events of a changed row, whose key may have changed."""
        encoder, old, new = published.encoder, update.old, update.new
        if published.old_rows.lacking:
            published.old_rows.require_key(published.table, old, encoder.key_positions)
        is_partial = UNCHANGED in new
        if is_partial:
            new = filled(new, old)
        key = encoder.key(new)
        old_key = key if old is None else encoder.key(old.fields)
        keys = (old_key, key)
        if self.progress.is_repeated(1 if old_key == key else 2):
            return self._changed(published, update, new, keys, NULL, lsn)
        if self._may_be_missing(published):
            return self._incomplete(published, update, _MAY_BE_MISSING)
        if is_partial:
            return self._partial(_Partial(published, update, new, old_key, key), lsn)
        row = encoder.row(new)
        if published.toast is not None:
            self.toast.remember(published, key, new)
            if old_key != key:
                self.toast.forget(published, old_key)
        return self._changed(published, update, new, keys, row, lsn)

    def delete(self, published: PublishedTable, delete: Delete, lsn: int) -> Events | Steps:
        encoder, old = published.encoder, delete.old
        if published.old_rows.lacking:
            published.old_rows.require_key(published.table, old, encoder.key_positions)
        key = encoder.key(old.fields)
        if self._may_be_missing(published) and not self.progress.is_repeated():
            return self._incomplete(published, delete, _MAY_BE_MISSING)
        if published.toast is not None and not self.progress.is_repeated():
            self.toast.forget(published, key)
        before = self._before(published, old)
        if not published.keys_can_swap:
            return self._vacated(published, key, before, lsn, None)
        return self._left(published, key, delete, partial(self._vacated, published, key, before, lsn))

    def empty(self, published: PublishedTable, lsn: int) -> Steps:
        """A table was truncated: a delete and a tombstone for every live key, all with the same tag. An append-only
        table has no keys to delete: its log gets an event that it was emptied."""
        topic = published.topic
        if published.keys_can_swap:
            self._moves.empty(topic)
        if not self.progress.begin_truncate():
            return

        def gone(key: bytes) -> Events:
            self.progress.add_truncate_delete()
            self.toast.forget(published, key)
            return self.envelopes.deleted(published, key, NULL, lsn)

        if published.table.key:
            yield NeedLiveKeys(topic, gone)
        else:
            yield (self.envelopes.event(b"t", published, published.encoder.key(()), NULL, NULL, lsn),)
        self.progress.end_truncate()

    def pass_over(self, published: PublishedTable, change: Insert | Update | Delete) -> Events:
        """Count a change as if it were published: a restart finds the same numbers, whichever tables are followed."""
        self.progress.counted()
        if type(change) is Update and change.old is not None and _moves_key(published, change):
            self.progress.counted()
        return ()

    def _may_be_missing(self, published: PublishedTable) -> bool:
        """Whether the copy may lack a row that is changed now."""
        return not published.table.key and self.progress.commit_lsn < self._handoff

    def _partial(self, change: "_Partial", lsn: int) -> Events | Steps:
        """The events of an update that leaves large values out, which the memory knows or the topic holds."""
        published, update, new, old_key, _ = change
        lacking = [index for index, value in enumerate(new) if value is UNCHANGED]
        if lacking and self.relations.is_outdated(published):
            return self._incomplete(published, update, _untouched(published, lacking))
        known = self.toast.known(published, old_key, lacking)
        if (
            len(known) == len(lacking)
            or published.toast is None
            or self.toast.is_left_out(published, old_key)
            or self.relations.is_being_copied(published)
        ):
            return self._completed(change, known, lsn)
        return self._after_reload(change, lacking, lsn)

    def _after_reload(self, change: "_Partial", lacking: Sequence[int], lsn: int) -> Steps:
        yield NeedLargeValues(change.published, self.progress.position)
        completed = self._completed(change, self.toast.known(change.published, change.old_key, lacking), lsn)
        if isinstance(completed, tuple):
            yield completed
        else:
            yield from completed

    def _completed(self, change: "_Partial", known: Mapping[int, bytes], lsn: int) -> Events | Steps:
        """The events of the row with these values, as JSON. If the topic lacks the row because it was too large, and
        values are unknown, it stays left out: it may be as large as before."""
        published, update, new, old_key, key = change
        unknown = [index for index, value in enumerate(new) if value is UNCHANGED and index not in known]
        if not unknown:
            row = published.encoder.row_with(new, known) if known else published.encoder.row(new)
            if published.toast is not None:
                unchanged = [index for index, value in enumerate(update.new) if value is UNCHANGED]
                self.toast.remember(published, key, new, known, unchanged)
                if old_key != key:
                    self.toast.forget(published, old_key)
        elif self.toast.is_left_out(published, old_key):
            row = NULL
            self.toast.forget(published, old_key)
            self.toast.leave_out(published, key)
        else:  # the row was never published, or not under this key
            return self._incomplete(published, update, _untouched(published, unknown))
        return self._changed(published, update, new, (old_key, key), row, lsn)

    def _incomplete(self, published: PublishedTable, change: Insert | Update | Delete, why: str) -> Steps:
        """A row can't be published in full. If the table is being copied beside the stream, the copy reads the row
        again, later. Otherwise the table is passed over from here to its copy."""
        is_being_copied = self.relations.is_being_copied(published)
        self.envelopes.record_shape(published)
        name = published.table.name
        if is_being_copied and not isinstance(change, Delete):
            old = change.old if isinstance(change, Update) else None
            encode = published.encoder.key
            keys = [encode(filled(change.new, old)), *([] if old is None else [encode(old.fields)])]
            self.unread.setdefault(name, {}).update(dict.fromkeys(keys))
            for key in keys:
                self.toast.forget(published, key)
            yield LeftUnread(published.topic, keys)
        else:
            self.relations.stop_following(name)
            yield PassedOver(name, why)
        self.pass_over(published, change)

    def _changed(
        self,
        published: PublishedTable,
        update: Update,
        new: Fields,
        keys: tuple[bytes, bytes],
        row: bytes,
        lsn: int,
    ) -> Events | Steps:
        """The events of a row that is now ``new``, encoded as ``row``, and had the first of ``keys`` before."""
        topic, old = published.topic, update.old
        old_key, key = keys
        before = self._before(published, old)
        if old_key == key:
            if published.keys_can_swap and isinstance(old, FullImage):
                self._moves.change(topic, key, old.fields, new)
            if not self.progress.counted():
                return ()
            return (self.envelopes.event(b"u", published, key, before, row, lsn),)

        if not published.keys_can_swap:
            return self._moved(published, new, keys, before, row, lsn, None)
        return self._left(published, old_key, update, partial(self._moved, published, new, keys, before, row, lsn))

    def _moved(
        self,
        published: PublishedTable,
        new: Fields,
        keys: tuple[bytes, bytes],
        before: bytes,
        row: bytes,
        lsn: int,
        stays: bytes | None,
    ) -> Events:
        """The events of a row that moved from one key to another; ``stays`` is the row that has the first one now."""
        old_key, key = keys
        vacated = self._vacated(published, old_key, before, lsn, stays)
        if published.keys_can_swap:
            self._moves.arrive(published.topic, key, new)
        if not self.progress.counted():
            return vacated
        return (*vacated, self.envelopes.event(b"c", published, key, NULL, row, lsn))

    def _left(
        self,
        published: PublishedTable,
        key: bytes,
        change: Update | Delete,
        publish: Callable[[bytes | None], Events],
    ) -> Events | Steps:
        """A row leaves a key of a table whose keys can swap. ``publish`` gets the row that has it now, or None. A row
        that is known in an earlier shape alone can't be published in the present one."""
        if not isinstance(change.old, FullImage):
            return publish(None)
        rest = self._moves.vacate(published.topic, key, change.old.fields)
        if rest is None or self.progress.is_repeated():
            return publish(None)
        if not isinstance(rest, tuple):
            return self._after_row_before(published, key, change, publish)
        if UNCHANGED in rest:
            return self._incomplete(published, change, _OF_ANOTHER_SHAPE)
        return publish(published.encoder.row(rest))

    def _after_row_before(
        self, published: PublishedTable, key: bytes, change: Update | Delete, publish: Callable[[bytes | None], Events]
    ) -> Steps:
        event = yield NeedRowBefore(published.topic, key, self.envelopes.prefix)
        if event is not None and schema_id_of(event) != published.table.schema_id:
            yield from self._incomplete(published, change, _OF_ANOTHER_SHAPE)
        else:
            yield publish(None if event is None else after_of(event))

    def _vacated(self, published: PublishedTable, key: bytes, before: bytes, lsn: int, stays: bytes | None) -> Events:
        """The events of a row that left a key, which another row (``stays``) may have."""
        if not self.progress.counted():
            return ()
        if stays is not None:  # that row's own event may not be the key's newest
            return (self.envelopes.event(b"u", published, key, NULL, stays, lsn),)
        return self.envelopes.deleted(published, key, before, lsn)

    def _before(self, published: PublishedTable, old: KeyImage | FullImage | None) -> bytes:
        """What the replica identity delivers of the old row: nothing, its key, or all of it."""
        if old is None:
            return NULL
        whole = published.old_rows.whole(old)
        return published.encoder.row(whole) if whole is not None else published.encoder.key(old.fields)


def _untouched(published: PublishedTable, indexes: Sequence[int]) -> str:
    """Why these columns of a row are unknown."""
    columns = ", ".join(published.table.columns[index].name for index in indexes)
    return (
        f"an update left the large values of {columns} untouched, so PostgreSQL didn't send them, and the topic doesn't"
        " hold them as they are now"
    )


def _moves_key(published: PublishedTable, update: Update) -> bool:
    """Whether an update with an old image changes the row's key; False if a key can't be encoded."""
    assert update.old is not None
    try:
        return published.encoder.key(filled(update.new, update.old)) != published.encoder.key(update.old.fields)
    except (LockstepError, ValueError, TypeError, IndexError, AttributeError):
        return False
