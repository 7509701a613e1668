"""Tables that wait before the next try, and since when. Pure: the clock is an argument."""

from collections.abc import Callable
from typing import Final

from cdc.model.table import TableName

SAID_AFTER_S: Final = 60.0
"""A wait that lasts so long is reported, and again after as long."""


class Waits:
    """What delays copies, by table. One table's wait delays no other."""

    def __init__(self, clock: Callable[[], float], say: Callable[[str], None]) -> None:
        self._clock = clock
        self._say = say
        self._not_before_s: dict[TableName, float] = {}
        self._since_s: dict[TableName, float] = {}

    def __bool__(self) -> bool:
        return any(map(self.for_table, self._not_before_s))

    def later(self, name: TableName, seconds: float, why: str | Callable[[], str] = "") -> None:
        """A table couldn't be read now. ``why`` is reported if the wait lasts, and called only then; empty: reported
        elsewhere."""
        now_s = self._clock()
        self._not_before_s[name] = now_s + seconds
        since_s = self._since_s.setdefault(name, now_s)
        if why and now_s - since_s > SAID_AFTER_S:
            self._since_s[name] = now_s
            self._say(f"{name}: a copy waits: {why() if callable(why) else why}")

    def for_table(self, name: TableName) -> bool:
        """Whether a table's next try isn't due yet."""
        return self._clock() < self._not_before_s.get(name, 0.0)

    def over(self, name: TableName) -> None:
        self._not_before_s.pop(name, None)
        self._since_s.pop(name, None)
