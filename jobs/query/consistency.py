"""Whether a generation can be consistent, and what a starting job does with the record of its consistency."""

from collections.abc import Callable
from dataclasses import replace

from cdc.model.errors import LockstepError
from jobs.consistency import Consistency, load_consistency, save_consistency
from sinks.contract import Batch, OpenedSink, Progress


def check_can_be_consistent(sink: str, stored: Progress | None) -> None:
    """Raise LockstepError for a generation that isn't as of one commit and can't get there by reading on. Pure."""
    if stored is not None and stored.skipped:
        raise LockstepError(
            f"sink {sink!r} can't be consistent: a part of the log was left out by --from-lsn or --from-time",
            hint=f"build a generation beside it: lockstep rebuild {sink} --switch",
        )


def kept_consistency(opened: OpenedSink, generation: int) -> Consistency | None:
    """The consistency record; None also if another job became the writer since. Raises what the destination raises."""
    known = load_consistency(opened.records, generation)
    return None if known is None or known.fence != opened.sink.fence() else known


def claim_and_keep(opened: OpenedSink, generation: int, claim: Callable[[], int]) -> int:
    """Claim the generation and leave its consistency as it is. Returns the fence. Raises as ``claim``."""
    known = kept_consistency(opened, generation)
    fence = claim()
    if known is not None:
        _save_as_writer(opened, generation, fence, lambda newest: newest)
    return fence


def keep_consistency(
    opened: OpenedSink,
    generation: int,
    known: Consistency | None,
    *,
    fence: int,
    applies_steps: bool,
) -> bool:
    """Record what the job with this fence does, before it applies anything. ``known`` is the record from before it
    claimed the generation. A job that applies records as they come withdraws the promise: it must be reached again.
    Returns whether it is still to be reached. Raises Fenced, and what the destination raises."""
    if not applies_steps:
        if load_consistency(opened.records, generation) is not None:
            _save_as_writer(opened, generation, fence, lambda _: None)
        return False

    def kept(newest: Consistency | None) -> Consistency:
        is_kept = known is not None and newest is not None and newest.fence == known.fence
        return newest if is_kept and newest is not None else Consistency()

    return not _save_as_writer(opened, generation, fence, kept).is_reached


def _save_as_writer(
    opened: OpenedSink, generation: int, fence: int, change: Callable[[Consistency | None], Consistency | None]
) -> Consistency:
    """Replace the record. Raises Fenced if another job became the writer, which may have stored a newer one."""
    assert opened.whole is not None
    with opened.whole.step():
        opened.sink.apply(Batch([], fence=fence))
        changed = change(load_consistency(opened.records, generation))
        changed = None if changed is None else replace(changed, fence=fence)
        save_consistency(opened.records, generation, changed)
    return changed or Consistency()
