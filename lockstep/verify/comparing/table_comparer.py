"""Compares one table: all of its rows, or some by their keys."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from cdc.model.errors import Unavailable
from cdc.model.table import Table
from lockstep.verify.canonical import Key, parse_keys
from lockstep.verify.comparing.misplaced import (
    MISPLACED,
    SECOND_COPY,
    extra_rows,
    possibly_misplaced,
    second_copies,
)
from lockstep.verify.comparing.recheck import Rechecked, recheck
from lockstep.verify.comparing.search import Candidates, Search
from lockstep.verify.options import SOURCE, TOPIC, VerifyOptions
from lockstep.verify.progress import OnStep, Step
from lockstep.verify.report import Difference, Kind, TableReport
from lockstep.verify.sides.expected import Expected
from lockstep.verify.sides.opening import Sides
from lockstep.verify.waiting import Waiting

_TRIES_MAX: Final = 8
_TRY_AGAIN_S: Final = 1.0


class TableComparer:
    """Compares tables, one at a time. ``progress`` gets how far it is, ``say`` messages to people."""

    def __init__(
        self, sides: Sides, options: VerifyOptions, *, waiting: Waiting, say: Callable[[str], None], progress: OnStep
    ) -> None:
        self._sides = sides
        self._options = options
        self._waiting = waiting
        self._say = say
        self._progress = progress

    def compare(self, table: Table) -> TableReport:
        """Compare the chosen keys of a table, or all of its rows.

        Starts again if a server goes away meanwhile, and raises Unavailable if that happens too often. Raises
        ConfigurationError for keys that no row can have, Stalled if nothing is applied, and LockstepError if a stop is
        asked for.
        """
        keys = parse_keys(table, self._options.keys)
        for tries in count(1):
            try:
                return self._compare_keys(table, keys) if keys else self._compare_all(table)
            except Unavailable as error:
                if tries == _TRIES_MAX:
                    raise
                self._say(f"{error.message}: comparing {table.name} from its beginning again")
                self._waiting.sleep(_TRY_AGAIN_S * tries)
        raise AssertionError("it counts on")

    def recheck(self, table: Table, keys: Iterable[Key]) -> Rechecked:
        """Which of these keys really differ. Raises as ``compare``."""
        chosen = list(keys)
        self._progress(Step(table.name, "keys that may differ", len(chosen)))
        rechecked = self._recheck_against(self._sides.expected, table, chosen)
        if rechecked.undecided and self._sides.is_against_source and self._sides.new_topic_side is not None:
            # Of a row that is written all the time, the source shows some versions, the log every one.
            self._progress(
                Step(table.name, "keys that change at every look, compared with the log", len(rechecked.undecided))
            )
            by_log = self._recheck_against(self._sides.new_topic_side(), table, rechecked.undecided)
            rechecked = Rechecked(
                rechecked.copies | by_log.copies, rechecked.different | by_log.different, by_log.undecided
            )
        return rechecked

    def differences(self, table: Table, rechecked: Rechecked) -> list[Difference]:
        """What the recheck found, without rows that a side is allowed to lack. Raises Unavailable."""
        differences = list(rechecked.different.values())
        # Only another generation of the sink may lack rows that are here; source and topic have them all.
        is_against_generation = self._options.against not in (SOURCE, TOPIC)
        allowed = {
            Kind.MISSING: self._sides.settings.may_lack_rows(table.name),
            Kind.EXTRA: is_against_generation and self._sides.other_settings.may_lack_rows(table.name),
        }
        differences = [difference for difference in differences if not allowed.get(difference.kind, False)]
        if any(difference.kind is Kind.MISSING for difference in differences):
            # When asked for a missing key too, a sink also shows a row that it stores in that key's place.
            differences = [
                replace(difference, note=MISPLACED)
                if difference.kind is Kind.EXTRA and self._is_nowhere(table, difference.key)
                else difference
                for difference in differences
            ]
        return differences

    def still_misplaced(self, table: Table, before: Sequence[Difference]) -> list[Difference]:
        """The misplaced rows and second copies that are still there. Raises Unavailable. A repair writes the row itself
        again, but doesn't remove another copy of it."""
        if not before:
            return []
        keys = {difference.key for difference in before}
        tags: dict[Key, list[str]] = {}
        for key, copy in self._sides.sink.scan(table):
            if key in keys:
                tags.setdefault(key, []).append(copy.tag)
        return [
            difference
            for difference in before
            if (
                difference.sink_tag in tags.get(difference.key, ())
                if difference.note == MISPLACED
                else len(tags.get(difference.key, ())) > 1
            )
        ]

    def _compare_all(self, table: Table) -> TableReport:
        search = Search(
            table,
            self._sides.expected,
            self._sides.sink,
            keys_max=self._options.keys_max,
            report_count=lambda what, rows: self._progress(Step(table.name, what, rows)),
        )
        differences: list[Difference] = []
        undecided: list[Key] = []
        is_complete = True
        for candidates in search.candidates():
            is_complete = is_complete and candidates.is_complete
            rechecked = self.recheck(table, candidates.shown)
            differences += self.differences(table, rechecked)
            differences += self._misplaced(table, candidates, rechecked)
            undecided += rechecked.undecided
            if len(differences) >= self._options.differences_max:
                is_complete = False
                break
        counts = search.counts
        return TableReport(
            table.name,
            counts.expected_rows,
            counts.sink_rows,
            counts.ranges,
            counts.differing,
            differences=ordered(differences),
            undecided=tuple(sorted(undecided)),
            is_complete=is_complete,
        )

    def _compare_keys(self, table: Table, keys: Sequence[Key]) -> TableReport:
        rechecked = self.recheck(table, keys)
        second = second_copies({}, (), rechecked)
        expected_versions = self._sides.expected.versions(table, keys)
        absent = [key for key, copies in rechecked.copies.items() if not copies and key not in expected_versions]
        return TableReport(
            table.name,
            keys=len(keys),
            absent=tuple(sorted(absent)),
            differences=ordered([*self.differences(table, rechecked), *extra_rows(second, SECOND_COPY)]),
            undecided=tuple(sorted(rechecked.undecided)),
        )

    def _recheck_against(self, expected: Expected, table: Table, keys: Sequence[Key]) -> Rechecked:
        return recheck(
            table,
            keys,
            expected=expected,
            sink=self._sides.sink,
            applied=self._sides.applied,
            waiting=self._waiting,
            rounds_max=self._options.rounds_max,
        )

    def _misplaced(self, table: Table, candidates: Candidates, rechecked: Rechecked) -> list[Difference]:
        differences = extra_rows(second_copies(candidates.shown, candidates.doubled, rechecked), SECOND_COPY)
        possibly = possibly_misplaced(candidates.shown, candidates.doubled, rechecked)
        if possibly:
            self._progress(Step(table.name, "rows that may be misplaced", len(possibly)))
            again = {key: copy for key, copy in self._sides.sink.scan(table) if possibly.get(key) == copy}
            differences += extra_rows(again, MISPLACED)
        return differences

    def _is_nowhere(self, table: Table, key: Key) -> bool:
        return key not in self._sides.sink.copies(table, [key])


def ordered(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """Each once, by key. Pure."""
    return tuple(sorted(set(differences), key=lambda difference: (difference.key, difference.kind)))
