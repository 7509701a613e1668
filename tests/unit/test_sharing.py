"""Two processes that share files of tests: each test runs once, in one of them."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
FILES = [f"test_{letter}.py" for letter in "abcdef"]
TESTS = """
import time
import pytest

@pytest.fixture(scope="module")
def opened():
    opened = [1]
    yield opened
    opened.clear()

def test_first(opened):
    time.sleep(0.05)
    assert opened

def test_last(opened):
    assert opened
"""


def _start(directory: Path, name: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.sharing", f"--rootdir={directory}"]
    paths = [f"--claims={directory / 'claims'}", f"--junitxml={directory / name}", str(directory / "tests")]
    # Without plugins that these tests don't need, which take seconds to load.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.Popen([*command, *paths, *options], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


def _ran(report: Path) -> list[tuple[str, str]]:
    cases = ElementTree.parse(report).iter("testcase")
    return [(case.attrib["classname"].rpartition(".")[2], case.attrib["name"]) for case in cases]


def test_each_test_runs_in_one_of_two_processes(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    for number, name in enumerate(FILES):
        folder = tmp_path / "tests" / f"folder{number // 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(TESTS)
    processes = [_start(tmp_path, "forwards.xml"), _start(tmp_path, "backwards.xml", "--backwards")]
    assert [process.wait() for process in processes] == [0, 0]
    forwards, backwards = _ran(tmp_path / "forwards.xml"), _ran(tmp_path / "backwards.xml")
    all_of_them = [(Path(name).stem, test) for name in FILES for test in ("test_first", "test_last")]
    assert sorted(forwards + backwards) == all_of_them
    # Each begins at its end, and a file's tests stay in order.
    assert forwards == all_of_them[: len(forwards)]
    assert [test for _, test in backwards] == len(backwards) // 2 * ["test_first", "test_last"]


def test_a_failure_is_reported_and_the_other_files_run(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_bad.py").write_text("def test_bad():\n    raise AssertionError\n")
    (tmp_path / "tests" / "test_good.py").write_text("def test_good():\n    pass\n")
    assert _start(tmp_path, "all.xml").wait() == 1
    assert _ran(tmp_path / "all.xml") == [("test_bad", "test_bad"), ("test_good", "test_good")]
    assert _start(tmp_path, "left.xml").wait() == 0, "nothing is left"
    assert _ran(tmp_path / "left.xml") == []
