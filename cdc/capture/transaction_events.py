"""The events of the running transaction: their tags, times and sources. Pure."""

from cdc.capture.published_table import PublishedTable
from cdc.capture.questions import Event, Events
from cdc.capture.relations import Relations
from cdc.capture.resume import StreamProgress
from cdc.event_format.encode import event_value
from cdc.model.tag import tag_prefix, tag_text
from cdc.protocol.control_records import SchemaRecord
from cdc.protocol.pgoutput import Begin
from cdc.protocol.walsender import unix_ms

NULL = b"null"


class Envelopes:
    """Makes events of encoded rows, numbered by the last counted change."""

    def __init__(self, relations: Relations, progress: StreamProgress, epoch: int) -> None:
        self.epoch = epoch
        self.prefix = b""
        """The start of the tag that all events of the transaction share."""
        self.time_ms = 0
        """When it commits, in milliseconds since 1970."""
        self._relations = relations
        self._progress = progress
        self._touched: list[PublishedTable] = []

    def begin(self, begin: Begin) -> None:
        self.prefix = tag_prefix(self.epoch, begin.commit_lsn)
        self.time_ms = unix_ms(begin.commit_time_us)
        for published in self._touched:
            published.source = b""
        self._touched.clear()

    def record_shape(self, published: PublishedTable) -> None:
        """A row of this shape is being published, or the stream has passed the change without such a row."""
        record, at = published.unrecorded, self._progress
        if record is not None:
            lsn, seq = (at.commit_lsn, at.seq) if at.in_transaction else (at.end_lsn, 0)
            self._relations.record(published, SchemaRecord(record.table, lsn, record.change, seq, self.epoch))

    def source(self, published: PublishedTable) -> bytes:
        """The ``source`` block of the table's events in this transaction."""
        if not published.source:
            self.record_shape(published)
            xid = self._progress.transaction.xid
            published.source = published.encoder.source(commit_time_ms=self.time_ms, xid=xid)
            self._touched.append(published)
        return published.source

    def event(self, op: bytes, published: PublishedTable, key: bytes, before: bytes, after: bytes, lsn: int) -> Event:
        """An event of a row. A written row that is null here is too large for the topic, so its event has op ``x``."""
        if after == NULL and op in (b"c", b"u"):
            op = b"x"
        source = published.source or self.source(published)
        value = event_value(op, self.prefix, self._progress.seq, before, after, source, lsn, self.time_ms)
        return published.topic, key, value, None

    def deleted(self, published: PublishedTable, key: bytes, before: bytes, lsn: int) -> Events:
        """The delete, and the tombstone that lets compaction drop the key. Both have the same tag."""
        delete = self.event(b"d", published, key, before, NULL, lsn)
        if not published.table.key:
            return (delete,)  # its topic isn't compacted
        return delete, (published.topic, key, None, tag_text(self.prefix, self._progress.seq))
