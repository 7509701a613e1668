"""What was found of a row, what was done, and what is left. Pure.

No value of the row is in it, its key included: whoever runs the command has that, and output ends up in logs.
"""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from cdc.model.times import time_text
from lockstep.console import EXIT_FAILED, EXIT_LEFT
from sinks.contract import Leftover

_WIDTH: Final = 79


@dataclass(frozen=True, slots=True)
class Place:
    """One place, such as a topic or a sink's generation: what was there, and what is ``left``.

    ``why`` says why something is left whose end nobody knows, and what to do. ``unasked`` says why the place couldn't
    be looked at. All of a topic that was there at ``compacted_up_to_ms`` was compacted; in milliseconds since 1970.
    ``note`` says what may still come there of what isn't looked at, and doesn't count.
    """

    name: str
    found: tuple[Leftover, ...] = ()
    left: tuple[Leftover, ...] = ()
    why: str | None = None
    unasked: str | None = None
    compacted_up_to_ms: int | None = None
    note: str | None = None

    def unproven(self, why: str) -> Self:
        """The same, of which nobody knows until when what is left stays: it should have gone, and hasn't."""
        return replace(self, left=tuple(replace(leftover, until_ms=None) for leftover in self.left), why=why)

    @property
    def is_proven(self) -> bool:
        """Whether nothing is left, or it is known until when."""
        return self.unasked is None and all(leftover.until_ms is not None for leftover in self.left)

    def lines(self) -> Iterable[str]:
        """For people."""
        if self.unasked is not None:
            yield f"  couldn't be looked at: {self.unasked}"
            return
        left = {leftover.what for leftover in self.left}
        for leftover in self.found:
            if leftover.what not in left:
                yield f"  removed: {leftover.what}"
        for leftover in self.left:
            values = "" if leftover.has_values else ", no other values"
            until = "nobody knows until when" if leftover.until_ms is None else f"until {time_text(leftover.until_ms)}"
            yield f"  LEFT: {leftover.what}{values}; {until}"
        if self.left and self.compacted_up_to_ms is not None:
            yield f"  compacted: all that was there at {time_text(self.compacted_up_to_ms)}"
        if self.why is not None and not self.is_proven:
            yield f"  {self.why}"
        if not self.left:
            yield "  nothing is left"
        if self.note is not None:
            yield f"  {self.note}"

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "place": self.name,
            "found": [_json(leftover) for leftover in self.found],
            "left": [_json(leftover) for leftover in self.left],
            "why": self.why,
            "unasked": self.unasked,
            "compacted_up_to_ms": self.compacted_up_to_ms,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All places, and in sentences what isn't looked at from here. ``is_dry_run``: nothing was changed."""

    table: str
    places: Sequence[Place]
    unchecked: Sequence[str]
    is_dry_run: bool = False

    @property
    def verdict(self) -> str:
        """``erased``, ``left until`` a known time, or ``not proven``; of a dry run ``not run``."""
        if self.is_dry_run:
            return "not run"
        if not all(place.is_proven for place in self.places):
            return "not proven"
        return "left until" if any(place.left for place in self.places) else "erased"

    @property
    def until_ms(self) -> int | None:
        """When all that is left is gone, in milliseconds since 1970; None where nothing is, or nobody knows."""
        times = [leftover.until_ms for place in self.places for leftover in place.left]
        known = [time_ms for time_ms in times if time_ms is not None]
        return max(known) if known and len(known) == len(times) else None

    @property
    def exit_code(self) -> int:
        return {"erased": 0, "not run": 0, "left until": EXIT_LEFT, "not proven": EXIT_FAILED}[self.verdict]

    def lines(self) -> Iterable[str]:
        """For people, at most so wide as a narrow terminal."""
        yield f"erase of a row of {self.table}" + (", a dry run: nothing is changed" if self.is_dry_run else "")
        for place in self.places:
            yield place.name
            for line in place.lines():
                yield from _wrapped(line)
        yield "not looked at"
        for sentence in self.unchecked:
            yield from _wrapped(f"  {sentence}")
        yield from _wrapped(self._sentence())

    def _sentence(self) -> str:
        match self.verdict:
            case "not run":
                return "Run it without --dry-run to remove what can be removed."
            case "erased":
                return "Nothing is left in any of these places."
            case "left until":
                return (
                    f"What is left is gone by {time_text(self.until_ms)}. Run the same command then: it removes what"
                    " has expired, and proves that nothing is left."
                )
            case _:
                return "It isn't proven that nothing is left: see LEFT and what couldn't be looked at above."

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "table": self.table,
            "verdict": self.verdict,
            "until_ms": self.until_ms,
            "dry_run": self.is_dry_run,
            "places": [place.to_json() for place in self.places],
            "unchecked": list(self.unchecked),
        }


def _json(leftover: Leftover) -> dict[str, Any]:
    return {"what": leftover.what, "has_values": leftover.has_values, "until_ms": leftover.until_ms}


def _wrapped(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line.strip(),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + ("  " if indent else ""),
        break_long_words=False,
        break_on_hyphens=False,
    )
