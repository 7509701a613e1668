"""What a rebuild reports while it runs, and its result."""

from collections.abc import Callable
from dataclasses import dataclass

from jobs.report import Reporter, log_report
from lockstep.verify.progress import OnStep
from lockstep.verify.report import VerifyReport


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build is: ``read`` of ``total`` offsets of the log, and the events applied by this process."""

    generation: int
    read: int
    total: int
    events: int
    finished: bool


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result. ``switched_from`` is what readers saw before, if they see this generation now.

    ``explained`` are the settings that make its rows different from those of the live generation. ``loaded`` records
    were read from the log's beginning in ``load_s`` seconds by this process, and compared in ``compare_s`` seconds.
    """

    generation: int
    report: VerifyReport
    switched_from: int | None
    is_live: bool
    explained: tuple[str, ...]
    loaded: int
    load_s: float
    compare_s: float


@dataclass(frozen=True, slots=True)
class InputsChanged:
    """A table has changed so that rows which were applied before can't be right any more. ``why`` says how."""

    why: str


@dataclass(frozen=True, slots=True)
class Observer:
    """``say`` gets sentences, ``progress`` and ``compared`` numbers, ``report`` the jobs' reports."""

    say: Callable[[str], None]
    progress: Callable[[BuildProgress], None]
    compared: OnStep
    report: Reporter = log_report


class Interrupted(Exception):
    """A stop was asked for. The build goes on the next time."""


class NoDriver(Exception):
    """No driver applies to the build, or goes on to. The build goes on in a Spark of its own."""
