"""Which of the captured tables a sink has. They may change while a job runs; capture says so in Kafka."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from cdc.model.table import TableName
from cdc.protocol.control_records import ProgressRecord


@dataclass(frozen=True, slots=True)
class Captured:
    """The captured tables as of one look.

    ``keyed`` tables have a key: a sink has all of them unless it names its own. ``append_only`` tables have none: a
    sink has those that it names. ``selection`` identifies the captured tables in progress records; it is empty until
    capture has published one. ``join_singly``: the first copy is over, so each table that joins has a copy of its own,
    and the other tables don't wait for it.
    """

    keyed: Sequence[TableName]
    append_only: Collection[TableName] = ()
    selection: str = ""
    join_singly: bool = False

    def of(self, named: Sequence[str]) -> list[TableName]:
        """The captured tables of a sink that names these tables, or none."""
        if not named:
            return list(self.keyed)
        captured = {*self.keyed, *self.append_only}
        return [name for name in map(TableName.parse, named) if name in captured]

    def lacks(self, named: Sequence[str]) -> list[TableName]:
        """The tables that a sink names and that aren't captured: they haven't joined, or have left."""
        captured = {*self.keyed, *self.append_only}
        return [name for name in map(TableName.parse, named) if name not in captured]


class CapturedWatch:
    """Whether the tables of a sink that names these tables, or none, differ from the ``known`` ones. ``look`` is called
    when a progress record says that other tables are captured."""

    def __init__(self, named: Sequence[str], known: Captured, look: Callable[[], Captured]) -> None:
        self._named = named
        self._known = known
        self._look = look
        self._has_changed = False
        self._selection = ""
        """The newest record's selection, until ``look`` has resolved it."""

    def has_changed(self, records: Sequence[ProgressRecord]) -> bool:
        """Whether the sink has other tables as of the last of these records. Once true, it stays true: records no
        longer say how far the sink is. Raises what ``look`` raises; the next call asks again, even without records."""
        if records:
            self._selection = records[-1].selection
        if self._has_changed or self._selection in ("", self._known.selection):
            return self._has_changed
        # Capture commits its state together with the record, so this look is at least as new as the record.
        now = self._look()
        self._selection = ""
        self._has_changed = set(now.of(self._named)) != set(self._known.of(self._named))
        if not self._has_changed:
            self._known = now
        return self._has_changed

    @property
    def selection(self) -> str:
        """The selection of the captured tables that were found last."""
        return self._known.selection

    def holds(self, record: ProgressRecord) -> bool:
        """Whether a record holds for all of the sink's tables; call ``has_changed`` first. A record from before a table
        joined says nothing about that table."""
        return record.selection in ("", self._known.selection)
