"""Errors of views: queries that views can't maintain, and data for which PostgreSQL's query would fail as well."""

from collections.abc import Sequence
from dataclasses import dataclass

from cdc.model.errors import ConfigurationError, LockstepError


@dataclass(frozen=True, slots=True)
class Refusal:
    """One part of a query that can't be maintained exactly: where it is, why, and what to write instead."""

    clause: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.clause}: {self.reason}; {self.remedy}"


class Refused(ConfigurationError):
    """A query that views can't maintain. ``refusals`` are all reasons that were found, in the order of the query."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        super().__init__("the query can't be kept up to date exactly", problems=[str(refusal) for refusal in refusals])
        self.refusals = tuple(refusals)


class EvaluationError(LockstepError):
    """The query fails for a row of the source; PostgreSQL's own may fail as well. The message has no value in it."""

    reason: str
    """What fails, in one phrase."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the view's query fails for a row of its tables: {reason}",
            hint="nothing of this step was kept. Change the row in the source, and start the job again; or make the"
            " query take such rows (`case when`, a wider type), and run `lockstep rebuild` for the view",
        )
        self.reason = reason


class FanOutExceeded(LockstepError):
    """A step would change more rows than its limit. Nothing of it is stored."""
