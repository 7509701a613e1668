"""Skips loading files without a test of a part: ``pytest -p tests.part_files --part busy``.

Loading all files takes nine seconds of processor time, and a run of all tests has seven processes that load them. A
file names its tests' marks, so its text says enough.
"""

from pathlib import Path

import pytest

PARTS = ("alone", "busy", "unit", "others")

_TESTS = Path(__file__).parent
UNIT = (
    *(_TESTS / name for name in ("unit", "property", "docs", "test_tidy.py", "test_weight.py")),
    *_TESTS.glob("extensions/*/unit"),
    *_TESTS.glob("extensions/*/property"),
)
"""Tests there are ``unit`` unless a mark says something else."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """``others`` has the tests that are in none of the other parts."""
    parser.addoption("--part", choices=PARTS, required=True, help="load the files that may have tests of this part")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    return None if may_have(config.getoption("--part"), collection_path, text) else True


def may_have(part: str, path: Path, text: str) -> bool:
    """Whether a file with this text can have tests of this part. Pure."""
    is_unit = any(map(path.is_relative_to, UNIT))
    if part == "unit":
        return is_unit or "mark.unit" in text
    if part == "others":
        return not is_unit or any(f"mark.{mark}" in text for mark in ("live", "busy", "alone"))
    return f"mark.{part}" in text
