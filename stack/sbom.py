"""Lists what Lockstep is built from, by its lock files, as CycloneDX JSON: `python -m stack.sbom`."""

import json
import sys
import tomllib
from typing import Any

from stack import java
from stack.environment import LOCK, ROOT, entries
from stack.jars import Jar, read_lock

JAR_SETS = ("kafka", "opensearch2", "opensearch3", "postgres", "spark")
"""The sets that `lockstep up` and the jobs may run; others are only for tests and benchmarks."""


def components() -> list[dict[str, Any]]:
    """Name, version and package URL of each locked package and jar, and each jar's hash.

    Packages have no hash here, since the lock has hashes of all their files for all machines.
    """
    found = [_package(pin) for file in (LOCK, java.JDK_LOCK) for pin in entries(file)]
    jars = {jar.coordinates: _jar(jar) for jar in read_lock() if jar.set_name.partition("-")[0] in JAR_SETS}
    return found + list(jars.values())


def _package(pin: str) -> dict[str, Any]:
    name, _, version = pin.partition("==")
    return {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}


def _jar(jar: Jar) -> dict[str, Any]:
    wanted = [f"{key}={value}" for key, value in (("classifier", jar.classifier), ("type", jar.extension)) if value]
    return {
        "type": "library",
        "group": jar.group,
        "name": jar.artifact,
        "version": jar.version,
        "purl": f"pkg:maven/{jar.group}/{jar.artifact}@{jar.version}?{'&'.join(wanted)}",
        "hashes": [{"alg": "SHA-256", "content": jar.sha256}],
    }


def bill_of_materials() -> dict[str, Any]:
    """The document. The same lock files give the same bytes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    itself = {"type": "application", "name": project["name"], "version": project["version"]}
    itself["licenses"] = [{"license": {"id": project["license"]}}]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": itself},
        "components": components(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(bill_of_materials(), indent=2) + "\n")
