"""What a view holds and has done, in numbers. Pure."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from views.state.contract import Size
from views.view import Counters, ViewPosition


@dataclass(frozen=True, slots=True)
class ViewFigures:
    """``lsn`` is up to where the result is exact, 0 while the state is being built. ``state_rows`` are the entries of
    the state, ``state_bytes`` those of its file. The counters are those since the state was
    built.
    """

    lsn: int
    state_rows: int
    state_bytes: int
    counters: Counters

    @classmethod
    def of(cls, position: ViewPosition, size: Size) -> Self:
        """Of a state that is there now."""
        return cls(position.lsn, size.entries, size.bytes, position.counters)

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return self.counters.rows

    def to_json(self) -> dict[str, Any]:
        """For people's programs too: the averages are there beside the counts."""
        return {
            "rows": self.rows,
            "state_rows": self.state_rows,
            "state_bytes": self.state_bytes,
            **{name: count for name, count in asdict(self.counters).items() if name != "rows"},
            "amplification": round(self.counters.amplification, 3),
            "rows_per_step": round(self.counters.rows_per_step, 3),
            "transactions_per_step": round(self.counters.transactions_per_step, 3),
        }
