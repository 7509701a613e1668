"""Which transactions a snapshot of the source sees. Pure.

A commit is in the WAL before it is visible: other sessions see it only when its backend says so, which waits for a slow
synchronous standby. So a transaction may be published while a snapshot that is taken later doesn't see it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Self

_XID_BITS: Final = 32
_XID_MASK: Final = (1 << _XID_BITS) - 1
_HALF: Final = 1 << (_XID_BITS - 1)


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """What ``pg_current_snapshot`` says of a snapshot. Its xids have 64 bits, and are those of whole transactions.

    All below ``xmin`` have ended, none from ``xmax`` on has, and in between those that are in ``running`` haven't.
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """``xmin:xmax:xid,xid,...``"""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, running.split(","))) if running else frozenset())

    def sees(self, xid: int) -> bool:
        """Whether a transaction of the stream, by its xid of 32 bits, had ended: what it committed is seen.

        The stream has no xid that is half of all numbers away: PostgreSQL keeps none so old.
        """
        whole = self.xmax + ((xid - self.xmax + _HALF) & _XID_MASK) - _HALF
        return whole < self.xmin or (whole < self.xmax and whole not in self.running)


class UnfinishedTransactions:
    """The published transactions that some snapshot may not see. Only a snapshot that sees all of them shows no row as
    it was before an event that is on its topic already.

    An earlier process has published some as well. Those that were running when this one began may be among them.
    """

    def __init__(self) -> None:
        self._published: set[int] = set()
        self._of_before: frozenset[int] = frozenset()
        self.newest = 0
        """The xid of the transaction that was begun last; 0: none was."""

    def add(self, xid: int) -> None:
        """A transaction is being published."""
        self._published.add(xid)
        self.newest = xid

    def may_be_of_before(self, xids: Collection[int]) -> None:
        """These were running when this process began, by their xids of 64 bits: an earlier one may have published some.

        Called again, it leaves out those that are known by now to be none of them.
        """
        self._of_before = frozenset(xids)

    @property
    def of_before(self) -> frozenset[int]:
        """Those of them that haven't ended."""
        return self._of_before

    @property
    def unseen(self) -> frozenset[int]:
        """The xids of 32 bits of all that the last snapshot that was asked about didn't see."""
        return frozenset(self._published) | {xid & _XID_MASK for xid in self._of_before}

    def all_seen_by(self, snapshot: SourceSnapshot) -> bool:
        """Whether a snapshot sees all of them. Those that it sees are forgotten: later ones see them, too."""
        if self._published:
            self._published = {xid for xid in self._published if not snapshot.sees(xid)}
        if self._of_before:
            self._of_before = frozenset(xid for xid in self._of_before if not snapshot.sees(xid & _XID_MASK))
        return not self._published and not self._of_before
