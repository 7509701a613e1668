"""Runs a check of something whose server may not answer, which is a finding too."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import psycopg

from cdc.model.errors import LockstepError
from cdc.model.finding import Finding, Severity
from cdc.postgres.connection import connection_error
from lockstep.config import Config

_WAYS: Final = {
    "source": "check source.dsn, and that its server runs",
    "Kafka": "check kafka.bootstrap_servers, and that the brokers run",
}


def was_reached(subject: str, findings: Sequence[Finding]) -> bool:
    """Whether nothing of this subject is an error."""
    return not any(finding.subject == subject and finding.severity is Severity.ERROR for finding in findings)


def guarded(
    subject: str, check: Callable[[Config], Iterable[Finding]], config: Config, *, way: str | None = None
) -> list[Finding]:
    """What a check finds. ``way`` is what to look at if a server doesn't answer and says no more."""
    try:
        return list(check(config))
    except (LockstepError, psycopg.Error) as raised:
        return [unanswered(subject, raised, way)]


def unanswered(subject: str, raised: LockstepError | psycopg.Error, way: str | None = None) -> Finding:
    """The finding that a server doesn't answer, from what the check raised."""
    error = connection_error(raised) if isinstance(raised, psycopg.Error) else raised
    hint = (error.hint if error is raised else None) or way or _WAYS.get(subject, "")
    return Finding(Severity.ERROR, subject, error.message, "nothing works without it", hint)
