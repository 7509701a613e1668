"""The image: what its build gets by ``.dockerignore`` is a whole Lockstep. No Docker engine is needed."""

import fnmatch
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_tidy import PACKAGES

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def is_in_context(path: str, rules: list[str]) -> bool:
    """The last rule that fits the path or a directory above it decides."""
    parts = path.split("/")
    above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    is_in = True
    for rule in rules:
        pattern = rule.removeprefix("!").removeprefix("**/")
        names = parts if "**/" in rule else above
        if any(fnmatch.fnmatchcase(name, pattern) for name in names):
            is_in = rule.startswith("!")
    return is_in


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lockstep alone, installed from the build's context as the Dockerfile does."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    context = tmp_path_factory.mktemp("context")
    for name in tracked:
        if is_in_context(name, rules) and (ROOT / name).exists():
            (context / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, context / name)
    target = tmp_path_factory.mktemp("image")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-compile",
         "--no-index", "--target", str(target), str(context)],
        check=True, capture_output=True, env={**os.environ, "LOCKSTEP_KERNEL": "off"}, timeout=600,
    )  # fmt: skip
    return target


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=installed, env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


def test_every_package_is_in_the_image(installed: Path) -> None:
    code = f"import importlib\nfor name in {PACKAGES!r}: print(importlib.import_module(name).__file__)"
    done = run(installed, "-c", code)
    assert done.returncode == 0, done.stderr
    assert [Path(line).parent.parent for line in done.stdout.splitlines()] == [installed] * len(PACKAGES)


def test_the_command_starts_in_the_image(installed: Path) -> None:
    version = run(installed, "-m", "lockstep", "--version")
    assert (version.returncode, version.stderr) == (0, "")
    doctor = run(installed, "-m", "lockstep", "doctor")
    assert doctor.returncode == 2
    assert "Traceback" not in doctor.stderr


def test_the_license_is_in_the_image(installed: Path) -> None:
    [metadata] = installed.glob("lockstep-*.dist-info")
    assert {path.name for path in (metadata / "licenses").rglob("*") if path.is_file()} >= {"LICENSE", "NOTICE"}


def test_the_image_has_runtime_packages_and_the_class_archive() -> None:
    assert re.findall(r"-r (\S+)", DOCKERFILE) == ["requirements-build.lock", "requirements.lock"]
    last_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    assert last_stage.index("openjdk") < last_stage.index("lockstep.class_archive") < last_stage.index("\nUSER")
