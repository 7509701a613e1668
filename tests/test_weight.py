"""What Lockstep weighs. A change that needs more says why in its message and raises the number here, in the open.

One that makes it lighter lowers the number, so that what was won stays. ``python -m tests.test_weight`` prints all.
"""

import ast
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from pydantic import BaseModel

from cdc.settings import Settings

ROOT: Final = Path(__file__).parent.parent
CORE: Final = ("cdc", "snapshot", "views", "sinks", "jobs", "monitor", "lockstep", "migrations")
BESIDE: Final = ("stack", "bench")

LINES_MAX: Final = 60
PARAMETERS_MAX: Final = 8
ATTRIBUTES_MAX: Final = 15
METHODS_MAX: Final = 20

BUDGETS: Final = {
    "lines of the core": 103_285,
    "lines of stack and bench": 10_000,
    "lines of tests": 99_585,
    "words of docs": 43_900,
    "settings": 216,
    "functions of more than 60 lines": 34,
    "functions of more than 8 parameters": 18,
    "classes of more than 15 attributes": 24,
    "classes of more than 20 methods": 36,
}

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _files(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def _lines(*packages: str) -> list[str]:
    return [line for path in _files(*packages) for line in path.read_text(encoding="utf-8").splitlines()]


def _words() -> list[str]:
    return [word for path in sorted((ROOT / "docs").rglob("*.md")) for word in path.read_text(encoding="utf-8").split()]


def _subclasses(known: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in known.__subclasses__():
        yield each
        yield from _subclasses(each)


def _settings() -> list[str]:
    """Each setting where it is declared; a section is one, and so is each setting in it."""
    for path in _files(*CORE):
        if "Settings)" in path.read_text(encoding="utf-8"):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    known = {each for each in _subclasses(Settings) if each.__module__.partition(".")[0] in CORE}
    return [f"{each.__name__}.{name}" for each in known for name in each.__annotations__ if name in each.model_fields]


def _nodes(*kinds: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    for path in _files(*CORE, *BESIDE):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds):
                yield f"{path.relative_to(ROOT)}: {getattr(node, 'name', '')}", node


def _functions() -> Iterator[tuple[str, _Function]]:
    for name, node in _nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        assert isinstance(node, _Function)
        yield name, node


def _lines_of(function: _Function) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def _parameters(function: _Function) -> int:
    names = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len([name for name in names if name.arg not in ("self", "cls")])


def _methods(of: ast.AST) -> list[_Function]:
    return [node for node in ast.iter_child_nodes(of) if isinstance(node, _Function)]


def _attributes(of: ast.AST) -> set[str]:
    return {
        node.attr
        for method in _methods(of)
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


WEIGHED: Final[dict[str, Callable[[], list[str]]]] = {
    "lines of the core": lambda: _lines(*CORE),
    "lines of stack and bench": lambda: _lines(*BESIDE),
    "lines of tests": lambda: _lines("tests"),
    "words of docs": _words,
    "settings": _settings,
    "functions of more than 60 lines": lambda: [
        name for name, function in _functions() if _lines_of(function) > LINES_MAX
    ],
    "functions of more than 8 parameters": lambda: [
        name for name, function in _functions() if _parameters(function) > PARAMETERS_MAX
    ],
    "classes of more than 15 attributes": lambda: [
        name for name, node in _nodes(ast.ClassDef) if len(_attributes(node)) > ATTRIBUTES_MAX
    ],
    "classes of more than 20 methods": lambda: [
        name for name, node in _nodes(ast.ClassDef) if len(_methods(node)) > METHODS_MAX
    ],
}


@pytest.mark.parametrize("what", BUDGETS)
def test_it_weighs_no_more_than_it_may(what: str) -> None:
    found = WEIGHED[what]()
    listed = found if len(found) < 100 else []
    assert len(found) <= BUDGETS[what], "\n".join([f"{what}: take something away, or raise the budget", *listed])


def test_every_budget_is_weighed() -> None:
    assert WEIGHED.keys() == BUDGETS.keys()


if __name__ == "__main__":
    for what, weigh in WEIGHED.items():
        print(f"{what}: {len(weigh()):,} of {BUDGETS[what]:,}")
