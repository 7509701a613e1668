"""Rich's two consoles: ``out`` for results, ``err`` for displays. Only commands that draw tables import it.

Names and messages from outside have no special meaning to them: neither Rich's square brackets and ``:key:``, nor the
terminal's control characters.

Nothing is cut. On a terminal that is too narrow for a table, texts are folded; if the numbers still don't fit, each row
is a paragraph. Without a terminal, a row is one line, however long: programs and logs have no width.
"""

import copy
from collections.abc import Iterable, Iterator
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from cdc.model.printable import visible_lines

_ANY_WIDTH: Final = 1_000_000
"""The width without a terminal: more than any line."""

_FOLDED_MIN: Final = 12
"""The narrowest that a column of texts is folded, in characters."""

_GAP: Final = "  "
"""Between the columns of a table that isn't drawn on a terminal."""


class WholeTexts(Console):
    """Everything drawn comes down to texts, which pass through here before they are laid out."""

    def __init__(self, **how: Any) -> None:
        super().__init__(markup=False, emoji=False, **how)

    @property
    def options(self) -> ConsoleOptions:
        options = super().options
        return options if self.is_terminal else options.update_width(_ANY_WIDTH)

    @property
    def width(self) -> int:
        return super().width if self.is_terminal else _ANY_WIDTH

    @width.setter
    def width(self, width: int) -> None:
        self._width = width

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text) and renderable.plain != (plain := visible_lines(renderable.plain)):
            renderable = Text(plain, style=renderable.style, overflow=renderable.overflow)
        if isinstance(renderable, Table):
            return self._render_table(renderable, options or self.options)
        return super().render(renderable, options)

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(visible_lines(text), **how)

    def _render_table(self, table: Table, options: ConsoleOptions) -> Iterable[Segment]:
        if not self.is_terminal:
            return self._render_lines(_aligned(table), options)
        folding = _folding(table)
        if table.box is not None and _narrowest(folding) > options.max_width:
            return self._render_lines(_paragraphs(table), options)
        return super().render(folding, options)

    def _render_lines(self, lines: Iterable[str], options: ConsoleOptions) -> Iterator[Segment]:
        for line in lines:
            yield from super().render(Text(visible_lines(line), overflow="fold"), options)


def _folding(table: Table) -> Table:
    """The table with columns of texts that may be folded, and columns of numbers that stay whole."""
    folding = copy.copy(table)
    folding.columns = [copy.copy(column) for column in table.columns]
    for column in folding.columns:
        column.overflow = "fold"
        if column.justify == "right":
            column.no_wrap = True
            column.min_width = _widest(column)
        else:
            column.min_width = min(_FOLDED_MIN, _widest(column))
    return folding


def _widest(column: Column) -> int:
    return max(cell_len(line) for text in (column.header, *column.cells) for line in str(text).split("\n"))


def _narrowest(table: Table) -> int:
    """The narrowest that the table can be: every column has a border and a blank on both sides."""
    return 1 + sum((column.min_width or 0) + 3 for column in table.columns)


def _aligned(table: Table) -> Iterator[str]:
    columns = [[_one_line(cell) for cell in column.cells] for column in table.columns]
    if table.title:
        yield str(table.title)
    if table.show_header:
        columns = [[_one_line(column.header), *cells] for column, cells in zip(table.columns, columns, strict=True)]
    widths = [max(map(cell_len, cells), default=0) for cells in columns]
    for row in zip(*columns, strict=True):
        cells = (
            " " * (width - cell_len(cell)) + cell
            if column.justify == "right"
            else cell + " " * (width - cell_len(cell))
            for cell, width, column in zip(row, widths, table.columns, strict=True)
        )
        yield _GAP.join(cells).rstrip()


def _paragraphs(table: Table) -> Iterator[str]:
    """A line for the first column of each row, and an indented line for every other cell that isn't empty."""
    headings = [_one_line(column.header) for column in table.columns]
    if table.title:
        yield str(table.title)
    for first, *others in zip(*([_one_line(cell) for cell in column.cells] for column in table.columns), strict=True):
        yield first
        yield from (f"    {heading}: {cell}" for heading, cell in zip(headings[1:], others, strict=True) if cell)


def _one_line(cell: object) -> str:
    return " ".join(str(cell).split("\n"))


out = WholeTexts()
err = WholeTexts(stderr=True)
