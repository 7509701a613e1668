"""What a machine can check of the code's order: imports point the right way, names are nouns, locks are portable."""

import ast
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping, Set
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = tuple(pattern.rstrip("*") for pattern in PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"])
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
LOCKS = sorted(path for path in ROOT.rglob("*.lock") if ".venv" not in path.parts and ".lockstep" not in path.parts)

BANNED = frozenset(
    {"utils", "util", "common", "helpers", "helper", "base", "manager", "managers", "misc", "core", "types"}
)
"""Names that say nothing about what is inside."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_imports_keep_their_contracts() -> None:
    # In a process of its own: it configures logging, which would silence every logger that other tests look at.
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_every_package_is_under_a_contract() -> None:
    assert set(PYPROJECT["tool"]["importlinter"]["root_packages"]) >= set(PACKAGES) - {"migrations"}


def test_the_order_of_the_packages_is_a_contract() -> None:
    contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
    layers = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    assert ["extensions", "lockstep", "monitor", "jobs", "sinks | snapshot | views", "cdc"] in layers


@pytest.mark.parametrize("package", ["cdc", "jobs"])
def test_the_order_inside_a_package_is_a_contract_over_all_of_its_parts(package: str) -> None:
    contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
    assert [contract["exhaustive"] for contract in contracts if contract.get("containers") == [package]] == [True]


def test_one_package_knows_the_bytes_of_an_event() -> None:
    members = (b'"op":', b'"tag":', b'"before":', b'"after":', b'"source":')
    knows = {
        name_of(path)
        for path in MODULES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, bytes)
        and any(map(node.value.__contains__, members))
    }
    assert knows == {"cdc/event_format/decode.py", "cdc/event_format/encode.py", "cdc/event_format/messages.py"}


def test_no_contract_makes_an_exception() -> None:
    contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
    assert [contract["name"] for contract in contracts if "ignore_imports" in contract] == []


def dotted_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_within(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    return tuple(node for node in ast.walk(parsed(path)) if isinstance(node, ast.Import | ast.ImportFrom))


def imports_of(path: Path, known: Set[str]) -> set[str]:
    """Our modules that a module imports, at its top or in a function."""
    names_imported = set()
    for node in imports_within(path):
        if isinstance(node, ast.Import):
            names_imported |= {alias.name for alias in node.names}
        else:
            base = node.module or ""
            names = {f"{base}.{alias.name}" for alias in node.names}
            names_imported |= (names & known) or {base}
    return names_imported & known


KNOW_A_KIND: Mapping[str, str] = {
    "extensions.demo": "its pages read Redis and OpenSearch, as an application does",
    "extensions.searches": "standing searches are OpenSearch's",
    "extensions.streams.jobs.sql_plans": "results of stream queries are in a warehouse",
    "migrations.warehouse": "they are the warehouse's",
}
"""Modules and packages outside ``sinks`` that may import a kind of sink, each with its reason."""


def test_no_other_module_knows_a_kind_of_sink() -> None:
    kinds = [f"sinks.{path.parent.name}." for path in (ROOT / "sinks").glob("*/kind.py")]
    known = {dotted_name(path) for path in MODULES}
    importing = {
        name
        for name, path in ((dotted_name(path), path) for path in MODULES)
        if not name.startswith("sinks.") and any(each.startswith(tuple(kinds)) for each in imports_of(path, known))
    }
    at_home = {each for each in KNOW_A_KIND if any(f"{name}.".startswith(f"{each}.") for name in importing)}
    assert kinds
    assert sorted(name for name in importing if not any(f"{name}.".startswith(f"{each}.") for each in at_home)) == []
    assert sorted(set(KNOW_A_KIND) - at_home) == []


def third_party_imports(path: Path) -> set[str]:
    """The first part of each module that one imports, at its top or in a function."""
    found: set[str] = set()
    for node in imports_within(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif node.module:
            found.add(node.module.partition(".")[0])
    return found


def cycles(imports: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The groups of modules that import each other, directly or through others."""

    def reach(module: str) -> set[str]:
        seen: set[str] = set()
        waiting = [*imports[module]]
        while waiting:
            other = waiting.pop()
            if other not in seen:
                seen.add(other)
                waiting += imports[other]
        return seen

    reached = {module: reach(module) for module in imports}
    groups = {
        tuple(sorted(other for other in reached[module] if module in reached[other]))
        for module in imports
        if module in reached[module]
    }
    return sorted(map(list, groups))


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = {dotted_name(path) for path in MODULES}
    circles = cycles({dotted_name(path): imports_of(path, known) for path in MODULES})
    assert circles == []


def test_a_circle_of_imports_is_found() -> None:
    circle = {"a": ["b"], "b": ["c"], "c": ["b", "d"], "d": [], "e": ["e"]}
    assert cycles(circle) == [["b", "c"], ["e"]]


def test_every_module_says_what_it_is() -> None:
    assert [name_of(path) for path in MODULES if not ast.get_docstring(parsed(path))] == []


@pytest.mark.parametrize("path", [path for path in MODULES if path.name == "__init__.py"], ids=name_of)
def test_a_package_re_exports_nothing(path: Path) -> None:
    names = [
        alias.asname or alias.name
        for node in parsed(path).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    code = path.read_text(encoding="utf-8")
    unused = [name for name in names if len(re.findall(rf"\b{name}\b", code)) == 1]
    assert ("__all__" in code, unused) == (False, [])


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [name_of(path) for path in MODULES if BANNED & {path.stem, path.parent.name}] == []


def test_the_compiled_code_stays_small() -> None:
    sources = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.pyx"))
    assert [name_of(path) for path in sources] == ["cdc/event_format/_kernel.pyx", "sinks/_kernel.pyx"]
    for path, lines_max in zip(sources, (340, 390), strict=True):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= lines_max
        assert max(map(len, lines)) <= 120


def test_there_are_lock_files() -> None:
    assert {"requirements.lock", "requirements-dev.lock", "requirements-build.lock"} <= {path.name for path in LOCKS}


@pytest.mark.parametrize("path", LOCKS, ids=name_of)
def test_a_lock_file_holds_no_addresses(path: Path) -> None:
    assert (
        re.findall(r"\w+://\S+|--(?:extra-)?index-url.*|--find-links.*|--trusted-host.*", path.read_text("utf-8")) == []
    )


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock", "requirements-build.lock"])
def test_every_locked_package_is_pinned_and_hashed(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    entries = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert [line for line in entries if "==" not in line or "--hash=sha256:" not in line] == []


_WAITS = re.compile(r"_?\w*(TIMEOUT|PATIENCE|GIVE_UP|LET_GO|OBEYED|SILEN|STUCK|STOP|EXIT|ANSWER|WAIT)\w*_S")


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_long_wait_is_among_all_others_with_its_reason(path: Path) -> None:
    """Except what ``lag`` calls stalled, which is no wait, and how rarely something is tried again."""
    if path in (ROOT / "cdc/model/timeouts.py", ROOT / "monitor/stalls.py"):
        return
    for node in parsed(path).body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, int | float):
            is_wait = _WAITS.fullmatch(target.id) and not target.id.endswith("WAIT_MAX_S")
            assert not (is_wait and value.value >= 30), f"{target.id}: put it into cdc/model/timeouts.py"


TESTS = sorted((ROOT / "tests").rglob("*.py"))
_PRIVATE = re.compile(r"_[A-Za-z]\w*")

OF_LIBRARIES: Mapping[str, str] = {
    "_replace": "a named tuple's, which is documented",
    "_exit": "of os, which is documented",
    "_jvm": "PySpark has no other way to Java",
    "_jsc": "the same",
    "_jbroadcast": "the same",
    "_gateway": "the same",
    "_currentWatermarkMs": "PySpark's tester of states shows no time and no timers",
    "_eventTimeExtractor": "the same",
    "_handleExpiredTimers": "the same",
    "_timers": "the same",
    "_instantiatedSession": "nothing else says which session PySpark takes for the only one",
}
"""Libraries' names that begin like private ones, with the reason why tests use them. KafkaError's codes do, too."""


def _own_members(code: ast.Module) -> set[str]:
    """The private names that a test module's classes give their objects."""
    names = {
        node.attr
        for node in ast.walk(code)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("self", "cls")
    }
    for each in [part for node in ast.walk(code) if isinstance(node, ast.ClassDef) for part in node.body]:
        match each:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


_BY_NAME = ("getattr", "setattr", "delattr", "hasattr", "__getattribute__", "__setattr__", "patch", "object")
"""Functions that take the name of what they look up or replace."""


def reached_into(code: ast.Module) -> Iterator[str]:
    """The private names that a test module uses and doesn't define, and objects made without a constructor. Includes
    those looked up or replaced by name: ``setattr(module, "_name", ...)``."""
    own = _own_members(code)
    for node in ast.walk(code):
        match node:
            case ast.Attribute(value=ast.Name(id="KafkaError")):
                continue
            case ast.Attribute(attr=name):
                found = [name]
            case ast.ImportFrom(module=str(module), names=aliases) if module.partition(".")[0] in PACKAGES:
                found = [*module.split("."), *(alias.name for alias in aliases)]
            case ast.Import(names=aliases):
                found = [part for alias in aliases for part in alias.name.split(".")]
            case ast.Subscript(value=ast.Attribute(attr="__dict__"), slice=ast.Constant(value=str(name))):
                found = [name]
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called)) if called in _BY_NAME:
                values = [*node.args, *(keyword.value for keyword in node.keywords)]
                found = [
                    each.value.rpartition(".")[2]
                    for each in values
                    if isinstance(each, ast.Constant) and isinstance(each.value, str)
                ]
            case _:
                continue
        for name in found:
            if name == "__new__" or (_PRIVATE.fullmatch(name) and name not in {*own, *OF_LIBRARIES}):
                yield f"line {node.lineno}: {name}"


