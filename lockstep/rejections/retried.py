"""What became of rejections that were retried, for people and programs. Pure."""

from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from cdc.model.printable import visible
from jobs.dead_letters.record import DeadLetter
from lockstep.rejections.output import Tables, counted, key_text, position_text, rejection_json, table_text


@dataclass(slots=True)
class Retried:
    """What became of the rejections that were retried. ``generation`` is None if they are of several.

    ``taken`` counts those that the sink has now or had already, in this version or a newer one. ``void`` counts those
    whose event means nothing to today's table, ``gone`` those that were closed meanwhile. ``refused`` stay open, each
    with its reason.
    """

    generation: int | None
    taken: int = 0
    void: int = 0
    gone: int = 0
    refused: list[DeadLetter] = field(default_factory=list)

    def sentence(self, sink: str) -> str:
        text = f"{sink} took {counted(self.taken, 'rejected event')}"
        if self.void:
            text += f"; void, since their table was copied again: {self.void:,}"
        if self.gone:
            text += f"; closed meanwhile: {self.gone:,}"
        if self.refused:
            text += f"; still open: {len(self.refused):,}"
        return text

    def to_json(self, tables: Tables) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "taken": self.taken,
            "void": self.void,
            "gone": self.gone,
            "refused": [rejection_json(dead_letter, tables) for dead_letter in self.refused],
        }


def retried_table(retried: Retried, tables: Tables) -> Table:
    """For people: those that stay open."""
    table = Table()
    for heading in ("table", "key", "position", "refused again"):
        table.add_column(heading, overflow="fold")
    for dead_letter in retried.refused:
        where = table_text(dead_letter, tables)
        cells = (where, key_text(dead_letter), position_text(dead_letter), dead_letter.reason)
        table.add_row(*(Text(visible(cell)) for cell in cells))
    return table
