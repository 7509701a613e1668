"""``lockstep rejections discard``: closes rejections without applying them."""

from collections.abc import Callable, Sequence

from jobs.dead_letters.limit import in_words
from jobs.dead_letters.record import DeadLetter, UnreadableDeadLetter
from lockstep.config import Config
from lockstep.console import EXIT_FAILED
from lockstep.rejections.open_records import OpenRecords, no_such_rejection
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
    """Close the selected rejections if ``agreed`` says so; returns the exit code.

    The sink needn't exist or be configured any more. Unreadable dead letters are removed only together with all of the
    sink's. Rejections of an extension's store are closed while nobody retries them: a retry would go on with those that
    it found open. Raises LockstepError if no rejection has the given keys, as ``OpenRecords.read``, and as
    ``AddedStore.closing``.
    """
    open_records = OpenRecords(config)
    chosen, unreadable = open_records.read(sink, selection)
    removed = [record for record in unreadable if record.sink == sink] if selection.is_unlimited else []
    if not chosen and not removed:
        if selection.keys:
            raise no_such_rejection(sink)
        say(f"no such rejections of {sink}")
        return 0
    what = _what(sink, chosen, removed)
    added = config.added_stores.get(sink)
    means = "Their rows stay as they are in the sink until they are written again" if added is None else added.discarded
    if not agreed(f"discard {what}? {means}"):
        say("nothing was discarded")
        return EXIT_FAILED
    if added is None:
        open_records.close(chosen, removed)
    else:
        with added.closing(say=say):
            left = _still_open(open_records, sink, chosen)
            open_records.close(left, removed)
        if len(left) < len(chosen):
            say(f"closed meanwhile, by a job or by another command: {len(chosen) - len(left):,}")
        what = _what(sink, left, removed)
    say(f"discarded {what}")
    return 0


def _what(sink: str, chosen: Sequence[DeadLetter], removed: Sequence[UnreadableDeadLetter]) -> str:
    what = f"{counted(len(chosen), 'rejection')} of {sink}"
    if chosen:
        what += f" ({in_words(dead_letter.reason for dead_letter in chosen)})"
    if removed:
        what += f" and {counted(len(removed), 'record')} that can't be read"
    return what


def _still_open(open_records: OpenRecords, sink: str, chosen: Sequence[DeadLetter]) -> list[DeadLetter]:
    now = {dead_letter.record_key for dead_letter in open_records.read(sink)[0]}
    return [dead_letter for dead_letter in chosen if dead_letter.record_key in now]
