"""How far the stream is, and what of it was published before a restart. Pure. Of a transaction that was published in
part, as many messages are skipped as its part says. For a TRUNCATE that was published in part, numbers decide: tables
with numbers up to the last published one are skipped."""

from cdc.model.lsn import Lsn
from cdc.model.tag import SEQ_MAX
from cdc.protocol.control_records import PublishedPart, StreamedTransaction
from cdc.protocol.pgoutput import Begin, Commit
from cdc.protocol.walsender import unix_ms


class StreamProgress:
    """Counts transactions, messages and changes. ``seq`` counts the changes of a transaction from 1."""

    def __init__(
        self,
        *,
        position: tuple[int, int],
        end_lsn: Lsn,
        commit_time_ms: int,
        last_transaction: StreamedTransaction | None = None,
        begun: StreamedTransaction | None = None,
        only_local: bool = False,
    ) -> None:
        """Continues from here; ``begun`` is the transaction that was published in part."""
        self.position = position
        """(commit LSN, seq) of the last counted change."""
        self.end_lsn = end_lsn
        """The end of the last complete transaction."""
        self.commit_time_ms = commit_time_ms
        """When the last complete transaction committed."""
        self.last_transaction = last_transaction
        self.transaction = StreamedTransaction(0, 0, 0, only_local)
        """The running transaction, or the last one."""
        self.commit_lsn = 0
        """Where it commits."""
        self.in_transaction = False
        self.seq = 0
        """The number of its last change."""
        # Nothing of a complete transaction follows, even if a table is counted now that wasn't then.
        self._skip_to = (position[0], SEQ_MAX) if end_lsn > position[0] else position
        self._begun_before = begun
        self._published_messages = 0
        """How many of its messages were published before the restart."""
        self._messages_done = 0
        """Messages that are done, in the sense of ``PublishedPart``."""
        self._seq_done = 0
        """The ``seq`` after them."""
        self._truncated_at = 0
        """Commit LSN of the last transaction with a TRUNCATE. Its deletes are published before ``position`` moves."""

    def begin(self, begin: Begin) -> None:
        self.in_transaction = True
        self.commit_lsn = begin.commit_lsn
        only_local = self.transaction.only_local
        self.transaction = StreamedTransaction(begin.commit_lsn, begin.xid, begin.commit_time_us, only_local)
        self.seq = self._seq_done = self._messages_done = self._published_messages = 0
        before = self._begun_before
        if before is not None and before.part is not None and before.commit_lsn == begin.commit_lsn:
            self._published_messages = before.part.messages

    def commit(self, commit: Commit) -> None:
        self.in_transaction = False
        if commit.end_lsn > self.end_lsn:
            self.end_lsn = commit.end_lsn
            self.commit_time_ms = unix_ms(self.transaction.commit_time_us)
            self.last_transaction = self.transaction

    def done_with(self, messages: int = 1) -> None:
        """So many messages about rows are done and counted."""
        self._messages_done += messages
        if self._messages_done == self._published_messages:
            assert self._begun_before is not None
            assert self._begun_before.part is not None
            self.seq = self._begun_before.part.seq
        self._seq_done = self.seq

    def counted(self) -> bool:
        """Count a change; False if it was published before the restart."""
        if self._messages_done < self._published_messages:
            return False
        self.seq += 1
        position = (self.commit_lsn, self.seq)
        if position <= self._skip_to:
            return False
        self.position = position
        return True

    def counted_rows(self, count: int) -> None:
        """Count rows of as many messages, none of which was published before."""
        self.seq += count
        self.position = (self.commit_lsn, self.seq)
        self.done_with(count)

    def counted_outside(self, lsn: Lsn, seq: int) -> bool:
        """Count a message outside of transactions; False if it was published. All that committed before has arrived."""
        if (lsn, seq) <= self._skip_to:
            return False
        self.position = (lsn, seq)
        self.end_lsn = max(self.end_lsn, lsn)
        return True

    def begin_truncate(self) -> bool:
        """Count a TRUNCATE; False if its deletes were published. They come before ``end_truncate``."""
        if self._messages_done < self._published_messages:
            return False
        self.seq += 1
        return (self.commit_lsn, self.seq) > self._skip_to

    def add_truncate_delete(self) -> None:
        """A delete of the truncated table is published."""
        self._truncated_at = self.commit_lsn

    def end_truncate(self) -> None:
        """The last delete of the table was published. A restart before this finds the keys that are still live."""
        self.position = (self.commit_lsn, self.seq)

    def is_repeated(self, changes: int = 1) -> bool:
        """Whether the next ``changes`` changes were published before the restart; the memory has their effects."""
        return self._messages_done < self._published_messages or (self.commit_lsn, self.seq + changes) <= self._skip_to

    @property
    def place(self) -> tuple[int, int]:
        """The transaction and its number of messages about rows so far: unchanged between two such messages."""
        return self.commit_lsn, self._messages_done

    @property
    def xid(self) -> int | None:
        """The running transaction's xid, None outside of one."""
        return self.transaction.xid if self.in_transaction else None

    @property
    def comes_again(self) -> bool:
        """Whether the recorded state already includes all of the running transaction. That state may count none of its
        rows, as for a transaction with nothing but a message for capture."""
        return self.in_transaction and self.commit_lsn < self.end_lsn

    @property
    def begun(self) -> StreamedTransaction | None:
        """The transaction with some changes returned, but not its end; None if there is none."""
        before = self._begun_before
        is_counted = self.commit_lsn in (self.position[0], self._truncated_at)
        if self.in_transaction and is_counted and self.commit_lsn >= self.end_lsn:
            if before is not None and self._messages_done < self._published_messages:
                return before
            return self.transaction._replace(part=PublishedPart(self._messages_done, self._seq_done))
        return before if before is not None and before.commit_lsn >= self.end_lsn else None
