"""Has the rows that differ published again, in order with the stream, and compares them again."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from cdc.model.table import Table
from lockstep.verify.canonical import Key
from lockstep.verify.comparing.table_comparer import TableComparer, ordered
from lockstep.verify.options import SOURCE, VerifyOptions
from lockstep.verify.report import TableReport, rows_text
from lockstep.verify.sides.opening import Sides
from lockstep.verify.sides.source import SourceSide
from lockstep.verify.waiting import Waiting

_ASK_AGAIN_S: Final = 10.0
"""A capture that ends forgets requests that it hasn't fulfilled, so they are sent again."""


def repair(
    table: Table,
    report_before: TableReport,
    *,
    sides: Sides,
    comparer: TableComparer,
    options: VerifyOptions,
    slot: str,
    waiting: Waiting,
    say: Callable[[str], None],
) -> TableReport:
    """Repair what differs, through the capture of this slot. Returns the report of the table afterwards.

    Asks again until everything is equal or ``options.repair_timeout_s`` seconds have passed. Raises Stalled if nothing
    is applied, Unavailable if a server can't be reached, LockstepError if a stop is asked for.
    """
    assert isinstance(sides.source, SourceSide), "a view's rows aren't published"
    keys = sorted({difference.key for difference in report_before.differences})
    misplaced = [difference for difference in report_before.differences if difference.note]
    deadline = waiting.now_s() + options.repair_timeout_s
    asked: Iterable[Key] = keys
    while True:
        chosen = sorted(asked)
        say(f"asking capture to publish {rows_text(len(chosen))} of {table.name} again")
        point = sides.source.request_repair(table.name, chosen, slot=slot)
        ask_again_at = waiting.now_s() + _ASK_AGAIN_S
        # A topic or a generation has no LSNs of the source to wait for. There, only the loop sees the end.
        if options.against == SOURCE:
            sides.applied.wait(point)
        while True:
            rechecked = comparer.recheck(table, keys)
            wrong = rechecked.different.keys() | set(rechecked.undecided)
            now_s = waiting.now_s()
            if not wrong or now_s > min(deadline, ask_again_at):
                break
        if not wrong or now_s > deadline:
            break
        asked = wrong
    remaining = [*comparer.differences(table, rechecked), *comparer.still_misplaced(table, misplaced)]
    different = {difference.key for difference in remaining}
    repaired = [key for key in keys if key not in different and key not in rechecked.undecided]
    if rechecked.different:
        say(
            f"still different {options.repair_timeout_s:.0f} s after it was asked for:"
            f" {rows_text(len(rechecked.different))} of {table.name};"
            " `lockstep capture` and the sink's job must be running for a repair"
        )
    return replace(
        report_before,
        differences=ordered(remaining),
        undecided=tuple(sorted({*report_before.undecided, *rechecked.undecided})),
        repaired=tuple(repaired),
    )
