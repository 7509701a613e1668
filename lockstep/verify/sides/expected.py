"""What a sink is compared with: the contract of the source, the topic and another generation."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from cdc.model.table import Table
from lockstep.verify.canonical import Fingerprint, Key, Row
from lockstep.verify.waiting import SyncPoint


@dataclass(frozen=True, slots=True)
class Version:
    """A row at some moment. ``stamp`` differs whenever the row was written in between, even with the same values."""

    fingerprint: Fingerprint
    stamp: str


class Expected(ABC):
    """Rows that a sink should hold, while they change. Every method may raise Unavailable or LockstepError."""

    name: str
    can_be_asked_often: bool
    """Whether ``versions`` of a few keys is cheap enough to be asked again and again while the sink catches up."""

    @abstractmethod
    def scan(self, table: Table) -> Iterator[tuple[Key, Fingerprint]]:
        """Every row once.

        A row that is written meanwhile comes as it was before or after. One whose key changes may not come at all.
        """

    def versions(self, table: Table, keys: Collection[Key]) -> dict[Key, Version]:
        """The rows of these keys that are there now; keys without a row are absent."""
        return {key: version for key, (version, _) in self.rows(table, keys).items()}

    def versions_between(self) -> Mapping[Key, Collection[Fingerprint | None]]:
        """Where this side sees every version: what the keys of the last ``versions`` were since the call before it.

        None is no row. Most know the newest version only.
        """
        return {}

    @abstractmethod
    def rows(self, table: Table, keys: Collection[Key]) -> dict[Key, tuple[Version, Row]]:
        """The same with their values; for few keys."""

    @abstractmethod
    def sync_point(self) -> SyncPoint:
        """A point that isn't before anything that was read so far: a sink that is there has applied all of it."""
