"""What Lockstep weighs. A change that needs more says why in its message and raises the number here, in the open.

One that makes it lighter lowers the number, so that what was won stays. ``python -m tests.test_weight`` prints all.
"""

import ast
import importlib
import json
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from pydantic import BaseModel

from cdc.settings import Settings

ROOT: Final = Path(__file__).parent.parent
CORE: Final = ("cdc", "snapshot", "views", "sinks", "jobs", "monitor", "lockstep", "migrations")
EXTENSIONS: Final = ("extensions",)
BESIDE: Final = ("stack", "bench")

LINES_MAX: Final = 60
PARAMETERS_MAX: Final = 8
ATTRIBUTES_MAX: Final = 15
METHODS_MAX: Final = 20
COMPLEXITY_MAX: Final = 15

BUDGETS: Final = {
    "lines of the core": 87_210,
    "lines of extensions": 14_179,
    "lines of stack and bench": 9_047,
    "lines of tests": 94_301,
    "words of docs": 43_239,
    "settings": 166,
}

A_MODEL: Final = "a section of the configuration: most methods are the check of one setting, which pydantic calls"
EXCEPTIONS: Final[dict[str, dict[str, str]]] = {
    "functions of more than 60 lines": {
        "migrations/warehouse/versions/0005_bookkeeping.py: upgrade": "the definition of tables, one after the other",
    },
    "functions of more than 8 parameters": {},
    "functions more complex than 15": {},
    "classes of more than 15 attributes": {
        "lockstep/dashboard/sampler.py: Sampler": "what one look needs of the last, and who is told of it",
        "extensions/searches/follower.py: Follower": "one loop over claim, queries, log and deliveries",
    },
    "classes of more than 20 methods": {
        "cdc/kafka/topic_admin.py: TopicAdmin": "most are one request to the same brokers",
        "cdc/postgres/settings.py: SourceSettings": A_MODEL,
        "lockstep/config.py: Config": A_MODEL,
        "extensions/searches/follower.py: Follower": "one loop over claim, queries, log and deliveries",
        "sinks/opensearch/indexes.py: OpenSearchIndexes": "most are one request to the same cluster",
        "sinks/opensearch/settings.py: OpenSearchSettings": A_MODEL,
        "sinks/table_settings.py: TableSettings": A_MODEL,
        "sinks/warehouse/settings.py: WarehouseSettings": A_MODEL,
        "views/view.py: View": "steps, building and output change one state, in one transaction of it",
    },
}
"""What is over a limit, and why that is its best shape. Nothing within its limit is listed."""

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
    """Each setting where it is declared. A section is one, and so is each setting in it; ``added`` holds sections."""
    for path in _files(*CORE, *EXTENSIONS):
        if "Settings)" in path.read_text(encoding="utf-8"):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    known = {each for each in _subclasses(Settings) if each.__module__.partition(".")[0] in (*CORE, *EXTENSIONS)}
    return [
        f"{each.__name__}.{name}"
        for each in known
        for name in each.__annotations__
        if name in {*each.model_fields} - {"added"}
    ]


@cache
def _all_nodes() -> list[tuple[str, ast.AST]]:
    return [
        (f"{path.relative_to(ROOT)}: {node.name}", node)
        for path in _files(*CORE, *EXTENSIONS, *BESIDE)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]


def _nodes(*kinds: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    return ((name, node) for name, node in _all_nodes() if isinstance(node, kinds))


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


def _complex() -> list[str]:
    """The functions with too many branches, as ruff counts them."""
    ruff = Path(sysconfig.get_path("scripts")) / "ruff"
    limit = f"lint.mccabe.max-complexity={COMPLEXITY_MAX}"
    command = [
        ruff,
        "check",
        "--select",
        "C901",
        "--config",
        limit,
        "--output-format",
        "json",
        *CORE,
        *EXTENSIONS,
        *BESIDE,
    ]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert answer.returncode in (0, 1), answer.stderr.decode()
    return [
        f"{Path(found['filename']).relative_to(ROOT)}: {found['message'].split('`')[1]}"
        for found in json.loads(answer.stdout)
    ]


WEIGHED: Final[dict[str, Callable[[], list[str]]]] = {
    "lines of the core": lambda: _lines(*CORE),
    "lines of extensions": lambda: _lines(*EXTENSIONS),
    "lines of stack and bench": lambda: _lines(*BESIDE),
    "lines of tests": lambda: _lines("tests"),
    "words of docs": _words,
    "settings": _settings,
}
OVER: Final[dict[str, Callable[[], list[str]]]] = {
    "functions of more than 60 lines": lambda: [
        name for name, function in _functions() if _lines_of(function) > LINES_MAX
    ],
    "functions of more than 8 parameters": lambda: [
        name for name, function in _functions() if _parameters(function) > PARAMETERS_MAX
    ],
    "functions more complex than 15": _complex,
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


@pytest.mark.parametrize("limit", OVER)
def test_what_is_over_a_limit_is_listed_with_a_reason_and_nothing_else_is(limit: str) -> None:
    found = set(OVER[limit]())
    assert sorted(found - EXCEPTIONS[limit].keys()) == [], "find a plainer shape, or list it with a reason"
    assert sorted(EXCEPTIONS[limit].keys() - found) == [], "it is within the limit: take it off the list"


def test_everything_weighed_has_its_limit() -> None:
    assert WEIGHED.keys() == BUDGETS.keys()
    assert OVER.keys() == EXCEPTIONS.keys()


if __name__ == "__main__":
    for what, weigh in WEIGHED.items():
        print(f"{what}: {len(weigh()):,} of {BUDGETS[what]:,}")
    for limit, find in OVER.items():
        over = find()
        print(f"{limit}: {len(over)}", *over, sep="\n  ")
