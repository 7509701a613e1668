"""Counters of what a view has done. Pure."""

from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class Counters:
    """What a view has done since its state was built, or what the building has done so far. ``changes_in`` counts
    changed rows of tables, ``changes_out`` those of the result, ``inside`` those of all operators. ``rows`` is how many
    rows the result has now.
    """

    steps: int = 0
    changes_in: int = 0
    changes_out: int = 0
    inside: int = 0
    transactions: int = 0
    rows: int = 0

    @property
    def amplification(self) -> float:
        """Rows of the result that change with one row of a table, on average."""
        return self.changes_out / self.changes_in if self.changes_in else 0.0

    def since(self, before: "Counters") -> "Counters":
        """What was done since ``before``. A state that was built anew has counted from 0."""
        if self.steps < before.steps or self.changes_in < before.changes_in:
            return self
        return added(self, Counters(*(-count for count in astuple(before))))

    @property
    def rows_per_step(self) -> float:
        return self.changes_in / self.steps if self.steps else 0.0

    @property
    def transactions_per_step(self) -> float:
        return self.transactions / self.steps if self.steps else 0.0


def added(before: Counters, done: Counters) -> Counters:
    return Counters(
        before.steps + done.steps,
        before.changes_in + done.changes_in,
        before.changes_out + done.changes_out,
        before.inside + done.inside,
        before.transactions + done.transactions,
        before.rows + done.rows,
    )
