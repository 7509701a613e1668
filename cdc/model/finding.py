"""What a check found: how severe it is, what it is, why it matters and what to run."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cdc.model.printable import visible
from cdc.model.table import sql_identifier


class Severity(StrEnum):
    """``ERROR``: capture would fail or lose changes. ``WARNING``: it can fail later. ``OK``: nothing to do."""

    ERROR = "error"
    WARNING = "warning"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing: what it is, why it matters, and what to run or set. ``fix`` is SQL that runs unchanged or, if
    only people can decide, a sentence. ``hides_changes``: until this is fixed, the topic differs from the table, and
    the stream doesn't show it."""

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
    """SQL to show, one statement per line, so that people and ``psql`` can use it unchanged."""
    return "\n".join(statements)


def as_owner(statements: Sequence[str], *, owner: str, is_ours: bool) -> str:
    """``one_per_statement``, with the role that must run the SQL added if ours may not."""
    remark = "" if is_ours else f"  -- as {visible(owner)}"
    return one_per_statement([f"{statement}{remark}" for statement in statements])


def quoted_list(names: Sequence[str]) -> str:
    """Column names for SQL: ``"a", "b"``."""
    return ", ".join(map(sql_identifier, names))
