"""A view's size and counters, and how far the building of its state is. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING, Any, Self

from views.counters import Counters, added
from views.state.contract import Size

if TYPE_CHECKING:  # it loads the operators, and `lockstep lag` needs none
    from views.view import ViewPosition


class Doing(StrEnum):
    """The phases of a building, in order."""

    READING = "reading"
    COMPUTING = "computing"
    WRITING = "writing"


_COUNTED = {Doing.READING: "events of the log", Doing.COMPUTING: "rows of tables", Doing.WRITING: "rows of the result"}


@dataclass(frozen=True, slots=True)
class Building:
    """``done`` of ``total`` events or rows, ``per_s`` of them a second; 0 if that isn't known yet. ``began_ms`` is when
    the building began, in milliseconds since 1970.
    """

    began_ms: int
    doing: Doing
    done: int
    total: int
    per_s: float

    @property
    def seconds_left(self) -> float | None:
        """For the present phase; None if unknown."""
        return max(0, self.total - self.done) / self.per_s if self.per_s else None

    @property
    def sentence(self) -> str:
        left = "" if self.seconds_left is None else f", {self.per_s:,.0f} a second, {self.seconds_left:.0f} s left"
        return f"{self.doing.value} {self.done:,} of {self.total:,} {_COUNTED[self.doing]}{left}"

    def to_json(self) -> dict[str, Any]:
        return {
            "began_ms": self.began_ms,
            "doing": self.doing.value,
            "done": self.done,
            "total": self.total,
            "per_s": round(self.per_s, 1),
            "seconds_left": None if self.seconds_left is None else round(self.seconds_left, 1),
        }


@dataclass(frozen=True, slots=True)
class ViewFigures:
    """``lsn`` is where the result is exact, 0 while the state is being built. ``state_rows`` is the number of entries
    of the state, ``state_bytes`` the size of its file. The counters are those since the state was built.

    ``at_ms`` is when the figures were read, by the reader's clock. ``time_ms`` is the view's time, by which rows of
    tables may be too old. Both are in milliseconds since 1970; a view without a time has 0.
    """

    lsn: int
    state_rows: int
    state_bytes: int
    counters: Counters
    building: Building | None = None
    at_ms: int = 0
    time_ms: int = 0

    @classmethod
    def of(cls, position: "ViewPosition", size: Size, *, building: Building | None = None, at_ms: int = 0) -> Self:
        return cls(position.lsn, size.entries, size.bytes, position.counters, building, at_ms, position.time_ms)

    @property
    def rows(self) -> int:
        return self.counters.rows

    def to_json(self) -> dict[str, Any]:
        """Other programs read it too, so it has the averages as well as the counts."""
        return {
            "rows": self.rows,
            "state_rows": self.state_rows,
            "state_bytes": self.state_bytes,
            **{name: count for name, count in asdict(self.counters).items() if name != "rows"},
            "amplification": round(self.counters.amplification, 3),
            "rows_per_step": round(self.counters.rows_per_step, 3),
            "transactions_per_step": round(self.counters.transactions_per_step, 3),
            "building": None if self.building is None else self.building.to_json(),
            "at_ms": self.at_ms,
            "time_ms": self.time_ms,
            "lsn": self.lsn,
        }

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Self:
        counters = Counters(**{name: facts[name] for name in Counters.__dataclass_fields__})
        fields = facts["building"]
        building = None
        if fields is not None:
            doing = Doing(fields["doing"])
            building = Building(fields["began_ms"], doing, fields["done"], fields["total"], fields["per_s"])
        sizes = facts["state_rows"], facts["state_bytes"]
        return cls(facts["lsn"], *sizes, counters, building, facts["at_ms"], facts["time_ms"])


def together(of_shards: Sequence[ViewFigures]) -> ViewFigures:
    """The figures of a divided view: it is where the last of its shards is, and has the rows of all. A row of a table
    counts once for each shard that processes it. Of several buildings, the one with most left to do counts.
    """
    buildings = [figures.building for figures in of_shards if figures.building is not None]
    order = list(Doing)
    return ViewFigures(
        min(figures.lsn for figures in of_shards),
        sum(figures.state_rows for figures in of_shards),
        sum(figures.state_bytes for figures in of_shards),
        reduce(added, (figures.counters for figures in of_shards)),
        min(buildings, key=lambda each: (order.index(each.doing), each.done - each.total), default=None),
        max(figures.at_ms for figures in of_shards),
        min(figures.time_ms for figures in of_shards),
    )
