"""Chunks read beside a stream, against a model of a database whose commits are in the WAL before they are visible.

Writers lock keys until they are visible. The stream is published in the order of commits, also of those that nobody
sees so far. Whatever the interleaving: a published row is the one as of its tag, tags grow, and at the end the topic is
equal to the table.
"""

from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from cdc.protocol.visibility import SourceSnapshot, UnfinishedTransactions
from snapshot.chunks import PendingChunk

TOPIC = "t"
KEYS = 6


@dataclass
class Transaction:
    xid: int
    writes: dict[int, int | None] = field(default_factory=dict)
    commit: int = 0
    ended: bool = False


class Model:
    """The database, and who publishes its stream."""

    def __init__(self, stale: dict[int, int]) -> None:
        self.transactions: list[Transaction] = []
        self.lsn = 1
        self.xid = 100
        self.completed = 100
        self.value = 0
        self.log: list[tuple[int, tuple[int, int], int | None]] = [(key, (0, 1), row) for key, row in stale.items()]
        self.published_to = 1
        self.unfinished = UnfinishedTransactions()
        self.pending: tuple[int, PendingChunk] | None = None
        self.after = -1
        self.gone: list[int] | None = None
        self.done = False
        self.since = 0

    # Writers.

    def begin(self) -> None:
        self.xid += 1
        self.transactions.append(Transaction(self.xid))

    def running(self, number: int) -> Transaction | None:
        open_ones = [each for each in self.transactions if not each.commit and not each.ended]
        return open_ones[number % len(open_ones)] if open_ones else None

    def write(self, number: int, key: int) -> None:
        mine = self.running(number)
        if mine is not None and not any(
            key in other.writes for other in self.transactions if not self._is_free(other, mine)
        ):
            self.value += 1
            is_delete = self.value % 3 == 0
            mine.writes[key] = None if is_delete else self.value

    @staticmethod
    def _is_free(other: Transaction, mine: Transaction) -> bool:
        return other is mine or other.ended

    def commit(self, number: int) -> None:
        mine = self.running(number)
        if mine is not None:
            self.lsn += 1
            mine.commit = self.lsn

    def end(self, number: int) -> None:
        """A commit becomes visible, or a transaction rolls back."""
        waiting = [each for each in self.transactions if not each.ended]
        if waiting:
            mine = waiting[number % len(waiting)]
            mine.ended = True
            self.completed = max(self.completed, mine.xid)
            if not mine.commit:
                mine.writes.clear()

    def as_of(self, lsn: int) -> dict[int, int]:
        return self._applied([each for each in self.transactions if each.commit and each.commit < lsn])

    def _applied(self, transactions: list[Transaction]) -> dict[int, int]:
        rows: dict[int, int] = {}
        for each in sorted(transactions, key=lambda each: each.commit):
            for key, row in each.writes.items():
                if row is None:
                    rows.pop(key, None)
                else:
                    rows[key] = row
        return rows

    def snapshot(self) -> tuple[SourceSnapshot, dict[int, int]]:
        xmax = self.completed + 1
        running = frozenset(each.xid for each in self.transactions if not each.ended and each.xid < xmax)
        visible = [each for each in self.transactions if each.ended and each.commit]
        return SourceSnapshot(min(running, default=xmax), xmax, running), self._applied(visible)

    # Capture.

    def publish_next(self, until: int | None = None) -> bool:
        """The next transaction of the stream; not one that commits at ``until`` or later."""
        coming = [each for each in self.transactions if each.commit >= self.published_to + 1]
        coming = [each for each in coming if until is None or each.commit < until]
        if not coming:
            return False
        following = min(coming, key=lambda each: each.commit)
        self.unfinished.add(following.xid)
        self.published_to = following.commit
        for seq, (key, row) in enumerate(following.writes.items(), 1):
            if self.pending is not None:
                self.pending[1].changed(TOPIC, [b"%d" % key], xid=following.xid)
            self.log.append((key, (following.commit, seq), row))
        return True

    def stream(self) -> None:
        if self.pending is None:
            self.publish_next()
        elif not self.publish_next(self.pending[0]):
            self.publish_chunk()

    def read_chunk(self, size: int) -> None:
        if self.pending is not None or self.done:
            return
        if not self.since:
            self.lsn += 1  # a heartbeat
            self.since = self.lsn + 1
            self.lsn += 1
            while self.publish_next(self.since):
                pass
            return
        snapshot, rows = self.snapshot()
        self.lsn += 1
        lsn = self.lsn
        if not self.unfinished.all_seen_by(snapshot):
            return
        if self.after < KEYS:
            keys = [key for key in range(self.after + 1, KEYS) if key in rows][:size]
            self.reached = keys[-1] if len(keys) == size else KEYS
            events: dict[bytes, bytes | None] = {b"%d" % key: b"%d" % rows[key] for key in keys}
        else:
            if self.gone is None:
                newest = {key: (tag, row) for key, tag, row in self.log}
                self.gone = [key for key, (tag, row) in newest.items() if row is not None and tag < (self.since, 0)]
            events = {b"%d" % key: b"%d" % rows[key] if key in rows else None for key in self.gone[:size]}
        self.pending = lsn, PendingChunk(TOPIC, snapshot, events)

    def publish_chunk(self) -> None:
        assert self.pending is not None
        lsn, chunk = self.pending
        self.pending = None
        truth = self.as_of(lsn)
        for key, value in chunk.events.items():
            row = None if value is None else int(value)
            assert truth.get(int(key)) == row, "a row isn't the one as of its tag"
            self.log.append((int(key), (lsn, 0), row))
        if self.after < KEYS:
            self.after = self.reached
        elif self.gone is not None:
            newest = {key: (tag, row) for key, tag, row in self.log}
            self.gone = [key for key in self.gone if newest[key][1] is not None and newest[key][0] < (self.since, 0)]
            self.done = not self.gone

    def restart(self) -> None:
        """What is committed stays: events, and how far the copy is."""
        self.pending = None
        self.gone = None
        self.unfinished = UnfinishedTransactions()
        self.xid += 1
        self.completed = max(self.completed, self.xid)
        snapshot, _ = self.snapshot()
        committing = {each.xid for each in self.transactions if each.commit and not each.ended}
        self.unfinished.may_be_of_before(snapshot.running & committing)

    def finish(self) -> None:
        while any(not each.ended for each in self.transactions):
            self.end(0)
        for _ in range(1000):
            if self.done and self.pending is None:
                break
            self.read_chunk(2)
            self.stream()
        assert self.done, "the copy doesn't end"
        while self.publish_next():
            pass


