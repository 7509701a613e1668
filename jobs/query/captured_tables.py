"""Which tables a sink has of those that are captured. Others may be while a job runs: capture says so in Kafka."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from cdc.model.table import TableName
from cdc.protocol.control_records import ProgressRecord


@dataclass(frozen=True, slots=True)
class Captured:
    """The tables that are captured as of a look.

    ``keyed`` have a key: a sink has all of them unless it names its own. ``append_only`` have none: a sink has those
    that it names. ``selection`` is what progress records have of them, empty before capture has told which they are.
    ``join_singly``: the first copy is over, so each table that joins has a copy of its own, for which the others don't
    wait.
    """

    keyed: Sequence[TableName]
    append_only: Collection[TableName] = ()
    selection: str = ""
    join_singly: bool = False

    def of(self, named: Sequence[str]) -> list[TableName]:
        """The captured tables of a sink that names these, or none."""
        if not named:
            return list(self.keyed)
        captured = {*self.keyed, *self.append_only}
        return [name for name in map(TableName.parse, named) if name in captured]

    def lacks(self, named: Sequence[str]) -> list[TableName]:
        """The tables that a sink names and that aren't captured: they haven't joined, or have left."""
        captured = {*self.keyed, *self.append_only}
        return [name for name in map(TableName.parse, named) if name not in captured]


class CapturedWatch:
    """Whether a sink that names these tables, or none, has others by now than those that were ``known``.

    ``look`` is asked when a progress record says that others are captured.
    """

    def __init__(self, named: Sequence[str], known: Captured, look: Callable[[], Captured]) -> None:
        self._named = named
        self._known = known
        self._look = look
        self._has_changed = False
        self._selection = ""
        """What the newest record has of the captured tables, until it is known which they are."""

    def has_changed(self, records: Sequence[ProgressRecord]) -> bool:
        """Whether it has others as of the last of these records. It stays so.

        Of such a sink no record says how far it is. Raises what ``look`` raises; the next call asks again, whether or
        not it has records.
        """
        if records:
            self._selection = records[-1].selection
        if self._has_changed or self._selection in ("", self._known.selection):
            return self._has_changed
        # The state that says which are captured is committed together with the record, so this is as new as that.
        now = self._look()
        self._selection = ""
        self._has_changed = set(now.of(self._named)) != set(self._known.of(self._named))
        if not self._has_changed:
            self._known = now
        return self._has_changed

    @property
    def selection(self) -> str:
        """Of the captured tables that were found last."""
        return self._known.selection

    def holds(self, record: ProgressRecord) -> bool:
        """Whether what a record says of the sink's tables is true of all of them, once ``has_changed`` was asked.

        One of before a table joined says nothing of it.
        """
        return record.selection in ("", self._known.selection)
