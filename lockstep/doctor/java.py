"""Whether there is a Java for Spark, without which no sink gets anything."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cdc.model.finding import Finding, error, ok, warning
from stack.java import SYSTEM_JAVAS, Java, inspect_java, installed
from stack.versions import JAVA_MAX, JAVA_MIN

_SUBJECT: Final = "Java"


def java_findings(
    configured: Path | None, environment: Mapping[str, str], system: Path = SYSTEM_JAVAS
) -> list[Finding]:
    """``configured`` is the home of ``spark.java_home``, None where it isn't set. Starts the Javas that it finds."""
    if configured is None:
        return [_on_this_machine(next(installed(environment, system), None))]
    java = inspect_java(configured) if os.access(configured / "bin" / "java", os.X_OK) else None
    if java is not None and java.major >= JAVA_MIN:
        return [ok(_SUBJECT, f"version {java.major}, in {configured}")]
    what = "has no Java that starts" if java is None else f"has Java {java.major}"
    return [
        error(
            _SUBJECT,
            f"spark.java_home ({configured}) {what}",
            f"`lockstep apply` runs Spark, which needs Java {JAVA_MIN} or newer",
            "correct spark.java_home, or leave it out: then $JAVA_HOME, PATH and the system's Javas are looked at",
        )
    ]


def _on_this_machine(java: Java | None) -> Finding:
    if java is not None:
        return ok(_SUBJECT, f"version {java.major}, in {java.home}")
    return warning(
        _SUBJECT,
        f"no Java of {JAVA_MIN} to {JAVA_MAX} is installed",
        "`lockstep apply` runs Spark with it, and fetches one as a package when it starts",
        f"install Java {JAVA_MIN} or newer, or name one with spark.java_home",
    )
