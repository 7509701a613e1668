"""``lockstep rejections discard``: rejections closed without being applied."""

from collections.abc import Callable

from jobs.dead_letters.limit import in_words
from lockstep.config import Config
from lockstep.console import EXIT_FAILED
from lockstep.rejections.book import RejectionBook, no_such_rejection
from lockstep.rejections.output import counted
from lockstep.rejections.selection import Selection


def discard(
    config: Config,
    sink: str,
    selection: Selection,
    *,
    agreed: Callable[[str], bool],
    say: Callable[[str], None],
) -> int:
    """Close what is meant once that is agreed to; returns the exit code.

    The sink needn't exist any more, nor be in the configuration. Dead letters that can't be read are removed only with
    all of the sink's. Raises LockstepError when no rejection has the given keys, and as ``RejectionBook.read``.
    """
    book = RejectionBook(config)
    chosen, unreadable = book.read(sink, selection)
    removed = [record for record in unreadable if record.sink == sink] if selection.is_unlimited else []
    if not chosen and not removed:
        if selection.keys:
            raise no_such_rejection(sink)
        say(f"no such rejections of {sink}")
        return 0
    what = f"{counted(len(chosen), 'rejection')} of {sink}"
    if chosen:
        what += f" ({in_words(dead_letter.reason for dead_letter in chosen)})"
    if removed:
        what += f" and {counted(len(removed), 'record')} that can't be read"
    means = (
        "Its webhook never gets these rows, unless a newer build of the result has them"
        if sink in config.stream_queries
        else "Their rows stay as they are in the sink until they are written again"
    )
    if not agreed(f"discard {what}? {means}"):
        say("nothing was discarded")
        return EXIT_FAILED
    book.close(chosen, removed)
    say(f"discarded {what}")
    return 0
