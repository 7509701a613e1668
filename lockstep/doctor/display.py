"""The findings for people and as JSON."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from cdc.model.finding import Finding, Severity

_ORDER = (Severity.OK, Severity.WARNING, Severity.ERROR)

_PLURALS = {"table": "tables", "sink": "sinks", "topic": "topics"}
"""Kinds of subjects that may share a finding."""

_SIGNS = {Severity.OK: ("ok", "green"), Severity.WARNING: ("warning", "yellow"), Severity.ERROR: ("error", "red")}


def findings_text(findings: Sequence[Finding]) -> Group:
    """The findings for people: what, why, what to run. A finding of several tables or sinks is shown once. Then the
    counts. The worst come last, where a terminal's cursor is. The fix of a finding that is fine is only in the JSON."""
    lines: list[Text] = []
    for group in sorted(_groups(findings), key=lambda group: _ORDER.index(group[0].severity)):
        finding = group[0]
        word, colour = _SIGNS[finding.severity]
        subject = _subject([finding.subject for finding in group])
        lines.append(Text.assemble((f"{word:8}", colour), _sentence(f"{subject}: {finding.what}")))
        if finding.why:
            lines.append(Text(f"         why: {_sentence(finding.why)}", style="dim"))
        fixes = [finding.fix for finding in group if finding.severity is not Severity.OK]
        statements = list(dict.fromkeys(line for fix in fixes for line in fix.split("\n") if line))
        for number, line in enumerate(statements):
            lines.append(Text(f"         {'run:' if number == 0 else '    '} {line}"))
    return Group(*lines, Text(count_text(findings)))


def count_text(findings: Sequence[Finding]) -> str:
    counts = {
        word: sum(finding.severity is severity for finding in findings)
        for word, severity in (("error", Severity.ERROR), ("warning", Severity.WARNING))
    }
    return ", ".join(f"{count or 'no'} {word}{'' if count == 1 else 's'}" for word, count in counts.items())


def _groups(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Groups of findings that say the same of several tables, or of several sinks, ordered by their first."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for place, finding in enumerate(findings):
        kind = finding.subject.partition(" ")[0]
        said = (kind, finding.severity, finding.what, finding.why) if kind in _PLURALS else place
        groups.setdefault((said,), []).append(finding)
    return list(groups.values())


def _subject(subjects: Sequence[str]) -> str:
    if len(subjects) == 1:
        return subjects[0]
    kind = subjects[0].partition(" ")[0]
    names = ", ".join(subject.removeprefix(f"{kind} ") for subject in subjects)
    return f"{len(subjects)} {_PLURALS[kind]} ({names})"


def _sentence(text: str) -> str:
    """In one line: a line break in somebody's name must not look like another finding."""
    return " ".join(text.split("\n"))


def findings_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [
        {
            "severity": finding.severity.value,
            "subject": finding.subject,
            "what": finding.what,
            "why": finding.why,
            "fix": finding.fix,
        }
        for finding in findings
    ]
