"""What was found of a row, what was done, and what is left. Pure. It contains no value of the row, not even its key:
the user has that, and output ends up in logs.
"""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdc.model.times import time_text
from lockstep.console import EXIT_FAILED, EXIT_LEFT
from lockstep.erasing import Place
from sinks.capabilities.erasing import Leftover

_WIDTH: Final = 79


@dataclass(frozen=True, slots=True)
class Report:
    """All places, and sentences about what isn't looked at. ``is_dry_run``: nothing was changed."""

    table: str
    places: Sequence[Place]
    unchecked: Sequence[str]
    is_dry_run: bool = False

    @property
    def verdict(self) -> str:
        """``erased``, ``left until`` a known time, or ``not proven``; ``not run`` for a dry run."""
        if self.is_dry_run:
            return "not run"
        if not all(place.is_proven for place in self.places):
            return "not proven"
        return "left until" if any(place.left for place in self.places) else "erased"

    @property
    def until_ms(self) -> int | None:
        """When everything left is gone, in milliseconds since 1970; None if nothing is left or the time is unknown."""
        times = [leftover.until_ms for place in self.places for leftover in place.left]
        known = [time_ms for time_ms in times if time_ms is not None]
        return max(known) if known and len(known) == len(times) else None

    @property
    def exit_code(self) -> int:
        return {"erased": 0, "not run": 0, "left until": EXIT_LEFT, "not proven": EXIT_FAILED}[self.verdict]

    def lines(self) -> Iterable[str]:
        """For people, no wider than a narrow terminal."""
        yield f"erase of a row of {self.table}" + (", a dry run: nothing is changed" if self.is_dry_run else "")
        for place in self.places:
            yield place.name
            for line in _lines(place):
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
                    f"The rest is gone by {time_text(self.until_ms)}. Run the same command then: it removes what"
                    " has expired, and proves that nothing is left."
                )
            case _:
                seen = ["see LEFT above"] if any(place.left for place in self.places) else []
                if any(place.unasked is not None for place in self.places):
                    seen.append("not all places could be looked at")
                return f"Something may be left: {', and '.join(seen)}."

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "verdict": self.verdict,
            "until_ms": self.until_ms,
            "dry_run": self.is_dry_run,
            "places": [_place_json(place) for place in self.places],
            "unchecked": list(self.unchecked),
        }


def _lines(place: Place) -> Iterable[str]:
    if place.unasked is not None:
        yield f"  couldn't be looked at: {place.unasked}"
        return
    left = {leftover.what for leftover in place.left}
    for leftover in place.found:
        if leftover.what not in left:
            yield f"  removed: {leftover.what}"
    for leftover in place.left:
        values = "" if leftover.has_values else ", no other values"
        until = "until an unknown time" if leftover.until_ms is None else f"until {time_text(leftover.until_ms)}"
        yield f"  LEFT: {leftover.what}{values}; {until}"
    if place.left and place.compacted_up_to_ms is not None:
        yield f"  compacted: all that was there at {time_text(place.compacted_up_to_ms)}"
    if place.why is not None and not place.is_proven:
        yield f"  {place.why}"
    if not place.left:
        yield "  nothing is left"
    if place.note is not None:
        yield f"  {place.note}"


def _place_json(place: Place) -> dict[str, Any]:
    return {
        "place": place.name,
        "found": [_json(leftover) for leftover in place.found],
        "left": [_json(leftover) for leftover in place.left],
        "why": place.why,
        "unasked": place.unasked,
        "compacted_up_to_ms": place.compacted_up_to_ms,
        "note": place.note,
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
