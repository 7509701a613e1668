"""What views raise: a query that can't be kept, and data for which PostgreSQL's query would fail as well."""

from collections.abc import Sequence
from dataclasses import dataclass

from cdc.model.errors import ConfigurationError, LockstepError


@dataclass(frozen=True, slots=True)
class Refusal:
    """One thing in a query that can't be kept exactly: where it stands, why, and what to write in its place."""

    clause: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.clause}: {self.reason}; {self.remedy}"


class Refused(ConfigurationError):
    """A query that can't be kept. ``refusals`` has all reasons that were found, in the order of the query."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        super().__init__("the query can't be kept up to date exactly", problems=[str(refusal) for refusal in refusals])
        self.refusals = tuple(refusals)


class EvaluationError(LockstepError):
    """The query fails for a row of the source. PostgreSQL's own query may fail for it as well. It names no value."""

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
    """A step would change more rows than it may. Nothing of it was kept."""
