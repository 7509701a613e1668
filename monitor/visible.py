"""Up to where queries find what was applied, in a store that shows it only after a while. Pure: looks in, positions
out.

Such a store says how often each of its parts was refreshed, and which of them have something waiting for that. If
nothing waits, queries find all that was applied before the look. Otherwise they find what an earlier look saw applied,
once each part was refreshed twice since: the first of these may have been in progress at that look.

A part that was seen to wait counts as waiting until it was refreshed, whatever the store says: rows that the store has
moved to its disk meanwhile don't count as waiting there, but queries don't find them yet.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sinks.capabilities.refreshing import Refreshes
from sinks.contract import Progress

_LOOKS_MAX: Final = 600
"""How many looks that saw something new are remembered per generation: ten minutes of them."""


@dataclass(frozen=True, slots=True)
class Visible:
    """What queries find of a generation. ``lsn`` and ``commit_time_ms`` are as in ``Progress``; 0 if unknown.
    ``unseen`` counts the records that are applied and not found, None if unknown. ``is_all``: there are none."""

    is_all: bool
    lsn: int = 0
    commit_time_ms: int = 0
    unseen: int | None = None


@dataclass(frozen=True, slots=True)
class _Look:
    epoch: int
    lsn: int
    commit_time_ms: int
    records: int
    counts: Mapping[str, int]


class VisibleRows:
    """What the looks at one generation have seen."""

    def __init__(self) -> None:
        self._looks: deque[_Look] = deque(maxlen=_LOOKS_MAX)
        self._found: _Look | None = None
        self._waiting: dict[str, int] = {}

    def idle(self, applied: Progress) -> Visible | None:
        """What queries find if nothing was applied since they found everything, without asking the store; else None."""
        found = self._found
        records = sum(applied.next_offsets.values())
        if found is None or self._waiting or (found.epoch, found.records) != (applied.epoch, records):
            return None
        return Visible(True, applied.watermark_lsn, applied.commit_time_ms, 0)

    def look(self, applied: Progress, refreshes: Refreshes) -> Visible:
        """``refreshes`` were asked for after ``applied``."""
        records = sum(applied.next_offsets.values())
        now = _Look(applied.epoch, applied.watermark_lsn, applied.commit_time_ms, records, refreshes.counts)
        waiting = {part: counts for part, counts in self._waiting.items() if refreshes.counts.get(part) == counts}
        self._waiting = waiting | {part: refreshes.counts[part] for part in refreshes.waiting}
        if not self._waiting:
            self._looks.clear()
            self._found = now
            return Visible(True, now.lsn, now.commit_time_ms, 0)
        while self._looks and self._shows(refreshes.counts, self._looks[0]):
            self._found = self._looks.popleft()
        if not self._looks or self._looks[-1].records != records or self._looks[-1].lsn != now.lsn:
            self._looks.append(now)
        found = self._found
        if found is None or found.epoch != now.epoch or found.records > records:
            return Visible(False)
        return Visible(False, found.lsn, found.commit_time_ms, records - found.records)

    def _shows(self, counts: Mapping[str, int], look: _Look) -> bool:
        """Whether queries now find what was applied when the look was made."""
        return all(part in look.counts and counts.get(part, 0) >= look.counts[part] + 2 for part in self._waiting)
