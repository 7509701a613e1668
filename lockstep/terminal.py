"""Rich's two consoles: ``out`` for results, ``err`` for displays. Only commands that draw tables import it.

Names and messages of others mean nothing to them: neither square brackets and ``:key:``, which are Rich's, nor control
characters, which are the terminal's.
"""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from cdc.model.visible import visible_lines


class _Console(Console):
    """All that is drawn comes down to texts, which pass here before they are laid out."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text) and renderable.plain != (plain := visible_lines(renderable.plain)):
            renderable = Text(plain, style=renderable.style, overflow=renderable.overflow)
        return super().render(renderable, options)

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(visible_lines(text), **how)


out = _Console(markup=False, emoji=False)
err = _Console(stderr=True, markup=False, emoji=False)
