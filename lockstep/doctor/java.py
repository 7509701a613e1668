"""Whether there is a Java for Spark, without which no sink gets anything."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cdc.model.finding import Finding, ok, warning
from stack.java import SYSTEM_JAVAS, Java, installed
from stack.versions import JAVA_MAX, JAVA_MIN

_SUBJECT: Final = "Java"


def java_findings(environment: Mapping[str, str], system: Path = SYSTEM_JAVAS) -> list[Finding]:
    """Starts the Javas that it finds."""
    return [_on_this_machine(next(installed(environment, system), None))]


def _on_this_machine(java: Java | None) -> Finding:
    if java is not None:
        return ok(_SUBJECT, f"version {java.major}, in {java.home}")
    return warning(
        _SUBJECT,
        f"no Java of {JAVA_MIN} to {JAVA_MAX} is installed",
        "`lockstep apply` runs Spark with it, and fetches one as a package when it starts",
        f"install Java {JAVA_MIN} or newer, or name one with $JAVA_HOME",
    )
