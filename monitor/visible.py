"""Up to where queries find what was applied, where a store shows it only after a while. Pure: looks in, positions out.

Such a store says how often each of its parts was refreshed, and in which of them something waits for that. Where
nothing waits, queries find all that was applied before the look. Else they find what an earlier look has seen applied,
once each part was refreshed twice since: the first of these may have been under way by then.

A part that was seen to wait does so until it was refreshed, whatever it says: what the store has moved to its disk
meanwhile isn't found by that.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sinks.capabilities.refreshing import Refreshes
from sinks.contract import Progress

_LOOKS_MAX: Final = 600
"""Looks that are remembered of a generation, of those that have seen something new: ten minutes of them."""


@dataclass(frozen=True, slots=True)
class Visible:
    """What queries find of a generation. ``lsn`` and ``commit_time_ms`` are as those of ``Progress``; 0: nobody knows.

    ``unseen`` counts the records that are applied and not found, None where nobody knows. ``is_all``: there are none.
    """

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
        """What queries find where nothing was applied since they found all: then nobody need be asked. Else None."""
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
        """Whether queries find by now what was applied when the look was made."""
        return all(part in look.counts and counts.get(part, 0) >= look.counts[part] + 2 for part in self._waiting)
