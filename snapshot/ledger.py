"""How much of a first copy is done: the recorded ranges, and what follows from them for this start. Pure.

Let S1 be the snapshot at whose end, C1, the stream begins, and S2 a later one, at C2, under which an interrupted copy
continues. A row version that both show is in the same block under both, as long as the relation has the same file. So
it was copied under S1, if its block was, or is copied under S2. One that only S2 shows was written after C1: the stream
has it, whichever block it is in. One that only S1 shows was deleted or replaced after C1: the stream shows that. So
every range must be copied once, under any of the snapshots, and blocks that came after the first one hold nothing that
the stream lacks.

Copy and stream may both publish a row of a table with a key, but not one of an append-only table. So of that table's
missing ranges, S2 copies only the row versions that S1 showed as well. A row that S1 showed and that was changed or
deleted before C2 is missing then. The stream shows the change: see ``RowChanges``.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cdc.model.table import Table, TableName
from cdc.protocol.copy_ledger import CopiedRange
from cdc.protocol.membership import Membership
from snapshot.copy import Copied, CopyProgress
from snapshot.ranges import Interval, Part, Relation

_XID_BITS = 32


def shape_text(table: Table, membership: Membership, topic_id: str) -> str:
    """What must stay the same of a table for its ranges to count. The files of its partitions are checked separately.
    ``topic_id`` is Kafka's id of its topic: what was copied to a topic that is gone doesn't count."""
    storage = replace(membership.storage, partitions={}, attached={})
    recorded = json.loads(replace(membership, storage=storage).to_text())
    text = json.dumps([table.schema_id, topic_id, recorded], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class CopyRun:
    """One start of a first copy: its identity, its consistent point, and its tables' shapes."""

    slot: str
    epoch: int
    begun_lsn: int
    point_lsn: int
    shapes: Mapping[TableName, str]

    def record(self, part: Part, *, rows: int, size: int, took_ms: int, now_ms: int) -> CopiedRange:
        """The ledger's record of a part whose rows are all sent."""
        return CopiedRange(
            slot=self.slot,
            epoch=self.epoch,
            begun_lsn=self.begun_lsn,
            point_lsn=self.point_lsn,
            table=part.table,
            shape=self.shapes[part.table],
            storage=part.storage,
            first=part.first,
            end=part.end,
            rows=rows,
            size=size,
            committed_ms=now_ms,
            took_ms=took_ms,
        )

    def counts(self, copied: CopiedRange) -> bool:
        """Whether a range belongs to this copy, and its table is unchanged."""
        return (
            copied.epoch == self.epoch
            and copied.begun_lsn == self.begun_lsn
            and copied.shape == self.shapes.get(copied.table)
        )


class CopyLedger:
    """The finished ranges of earlier starts and this one, and how many parts each table lacks."""

    def __init__(self, run: CopyRun, recorded: Iterable[CopiedRange]) -> None:
        self.run = run
        self._recorded = list(recorded)
        self._counting = [copied for copied in self._recorded if run.counts(copied)]
        self._keys = {copied.key() for copied in self._recorded}
        self._left = Counter[TableName]()
        self.rows = Counter[TableName]()
        self.size = Counter[TableName]()

    def intervals(self) -> dict[tuple[TableName, str], list[Interval]]:
        """The ranges of earlier starts that count, by table and the relation's storage."""
        done: dict[tuple[TableName, str], list[Interval]] = defaultdict(list)
        for copied in self._counting:
            done[copied.table, copied.storage].append((copied.first, copied.end))
        return dict(done)

    def begin(self, relations: Collection[Relation], parts: Sequence[Part]) -> None:
        """Begin with these parts missing of these relations."""
        there = {(relation.table, relation.storage) for relation in relations}
        for copied in self._counting:
            if (copied.table, copied.storage) in there:  # else its relation was rewritten, or is gone
                self.rows[copied.table] += copied.rows
                self.size[copied.table] += copied.size
        self._left = Counter(part.table for part in parts)

    def add(self, part: Part, *, rows: int, size: int, is_last: bool) -> None:
        """So many more rows of a part are committed; ``is_last``: that completed it, with its record."""
        self.rows[part.table] += rows
        self.size[part.table] += size
        if is_last:
            self._left[part.table] -= 1
            if not part.only_newer:
                self._keys.add(self.run.record(part, rows=0, size=0, took_ms=0, now_ms=0).key())

    def is_complete(self, name: TableName) -> bool:
        return not self._left[name]

    def progress(self, name: TableName, rows_estimated: int, *, rows: int, size: int) -> CopyProgress:
        """How far the copy of a table is, after so many more rows of it were added."""
        so_far, is_complete = self.rows[name], self.is_complete(name)
        total = so_far if is_complete else max(so_far, rows_estimated)
        new = Copied(rows, size, records=rows)
        return CopyProgress(name, so_far, total, self.size[name], finished=is_complete, new=new)

    def record_keys(self) -> list[bytes]:
        """The keys of all records that may exist."""
        return sorted(self._keys)


@dataclass(frozen=True, slots=True)
class FirstSnapshot:
    """The snapshot at whose end the stream begins, distinguished from a later one by a row version's ``xmin``. ``text``
    is PostgreSQL's own. ``next_xid`` is the first transaction unknown to the later snapshot, in 64 bits."""

    text: str
    next_xid: int

    @property
    def is_exact(self) -> bool:
        """Whether each row version can be judged exactly. ``xmin`` has 32 bits, and an old one stays as it was. While
        there were no more transactions than that, numbers are unique. Later, a transaction since the first snapshot may
        have the number of an ancient one."""
        return bool(self.text) and self.next_xid < 1 << _XID_BITS

    def shows(self) -> str:
        """The SQL condition for the later snapshot's row versions that the first one shows too. If that isn't exact,
        ancient ones may be missing."""
        distance = f"({self.next_xid:d} - xmin::text::int8) & {(1 << _XID_BITS) - 1}"
        return f"pg_visible_in_snapshot(({self.next_xid:d} - ({distance}))::text::xid8, '{self.text}')"


def condition(part: Part, table: Table, first: FirstSnapshot | None) -> str:
    """Which row versions of a part are copied; empty: all. ``first`` is None in the first snapshot itself."""
    if first is None:
        return ""
    if part.only_newer:
        return f"not {first.shows()}"
    return "" if table.key else first.shows()


def why_not_resumable(
    table: Table, relations: Collection[Relation], *, is_unchanged: bool, first: FirstSnapshot
) -> str:
    """Why an append-only table's interrupted copy can't continue without losing or doubling a row; empty if it can."""
    assert not table.key
    if not is_unchanged:
        return "the table was altered or rewritten since"
    if any(relation.blocks is None for relation in relations):
        return "its rows can't be distinguished by their block"
    if not first.is_exact:
        return "the server had more than four billion transactions, so their numbers aren't unique"
    return ""
