"""What holds an invariant runs at each change."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INVARIANTS = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("\n## Invariants\n")[1].split("\n## ")[0]
HELD = re.findall(r"\* `(tests/[\w/]+\.py)`(?::\s+`(\w+)`)?", INVARIANTS)


def test_every_invariant_names_what_holds_it() -> None:
    numbered = re.split(r"^\d+\. ", INVARIANTS, flags=re.MULTILINE)[1:]
    assert numbered
    assert [text for text in numbered if "`tests/" not in text] == []


@pytest.mark.parametrize(("path", "name"), HELD)
def test_what_holds_an_invariant_is_not_left_to_soak(path: str, name: str) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    marks = [
        node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    assert not any("soak" in ast.unparse(mark) for mark in marks)
    tests = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if name:
        assert "pytest.mark.soak" not in map(ast.unparse, tests[name].decorator_list)