def test_a_test_reaches_into_nothing_private() -> None:
    """It calls what users call. Otherwise it fixes how something is done, not what is promised."""
    found = {path: list(reached_into(parsed(path))) for path in TESTS}
    assert {name_of(path): lines for path, lines in found.items() if lines} == {}


def replaced_by_name() -> Iterator[tuple[str, str]]:
    """Each test file with the dotted name of something of ours that it replaces."""
    for path in TESTS:
        for node in ast.walk(parsed(path)):
            match node:
                case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str(name)), *_]):
                    if name.partition(".")[0] in PACKAGES:
                        yield name_of(path), name


def test_names_that_tests_replace_exist() -> None:
    """Otherwise a test that runs in a soak alone fails long after the name was changed."""

    def is_there(name: str) -> bool:
        owner, _, member = name.rpartition(".")
        try:
            return hasattr(pkgutil.resolve_name(owner), member)
        except (ImportError, AttributeError):
            return False

    assert [each for each in replaced_by_name() if not is_there(each[1])] == []


def test_what_reaches_into_something_private_is_found() -> None:
    code = """
from jobs.query.query import _limit, Query
import jobs._hidden
class Own:
    _shown: int
    def __init__(self): self._mine = 1
own, _local = Own(), 1
own._mine, own._shown, Query()._plan, Query.__new__(Query), query._local
monkeypatch.setattr("jobs.query.query._TICK_S", 0)
monkeypatch.setattr(query, "_run", own)
monkeypatch.setattr(target=query, name="_named", value=0)
getattr(query, "_got"), setattr(query, "_put", 1), query.__dict__["_held"]
"""
    found = [line.rpartition(" ")[2] for line in reached_into(ast.parse(code))]
    assert sorted(found) == sorted(
        ["_limit", "_hidden", "_plan", "__new__", "_local", "_TICK_S", "_run", "_named", "_got", "_put", "_held"]
    )
