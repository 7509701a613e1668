"""What a sink is compared with: the contract of the source, the topic and another generation."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from cdc.model.table import Table
from lockstep.verify.canonical import Fingerprint, Key, Row
from lockstep.verify.waiting import SyncPoint


@dataclass(frozen=True, slots=True)
class Version:
    """A row at some moment. ``stamp`` differs if the row was written in between, even with the same values."""

    fingerprint: Fingerprint
    stamp: str


class Expected(ABC):
    """Rows that a sink should hold, while they change. Every method may raise Unavailable or LockstepError."""

    name: str
    can_be_asked_often: bool
    """Whether reading ``versions`` of a few keys again and again, while the sink catches up, is cheap enough."""

    @abstractmethod
    def scan(self, table: Table) -> Iterator[tuple[Key, Fingerprint]]:
        """Every row once. A row that is written meanwhile is as before or as after. A row whose key changes may be
        missing."""

    def versions(self, table: Table, keys: Collection[Key]) -> dict[Key, Version]:
        """The rows of these keys now; keys without a row are absent."""
        return {key: version for key, (version, _) in self.rows(table, keys).items()}

    def versions_between(self) -> Mapping[Key, Collection[Fingerprint | None]]:
        """If this side sees every version: all versions of the last keys of ``versions`` since the call before it. None
        means no row. Most sides know only the newest version, and return nothing."""
        return {}

    @abstractmethod
    def rows(self, table: Table, keys: Collection[Key]) -> dict[Key, tuple[Version, Row]]:
        """The same with their values; for few keys."""

    @abstractmethod
    def sync_point(self) -> SyncPoint:
        """A point not before anything read so far: a sink that has reached it has applied all of that."""
