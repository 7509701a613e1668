"""Whether a generation can be kept consistent, and what is kept of it at a job's start."""

from cdc.model.errors import LockstepError
from jobs.consistency import Consistency, load_consistency, save_consistency
from jobs.query.start_position import StartPosition
from sinks.contract import CoordinationRecords, Progress


def check_can_be_consistent(sink: str, stored: Progress | None, start: StartPosition) -> None:
    """Raise LockstepError for a generation that isn't as of one commit, and doesn't become so by reading on. Pure.

    ``start`` is its newest start position, as a job without ``consistent`` has it.
    """
    hint = f"build a generation beside it: lockstep rebuild {sink} --switch"
    if stored is not None and stored.skipped:
        raise LockstepError(
            f"sink {sink!r} can't be consistent: a part of the log was left out by --from-lsn or --from-time", hint=hint
        )
    if start.overwrite_equal_tags:
        raise LockstepError(f"sink {sink!r} can't be consistent: it is being rebuilt in place", hint=hint)


def keep_consistency(records: CoordinationRecords, generation: int, *, applies_steps: bool) -> bool:
    """Have the record say what the job does, before it applies anything. Raises what the destination raises.

    A job that applies records as they come takes the promise back: it is to be reached again. Returns whether it is
    still to be reached.
    """
    known = load_consistency(records, generation)
    if not applies_steps:
        if known is not None:
            save_consistency(records, generation, None)
        return False
    if known is None:
        save_consistency(records, generation, Consistency())
    return known is None or not known.is_reached
