"""The archive that executors get against the code that runs here."""

import ast
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest

from cdc.model.errors import ConfigurationError
from jobs.spark.shipped_code import PACKAGES, ROOT, check_archive, source_files
from lockstep.package import NOT_ON_EXECUTORS

ON_THE_DRIVER = {("sinks/warehouse/bookkeeping.py", "migrations.warehouse")}
"""Imports of what executors don't have, in functions that the driver alone calls."""

CODE = {"cdc/__init__.py": "", "jobs/spark/worker_daemon.py": "x = 1", "sinks/contract.py": "y = 2"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with our packages' names, and something that isn't shipped."""
    for name, text in {**CODE, "lockstep/cli/main.py": "z = 3", "cdc/__pycache__/x.cpython-311.pyc": ""}.items():
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "root"


def test_what_is_shipped_imports_nothing_of_ours_that_is_not() -> None:
    """Also inside functions: on a cluster such an import fails in the middle of a batch."""
    others = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {*PACKAGES, "extensions"}
    assert {"lockstep", "migrations", "monitor", "snapshot"} <= others
    found = set()
    for name, file in source_files().items():
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                modules = [node.module]
            found |= {(name, module) for module in modules if module.split(".")[0] in others}
            of_extensions = [module for module in modules if module.startswith("extensions.")]
            found |= {(name, module) for module in of_extensions if module.split(".")[2:3] != ["executor"]}
    assert found == ON_THE_DRIVER


def archive(path: Path, content: Mapping[str, str]) -> Path:
    with ZipFile(path, "w") as made:
        for name, text in content.items():
            made.writestr(name, text)
    return path


def test_an_archive_of_the_same_code_is_accepted_whatever_else_it_holds(root: Path, tmp_path: Path) -> None:
    check_archive(archive(tmp_path / "a.zip", CODE), root)
    check_archive(archive(tmp_path / "b.zip", CODE | {"redis/client.py": "", "cdc/data.sql": ""}), root)


@pytest.mark.parametrize(
    "content",
    [
        CODE | {"jobs/spark/worker_daemon.py": "x = 2"},
        CODE | {"jobs/gone.py": ""},
        {name: text for name, text in CODE.items() if name != "sinks/contract.py"},
    ],
    ids=["changed", "one more", "one less"],
)
def test_an_archive_of_other_code_is_refused(root: Path, tmp_path: Path, content: Mapping[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="other code"):
        check_archive(archive(tmp_path / "a.zip", content), root)


def test_an_archive_that_is_missing_or_broken_is_reported_as_such(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="doesn't exist"):
        check_archive(tmp_path / "none.zip")
    broken = tmp_path / "broken.zip"
    broken.write_bytes(b"no zip")
    with pytest.raises(ConfigurationError, match="can't be read"):
        check_archive(broken)


def test_tasks_of_rows_import_nothing_that_executors_of_a_cluster_lack() -> None:
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in sorted(NOT_ON_EXECUTORS - {"pyspark"}))
    subprocess.run([sys.executable, "-c", f"import sys; {blocked}; import jobs.executor.follow"], check=True)
