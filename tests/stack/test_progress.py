"""A start is given up for doing nothing, never for taking long."""

from stack.progress import QUIET_SECONDS, Effort, Progress

ENOUGH = 0.05
"""The share of a core that a start got at a load of 25."""


def _ends_after(
    effort: Effort, *, cpu_share: float, line_every: float | None = None, seconds: int = 3600
) -> int | None:
    """The second of a start at which it is given up; None where it never is."""
    progress = Progress()
    for second in range(seconds):
        lines = 0 if line_every is None else int(second / line_every)
        if progress.is_stuck(second, Effort(effort.log_bytes + lines, effort.cpu_seconds + second * cpu_share)):
            return second
    return None


def test_who_works_or_writes_is_waited_for() -> None:
    nothing = Effort(0, 0.0)
    assert _ends_after(nothing, cpu_share=ENOUGH) is None
    assert _ends_after(nothing, cpu_share=0.0, line_every=QUIET_SECONDS / 2) is None


def test_who_does_nothing_is_given_up() -> None:
    """What was done before doesn't count, nor what a server uses that has nothing to do."""
    assert _ends_after(Effort(10_000, 500.0), cpu_share=0.0) == QUIET_SECONDS
    assert _ends_after(Effort(0, 0.0), cpu_share=0.01) == QUIET_SECONDS


def test_a_start_that_hangs_later_is_given_up() -> None:
    progress = Progress()
    worked = [progress.is_stuck(second, Effort(0, second * 0.5)) for second in range(600)]
    hung = [progress.is_stuck(600 + second, Effort(0, 300.0)) for second in range(300)]
    assert not any(worked)
    assert QUIET_SECONDS * 0.9 <= hung.index(True) <= QUIET_SECONDS + 1
