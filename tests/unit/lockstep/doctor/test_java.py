"""The Java that Spark needs."""

from pathlib import Path

from cdc.model.finding import Severity
from lockstep.doctor.java import java_findings


def _java(home: Path, version: int) -> Path:
    """A launcher that answers as Java does."""
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}.0.1\"' >&2\n")
    launcher.chmod(0o755)
    return home


def test_a_machine_without_java_is_told_before_apply_fetches_one(tmp_path: Path) -> None:
    (finding,) = java_findings({"PATH": str(tmp_path)}, tmp_path / "none")
    assert finding.severity is Severity.WARNING
    assert "$JAVA_HOME" in finding.fix
    _java(tmp_path / "jvm" / "old", 11)
    assert java_findings({}, tmp_path / "jvm")[0].severity is Severity.WARNING
    home = _java(tmp_path / "jvm" / "seventeen", 17)
    (found,) = java_findings({}, tmp_path / "jvm")
    assert (found.severity, found.what) == (Severity.OK, f"version 17, in {home}")