_ACTIONS = ("begin", "write", "commit", "end", "stream", "chunk", "restart")
_WEIGHTS = (20, 40, 20, 12, 25, 25, 1)


@given(st.integers(0, 1 << 32))
def test_a_copy_beside_the_stream_ends_like_the_table(seed: int) -> None:
    chance = Random(seed)
    model = Model({key: chance.randint(1000, 1009) for key in range(KEYS) if chance.random() < 0.5})
    for _ in range(chance.randint(10, 200)):
        match chance.choices(_ACTIONS, _WEIGHTS)[0]:
            case "begin":
                model.begin()
            case "write":
                model.write(chance.randrange(4), chance.randrange(KEYS))
            case "commit":
                model.commit(chance.randrange(4))
            case "end":
                model.end(chance.randrange(4))
            case "stream":
                model.stream()
            case "chunk":
                model.read_chunk(chance.randint(1, 3))
            case "restart":
                model.restart()
    model.finish()
    tags: dict[int, tuple[int, int]] = {}
    newest: dict[int, int] = {}
    for key, tag, row in model.log:
        assert tag >= tags.get(key, (0, 0)), "tags go back"
        tags[key] = tag
        if row is None:
            newest.pop(key, None)
        else:
            newest[key] = row
    assert newest == model.as_of(model.lsn + 1)
