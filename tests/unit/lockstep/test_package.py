"""The archive for Spark's executors: what is in it, and that it is enough."""

import os
import subprocess
import venv
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import pyspark
import pytest

from cdc.model.errors import ConfigurationError
from jobs.spark.shipped_code import check_archive, source_files
from lockstep.cli.main import exit_code
from lockstep.package import package, required
from sinks.sink_kernel import chosen_sink_kernel

# What the executors' Spark brings itself.
SPARK_PYTHON = Path(pyspark.__file__).parent / "python" / "lib"


def test_the_same_code_gives_the_same_bytes(tmp_path: Path) -> None:
    first = package(tmp_path / "first.zip")
    os.utime(next(iter(source_files().values())))
    assert package(tmp_path / "second.zip").read_bytes() == first.read_bytes()


def test_an_older_archive_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    made = package(tmp_path / "made.zip")
    with ZipFile(made, "a") as archive:  # of a version with one module more
        archive.writestr(ZipInfo("cdc/gone.py", (1980, 1, 1, 0, 0, 0)), "")
    check_archive(package(made))
    assert [file.name for file in tmp_path.iterdir()] == ["made.zip"]


def test_an_empty_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "made.zip").touch()
    check_archive(package(tmp_path / "made.zip"))


@pytest.mark.parametrize("kind", ["text", "archive"])
def test_what_is_no_archive_of_ours_is_not_replaced(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "lockstep-package.zip"
    mine.write_text("[pipeline]\n")
    if kind == "archive":
        with ZipFile(mine, "w") as archive:
            archive.writestr("cdc/__init__.py", "")
    before = mine.read_bytes()
    assert exit_code(["package"]) == 2
    assert mine.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [mine.name]


def test_a_place_that_cant_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="can't be written"):
        package(tmp_path / "missing" / "made.zip")


def test_what_is_no_file_is_not_replaced_by_the_archive(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigurationError, match=r"pipe can't be written: that path isn't a file\nrun this in another"):
        package(pipe)
    assert pipe.is_fifo()


@pytest.mark.soak  # it compresses some hundred megabytes
def test_with_its_packages_it_is_all_that_a_bare_python_needs(tmp_path: Path) -> None:
    venv.create(tmp_path / "python", with_pip=False)
    with ZipFile(package(tmp_path / "made.zip", environment=True)) as made:
        made.extractall(tmp_path / "unpacked")
    spark = os.pathsep.join(str(file) for file in SPARK_PYTHON.glob("*.zip"))
    code = """\
import importlib, sys
import jobs.spark.worker_daemon, opensearchpy, redis, psycopg, sqlalchemy.dialects.postgresql.psycopg
assert psycopg.pq.__impl__ == "binary", psycopg.pq.__impl__
from sinks.sink_kernel import chosen_sink_kernel
print(chosen_sink_kernel())
ours = [name for name in sys.modules if name.split(".")[0] in ("cdc", "jobs", "sinks")]
assert all("unpacked" in sys.modules[name].__file__ for name in ours), ours
"""
    done = subprocess.run(
        [str(tmp_path / "python" / "bin" / "python"), "-c", code],
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": os.pathsep.join(("unpacked", spark))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(chosen_sink_kernel())


def test_what_only_the_driver_imports_stays_here() -> None:
    names = {package.name.lower() for package in required(distribution("lockstep"))}
    assert {"pyarrow", "redis", "psycopg-binary", "urllib3"} <= names
    assert not names & {"pyspark", "alembic", "lmdb", "typer", "rich", "lockstep", "pytest", "jgo"}


def requiring(directory: Path, *requirements: str) -> Distribution:
    folder = directory / "some-1.dist-info"
    folder.mkdir()
    lines = ["Name: some", *(f"Requires-Dist: {requirement}" for requirement in requirements)]
    (folder / "METADATA").write_text("\n".join(lines))
    return PathDistribution(folder)


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("orjson>=3", ["orjson"]),
        ("ORJSON (>=3) ; python_version >= '3'", ["orjson"]),
        ("psycopg", ["psycopg", "typing_extensions"]),
        ("psycopg[binary]>=3", ["psycopg", "psycopg-binary", "typing_extensions"]),
        ("orjson; extra == 'fast'", []),
        ("not-installed-here", []),
    ],
)
def test_requirements_are_followed_with_their_extras(tmp_path: Path, requirement: str, expected: list[str]) -> None:
    names = [package.name for package in required(requiring(tmp_path, requirement))]
    assert [name for name in names if name != "tzdata"] == expected
