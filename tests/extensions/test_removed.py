"""The core works without any folder of ``extensions/``, and each extension without the others."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from lockstep.extension import installed
from tests.test_tidy import PACKAGES

ROOT = Path(__file__).parents[2]
NAMES = tuple(extension.name for extension in installed())
CASES = (*((name,) for name in NAMES), NAMES)
Doctor = Future[subprocess.CompletedProcess[str]]
CONFIGURATION = """
[pipeline]
name = "shop"
[source]
dsn = "postgresql://shop@127.0.0.1:1/shop"
tables = ["public.orders"]
[kafka]
bootstrap_servers = "127.0.0.1:1"
[sinks.search]
type = "opensearch"
urls = ["http://127.0.0.1:1"]
"""
_IMPORT_ALL = """
import importlib, pathlib
for package in {packages!r}:
    for path in sorted(pathlib.Path(package).rglob("*.py")):
        if "versions" not in path.parts and path.name not in ("env.py", "__main__.py"):
            importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
"""
_ONLY_THE_COPY = """
import sys
sys.meta_path = [each for each in sys.meta_path if not getattr(each, "__module__", "").startswith("__editable__")]
"""
FILES = "tests/unit/monitor/metrics/test_definitions.py"
"""They hold the page, the rules and the dashboard of all metrics to the definitions."""
QUICK = ("tests/unit/lockstep/doctor", "tests/unit/lockstep/test_config.py")


def copied(target: Path, without: Sequence[str]) -> Path:
    """Lockstep and its tests without these extensions' folders and lines; without all, ``extensions/`` is gone."""
    for name in (*PACKAGES, "tests", "bench"):
        if name != "extensions" or set(without) != set(NAMES):
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "Makefile", "CONTRIBUTING.md", "deploy", "docs"):
        (target / name).symlink_to(ROOT / name)
    (target / "sitecustomize.py").write_text(_ONLY_THE_COPY)
    for name in without:
        shutil.rmtree(target / "extensions" / name, ignore_errors=True)
        shutil.rmtree(target / "tests/extensions" / name, ignore_errors=True)
    listed = target / "extensions/__init__.py"
    if listed.exists():
        lines = listed.read_text(encoding="utf-8").splitlines(keepends=True)
        gone = [f"extensions.{name}." for name in without]
        listed.write_text("".join(line for line in lines if not any(word in line for word in gone)))
    return target


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[tuple[str, ...], tuple[Path, Doctor]]]:
    """By the extensions that it lacks, each copy, and what ``doctor`` is about to say there, which takes a while."""
    with ThreadPoolExecutor(len(CASES)) as pool:
        made = {without: copied(tmp_path_factory.mktemp("copy"), without) for without in CASES}
        for copy in made.values():
            (copy / "lockstep.toml").write_text(CONFIGURATION)
        yield {without: (copy, pool.submit(run, copy, "-m", "lockstep", "doctor")) for without, copy in made.items()}


@pytest.fixture(params=CASES, ids=" ".join)
def without(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Extensions that aren't there."""
    found: tuple[str, ...] = request.param
    return found


@pytest.fixture
def copy(copies: Mapping[tuple[str, ...], tuple[Path, Doctor]], without: tuple[str, ...]) -> Path:
    """Lockstep without them."""
    return copies[without][0]


def run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        # As at each change: a soak's number of examples would say nothing more of what was taken away.
        env={**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "200", "LOCKSTEP_HYPOTHESIS": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_rest_imports(copy: Path) -> None:
    done = run(copy, "-c", _IMPORT_ALL.format(packages=[name for name in PACKAGES if (copy / name).exists()]))
    assert (done.returncode, done.stderr) == (0, "")


def test_help_shows_the_commands_of_the_rest(copy: Path, without: tuple[str, ...]) -> None:
    shown = {line.split()[0] for line in run(copy, "-m", "lockstep", "--help").stdout.splitlines() if line.strip()}
    commands = {
        each.name: {command.__name__ for commands in each.commands.values() for command in commands}
        | {group.name for group in each.groups}
        for each in installed()
    }
    gone = {name for each in without for name in commands[each]}
    left = {name for each in commands if each not in without for name in commands[each]}
    assert shown >= {"init", "doctor", "run", "lag", "verify", *left}
    assert shown & gone == set()


def test_init_says_what_it_says_without_servers(copy: Path) -> None:
    init = run(copy, "-m", "lockstep", "init", "--dsn", "postgresql://shop@127.0.0.1:1/shop", "-c", "new.toml")
    assert init.returncode == 1
    assert init.stderr.startswith("error: PostgreSQL is not available")


def test_doctor_looks_at_all_that_is_left(
    copies: Mapping[tuple[str, ...], tuple[Path, Doctor]], without: tuple[str, ...]
) -> None:
    doctor = copies[without][1].result()
    assert (doctor.returncode, doctor.stderr) == (1, "")
    assert {line.split()[1] for line in doctor.stdout.splitlines() if line.startswith("error")} == {
        "source:",
        "Kafka:",
        "sink",
    }


def test_tests_of_the_core_pass_without_any_extension(tmp_path: Path) -> None:
    copy = copied(tmp_path / "copy", NAMES)
    done = run(copy, "-m", "pytest", "-q", "-m", "unit and not soak", *QUICK)
    assert done.returncode == 0, done.stdout


@pytest.mark.soak
def test_the_core_is_checked_whole_without_any_extension(tmp_path: Path) -> None:
    """As ``make check`` does, but for the docs and what is beside them, which are about all of Lockstep."""
    copy = copied(tmp_path / "copy", NAMES)
    for arguments in (
        ("-m", "ruff", "check", *(name for name in PACKAGES if (copy / name).exists())),
        ("-m", "mypy", *(name for name in PACKAGES if (copy / name).exists())),
        ("-m", "pytest", "-q", "-m", "unit and not soak", f"--ignore={FILES}", "tests/unit", "tests/property"),
    ):
        done = run(copy, *arguments)
        assert done.returncode == 0, done.stdout
