"""What a check found: how bad it is, what it is, why it matters and what to run."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cdc.model.printable import visible
from cdc.model.table import sql_identifier


class Severity(StrEnum):
    """``ERROR``: capture would fail or lose something. ``WARNING``: it can fail later. ``OK``: nothing to do."""

    ERROR = "error"
    WARNING = "warning"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked: what, why it matters, and what to run or set.

    ``fix`` is SQL that runs unchanged, or, where only people can decide, a sentence. Where it ``hides_changes``, what
    is published meanwhile isn't what the table holds, and the stream doesn't say so.
    """

    severity: Severity
    subject: str
    what: str
    why: str = ""
    fix: str = ""
    hides_changes: bool = False


def ok(subject: str, what: str, why: str = "") -> Finding:
    return Finding(Severity.OK, subject, what, why)


def warning(subject: str, what: str, why: str, fix: str = "") -> Finding:
    return Finding(Severity.WARNING, subject, what, why, fix)


def error(subject: str, what: str, why: str, fix: str, *, hides_changes: bool = False) -> Finding:
    return Finding(Severity.ERROR, subject, what, why, fix, hides_changes)


def one_per_statement(statements: Sequence[str]) -> str:
    """SQL to show: every statement on its own line, so that ``psql`` and people take it as it is."""
    return "\n".join(statements)


def as_owner(statements: Sequence[str], *, owner: str, is_ours: bool) -> str:
    """The same with the role that has to run it, where ours may not."""
    remark = "" if is_ours else f"  -- as {visible(owner)}"
    return one_per_statement([f"{statement}{remark}" for statement in statements])


def quoted_list(names: Sequence[str]) -> str:
    """Column names for SQL: ``"a", "b"``."""
    return ", ".join(map(sql_identifier, names))
