"""The findings for people and as JSON."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from cdc.postgres.preflight.finding import Finding, Severity

_SIGNS = {Severity.OK: ("ok", "green"), Severity.WARNING: ("warning", "yellow"), Severity.ERROR: ("error", "red")}


def findings_text(findings: Sequence[Finding]) -> Group:
    """The findings for people: what, why, what to run."""
    lines: list[Text] = []
    for finding in findings:
        word, colour = _SIGNS[finding.severity]
        lines.append(Text.assemble((f"{word:8}", colour), _sentence(f"{finding.subject}: {finding.what}")))
        if finding.why:
            lines.append(Text(f"         why: {_sentence(finding.why)}", style="dim"))
        if finding.fix:
            first, *more = finding.fix.split("\n")
            lines.append(Text(f"         run: {first}"))
            lines += [Text(f"              {line}") for line in more]
    return Group(*lines)


def _sentence(text: str) -> str:
    """In one line: where somebody's name has more, none of them may pass for another finding."""
    return " ".join(text.split("\n"))


def findings_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """One object per finding: severity, subject, what, why, fix."""
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
