"""Which transactions a snapshot of the source sees. Pure. A commit is in the WAL before it is visible: other sessions
see it only after its backend releases it, which waits for a slow synchronous standby. So a published transaction may be
invisible to a snapshot that is taken later."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Self

_XID_BITS: Final = 32
_XID_MASK: Final = (1 << _XID_BITS) - 1
_HALF: Final = 1 << (_XID_BITS - 1)


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """The result of ``pg_current_snapshot``. Its xids have 64 bits and belong to whole transactions. All transactions
    below ``xmin`` have ended, none from ``xmax`` on has; in between, those in ``running`` haven't."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``xmin:xmax:xid,xid,...``."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, running.split(","))) if running else frozenset())

    def sees(self, xid: int) -> bool:
        """Whether a transaction of the stream, by its 32-bit xid, had ended, so that its changes are seen.

        No xid in the stream is half of all xids away: PostgreSQL keeps none so old.
        """
        whole = self.xmax + ((xid - self.xmax + _HALF) & _XID_MASK) - _HALF
        return whole < self.xmin or (whole < self.xmax and whole not in self.running)


class UnfinishedTransactions:
    """The published transactions that some snapshot may not see. Only a snapshot that sees all of them never shows a
    row as it was before an event that is already on its topic. An earlier process may have published some too: those
    that were running when this one began."""

    def __init__(self) -> None:
        self._published: set[int] = set()
        self._of_before: frozenset[int] = frozenset()
        self.newest = 0
        """The xid of the transaction that began last; 0: none did."""

    def add(self, xid: int) -> None:
        self._published.add(xid)
        self.newest = xid

    def may_be_of_before(self, xids: Collection[int]) -> None:
        """These 64-bit xids were running when this process began: an earlier one may have published some of them. A
        further call drops those that are known by now not to be."""
        self._of_before = frozenset(xids)

    @property
    def of_before(self) -> frozenset[int]:
        """Those of the earlier process that haven't ended."""
        return self._of_before

    @property
    def unseen(self) -> frozenset[int]:
        """The 32-bit xids of all that the last queried snapshot didn't see."""
        return frozenset(self._published) | {xid & _XID_MASK for xid in self._of_before}

    def all_seen_by(self, snapshot: SourceSnapshot) -> bool:
        """Whether a snapshot sees all of them. Those that it sees are dropped: later snapshots see them, too."""
        if self._published:
            self._published = {xid for xid in self._published if not snapshot.sees(xid)}
        if self._of_before:
            self._of_before = frozenset(xid for xid in self._of_before if not snapshot.sees(xid & _XID_MASK))
        return not self._published and not self._of_before
