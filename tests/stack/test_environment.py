"""What ``make setup`` installs, what only development needs, and how it reports."""

import re
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stack.environment import DEV_LOCK, LOCK, ROOT, StepFailed, entries, pip_progress, run
from tests.test_tidy import MODULES, third_party_imports

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def names(lock: Path) -> set[str]:
    return {name.partition("==")[0] for name in entries(lock)}


def closure(requirements: list[str]) -> set[str]:
    """What the requirements need on this machine, and what that needs."""
    found: set[str] = set()
    waiting = [(Requirement(text), {""}) for text in requirements]
    looked_at = set()
    while waiting:
        requirement, extras = waiting.pop()
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras):
            continue
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        found.add(key[0])
        if key not in looked_at:
            looked_at.add(key)
            below = distribution(requirement.name).requires or ()
            waiting += [(Requirement(text), {"", *requirement.extras}) for text in below]
    return found


def test_the_locks_hold_what_their_part_of_the_project_needs() -> None:
    extras = PROJECT["optional-dependencies"]
    runtime = closure([*PROJECT["dependencies"], *extras["local"]])
    assert runtime - names(LOCK) == set()
    assert closure(extras["dev"]) - runtime - names(DEV_LOCK) == set()
    assert names(DEV_LOCK) & (names(LOCK) | runtime) == set()


def test_no_module_that_users_run_imports_a_package_of_development() -> None:
    packages = packages_distributions()
    ours = {package for package, owners in packages.items() if "lockstep" in owners}
    imported = {name for path in MODULES for name in third_party_imports(path)} - ours - sys.stdlib_module_names
    owners = {canonicalize_name(owner) for name in imported for owner in packages.get(name, ())}
    assert "pyspark" in owners
    assert owners - {"lockstep"} - names(LOCK) == set()


@pytest.mark.parametrize("lock", [LOCK, DEV_LOCK], ids=lambda path: path.stem)
def test_a_lock_is_the_sum_of_its_entries(lock: Path) -> None:
    assert "".join(entries(lock).values()) == lock.read_text(encoding="utf-8")


PIP = """\
Collecting alembic==1.20.1 (from -r locked.txt (line 1))
  Downloading alembic-1.20.1-py3-none-any.whl (243 kB)
Collecting deltalake==1.6.6 (from -r locked.txt (line 5))
  Using cached deltalake-1.6.6-cp39-abi3-manylinux2014_x86_64.whl (60.5 MB)
Building wheels for collected packages: pyspark
Installing collected packages: alembic, deltalake
Successfully installed alembic-1.20.1 deltalake-1.6.6
"""


def test_the_output_of_pip_becomes_a_line_for_what_is_large_and_for_each_stage() -> None:
    assert list(pip_progress(iter(PIP.splitlines()), 2)) == ["2 of 2, 61 MB", "building pyspark", "installing 2"]


def test_many_small_packages_are_reported_together() -> None:
    lines = (f"  Downloading small{n}-1-py3-none-any.whl (100 kB)" for n in range(45))
    assert list(pip_progress(lines, 45)) == ["15 of 45, 2 MB", "30 of 45, 3 MB", "45 of 45, 4 MB"]


def test_a_step_that_fails_says_why() -> None:
    with pytest.raises(StepFailed, match="no such package"):
        run([sys.executable, "-c", "print('no such package'); raise SystemExit(1)"], list)


def test_only_what_checks_and_tests_installs_the_packages_of_development() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    needs = dict(re.findall(r"^([a-z]+): (setup\S*|lint)$", makefile, re.MULTILINE))
    assert {target for target, needed in needs.items() if needed == "setup"} == {"demo", "wheel", "sbom"}
    assert {needs[target] for target in ("lint", "soak", "conformance", "bench")} == {"setup-dev"}
