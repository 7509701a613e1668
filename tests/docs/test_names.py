"""What the pages name exists: commands, options, settings, paths, modules, variables, tests, messages."""

import ast
import importlib.util
import re
import shlex
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel, SecretStr

from cdc.capture.settings import CaptureSettings
from cdc.kafka.settings import KafkaSettings, TopicSettings
from cdc.model.later import named
from cdc.settings import Settings, Tls
from cdc.webhook import WebhookSettings
from extensions.alerts.settings import AlertSettings
from extensions.streams.sections import StreamQuerySection
from extensions.streams.settings import PatternSettings, StepSettings, StreamSettings
from jobs.settings import SparkSettings
from lockstep.cli.main import app
from lockstep.config import Config
from lockstep.dashboard_settings import DashboardSettings
from lockstep.extension import installed
from monitor.condition_settings import ConditionSettings
from monitor.conditions import NAMES
from monitor.metrics.settings import MetricsSettings
from sinks.access import Login
from sinks.delta.settings import DeltaSettings
from sinks.opensearch.settings import OpenSearchSettings
from sinks.redis.settings import RedisSettings
from sinks.table_settings import TableSettings
from sinks.view_settings import ViewSettings
from sinks.warehouse.settings import WarehouseSettings
from tests.docs.generated import DOCS, ROOT
from tests.docs.pages import PAGES, blocks, commands, name_of, spans, tables, text_of

PACKAGES = (
    "cdc",
    "jobs",
    "sinks",
    "snapshot",
    "views",
    "monitor",
    "lockstep",
    "extensions",
    "stack",
    "migrations",
    "bench",
    "tests",
    "docs",
)
GENERATED = {"bench/results"}
"""Paths that exist after the command that makes them."""

SETTINGS: dict[str, Sequence[type[BaseModel]]] = {
    "docs/alerts.md": (ConditionSettings, AlertSettings),
    "docs/dashboard.md": (DashboardSettings,),
    "docs/events.md": (TopicSettings,),
    "docs/spark-cluster.md": (SparkSettings,),
    "docs/projections.md": (TableSettings,),
    "docs/metrics.md": (MetricsSettings,),
    "docs/stream-queries.md": (StreamSettings, StreamQuerySection),
    "docs/stream-webhooks.md": (WebhookSettings,),
    "docs/patterns.md": (PatternSettings, StepSettings),
    "docs/sinks/README.md": (Tls,),
    "docs/sinks/opensearch.md": (OpenSearchSettings,),
    "docs/sinks/redis.md": (RedisSettings,),
    "docs/sinks/warehouse.md": (WarehouseSettings,),
    "docs/sinks/duckdb.md": (WarehouseSettings,),
    "docs/sinks/delta.md": (DeltaSettings,),
}
"""Whose settings a page's tables are about."""

COMPLETE = {
    "docs/alerts.md": ConditionSettings,
    "docs/dashboard.md": DashboardSettings,
    "docs/events.md": TopicSettings,
    "docs/spark-cluster.md": SparkSettings,
    "docs/stream-queries.md": StreamSettings,
    "docs/sinks/opensearch.md": OpenSearchSettings,
    "docs/sinks/redis.md": RedisSettings,
    "docs/sinks/warehouse.md": WarehouseSettings,
    "docs/sinks/delta.md": DeltaSettings,
}
"""Pages that have every setting."""

NOT_OURS = {"spark.archives", "spark.jars", "spark.authenticate", "source.schema_id"}
"""Spark's own settings, and a field of an event, which look like our settings."""

SECTIONS: dict[str, type[BaseModel]] = {
    **{
        name: model
        for each in installed()
        for name, address in each.sections.items()
        if issubclass(model := named(address), Settings)
    },
    "pipeline": Config.model_fields["pipeline"].annotation,  # type: ignore[dict-item]  # pydantic's annotation is any type
    "source": Config.model_fields["source"].annotation,  # type: ignore[dict-item]
    "kafka": KafkaSettings,
    "capture": CaptureSettings,
    "spark": SparkSettings,
    "metrics": MetricsSettings,
    "conditions": ConditionSettings,
    "dashboard": DashboardSettings,
    "login": Login,
    "tls": Tls,
}


# -- commands and options


@cache
def whole_command() -> Any:
    """All of ``lockstep``. To make it takes 10 ms, and each line of each page asks twice."""
    return typer.main.get_command(app)


def command(words: Sequence[str]) -> tuple[Any, Sequence[str]]:
    """The command that these words lead to, and the words after it."""
    subcommand = whole_command()
    rest = list(words)
    while rest and rest[0] in getattr(subcommand, "commands", {}):
        subcommand = subcommand.commands[rest.pop(0)]
    return subcommand, rest


def options_of(subcommand: Any) -> set[str]:
    return {name for parameter in subcommand.params for name in parameter.opts} | {"--help", "-h"}


def all_options(subcommand: Any) -> set[str]:
    inner = getattr(subcommand, "commands", {}).values()
    return options_of(subcommand).union(*(all_options(member) for member in inner))


def wrong_words(line: str) -> list[str]:
    """What of a ``lockstep ...`` line the command doesn't know."""
    words = shlex.split(line.replace("[", "").replace("]", ""))
    subcommand, rest = command(words[1:])
    if hasattr(subcommand, "commands") and rest and not rest[0].startswith("-") and rest[0] != "...":
        return [rest[0]]
    given = [word.partition("=")[0] for word in rest if word.startswith("-") and len(word) > 1]
    known = options_of(subcommand) | options_of(command(())[0])
    return [option for option in given if option not in known]


def lockstep_lines(page: Path) -> Iterator[str]:
    for line in commands(page):
        at = re.search(r"(?:^|/)(lockstep(?: .*)?)$", line)
        if at and not re.match(r"lockstep[./]", at[1]):
            yield at[1].split("  ")[0].rstrip("\\")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_line_is_one_that_the_command_takes(page: Path) -> None:
    wrong = {line: words for line in lockstep_lines(page) if (words := wrong_words(line))}
    assert wrong == {}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_option_is_one_of_some_command(page: Path) -> None:
    known = all_options(command(())[0])
    named = {span.split()[0] for span in spans(page) if re.match(r"--[a-z]", span)}
    assert sorted(named - known) == []


def test_the_page_of_commands_has_every_command() -> None:
    page = text_of(DOCS / "commands.md")
    missing = [name for name in command(())[0].commands if f"lockstep {name}" not in page]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_target_of_make_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = {target for line in commands(page) for target in re.findall(r"^make ([a-z]+)", line)}
    assert sorted(named - targets) == []


# -- settings


def setting_rows(page: Path) -> Iterator[tuple[str, str | None]]:
    """(setting, default as the page says it) of tables whose first heading is about settings."""
    for table in tables(page):
        for row in table:
            heading = next(iter(row))
            if heading.startswith("setting"):
                for name in re.findall(r"`([a-z_][a-z_0-9]*)`", row[heading]):
                    yield name, row.get("default")


def fields(models: Sequence[type[BaseModel]]) -> dict[str, Any]:
    return {field.alias or name: field for model in models for name, field in model.model_fields.items()}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_of_a_table_exists(name: str) -> None:
    named = [setting for setting, _ in setting_rows(ROOT / name)]
    assert named != []
    assert [setting for setting in named if setting not in fields(SETTINGS[name])] == []


@pytest.mark.parametrize("name", SETTINGS)
def test_a_default_is_the_one_of_the_code(name: str) -> None:
    known = fields(SETTINGS[name])
    wrong = []
    for setting, said in setting_rows(ROOT / name):
        default = known[setting].get_default(call_default_factory=True)
        default = default.get_secret_value() if isinstance(default, SecretStr) else default
        text = (said or "").strip('`"')
        if re.fullmatch(r"[\d.]+", text) and float(text) != default:
            wrong.append((setting, said, default))
        if (said or "").startswith("`") and isinstance(default, str) and text != default:
            wrong.append((setting, said, default))
    assert wrong == []


@pytest.mark.parametrize("name", COMPLETE)
def test_a_page_has_every_setting(name: str) -> None:
    own = set(fields([COMPLETE[name]])) - TableSettings.model_fields.keys()
    assert sorted(own - {setting for setting, _ in setting_rows(ROOT / name)}) == []


def test_the_page_about_projections_has_what_every_sink_has() -> None:
    named = {setting for setting, _ in setting_rows(DOCS / "projections.md")}
    others = ["lender", "login", "mask_salt", "prefix", "tls", "topic", "type", "view"]
    assert sorted(set(TableSettings.model_fields) - named) == others


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_setting_with_its_section_exists(page: Path) -> None:
    wrong = []
    for span in set(spans(page)) - NOT_OURS:
        at = re.fullmatch(r"\$?([a-z]+)\.([a-z_]+)(?:\.([a-z_]+))?(?: = .*)?", span)
        if at is None or at[1] not in SECTIONS or at[2] == "py" or (at[1] == "spark" and at[3]):
            continue
        known = SECTIONS[at[1]].model_fields
        if at[2] not in known or (at[3] and at[3] not in TopicSettings.model_fields):
            wrong.append(span)
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_piece_of_configuration_is_toml_with_settings_that_exist(page: Path) -> None:
    wrong = []
    for block in blocks(page, "toml"):
        for section, value in tomllib.loads(block).items():
            if section == "sinks":
                kinds = (OpenSearchSettings, RedisSettings, WarehouseSettings, DeltaSettings)
                names = {name for sink in value.values() for name in sink}
                wrong += sorted(names - fields(kinds).keys() - {"apply"})
            elif section == "views":
                kinds = (OpenSearchSettings, RedisSettings, WarehouseSettings, DeltaSettings)
                names = {name for view in value.values() for name in view}
                wrong += sorted(names - fields(kinds).keys() - {"sink", *ViewSettings.model_fields})
            elif section == "streams":
                wrong += sorted(
                    {name for stream in value.values() for name in stream} - StreamSettings.model_fields.keys()
                )
            elif section == "stream_queries":
                wrong += sorted(
                    {name for query in value.values() for name in query} - StreamQuerySection.model_fields.keys()
                )
            elif section in SECTIONS:
                wrong += sorted(value.keys() - SECTIONS[section].model_fields.keys())
            elif section not in fields((OpenSearchSettings, RedisSettings, WarehouseSettings, DeltaSettings)):
                wrong.append(section)
    assert wrong == []


def test_the_smallest_configuration_is_valid() -> None:
    (block,) = (block for block in blocks(DOCS / "getting-started.md", "toml") if "[pipeline]" in block)
    assert Config.model_validate(tomllib.loads(block)).pipeline.name == "shop"


@cache
def source_text() -> str:
    """All of the code but these tests."""
    files = subprocess.run(
        ["git", "ls-files", "*.py", "Makefile"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    paths = [ROOT / file for file in files if not file.startswith("tests/docs/")]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths if path.exists())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_environment_variable_is_read_by_something(page: Path) -> None:
    code = source_text()
    named = set(re.findall(r"LOCKSTEP_[A-Z_]+", text_of(page)))
    assert sorted(name for name in named if name not in code) == []


# -- paths, modules, tests


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_path_exists(page: Path) -> None:
    named = {span for span in spans(page) if re.fullmatch(rf"({'|'.join(PACKAGES)})/[\w./-]*", span)}
    assert sorted(path for path in named - GENERATED if not (ROOT / path).exists()) == []


def test_the_map_of_the_code_has_what_there_is() -> None:
    (drawing,) = (block for block in blocks(DOCS / "architecture.md", "text") if block.startswith("lockstep/"))
    top, wrong, seen, parts = "", [], set[str](), defaultdict[str, set[str]](set)
    for line in drawing.splitlines():
        name = line.split()[0]
        if not line.startswith(" "):
            top = name
            seen.add(name.rstrip("/"))
        else:
            parts[top].add(name.rstrip("/"))
        path = name if not line.startswith(" ") else top + name
        if not (ROOT / path).exists():
            wrong.append(path)
    assert wrong == []
    assert sorted(set(PACKAGES) - {"docs"} - seen) == []
    packages = {of: {init.parent.name for init in (ROOT / of).glob("*/__init__.py")} for of in parts}
    assert packages == parts, "of a package whose parts are listed, all are"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_module_that_is_run_exists(page: Path) -> None:
    named = {module for line in commands(page) for module in re.findall(r"python -m ([\w.]+)", line)}
    assert sorted(module for module in named if importlib.util.find_spec(module) is None) == []


def test_every_invariant_names_its_test() -> None:
    page = text_of(DOCS / "architecture.md")
    named = re.findall(r"\* `(tests/[\w/]+\.py)`:\s+`(test_\w+)`", page)
    invariants = re.findall(r"^\d+\. ", page, re.MULTILINE)
    assert len(named) >= len(invariants) > 0
    wrong = [(path, name) for path, name in named if f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")]
    assert wrong == []


# -- messages


def literals() -> Iterator[str]:
    """Every text of the code, with ``…`` for what is put into it."""
    for package in PACKAGES:
        if package in ("tests", "docs", "bench"):
            continue
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def messages() -> list[str]:
    page = text_of(DOCS / "troubleshooting.md")
    told = [
        message
        for line in re.findall(r"^\* \*\*.*$", page, re.MULTILINE)
        for message in re.findall(r"`([^`]+)`\*\*", line)
    ]
    return [
        *told,
        *(
            row["finding"].strip("`")
            for table in tables(DOCS / "troubleshooting.md")
            for row in table
            if "finding" in row
        ),
    ]


def test_every_message_of_the_troubleshooting_page_is_one_of_the_code() -> None:
    lines = {line for text in literals() for line in text.splitlines()}
    assert len(messages()) > 50
    wrong = []
    for message in messages():
        parts = message.split("…")
        pattern = re.compile(".{1,60}?".join(map(re.escape, parts)))
        if not any(pattern.search(line) for line in lines if max(parts, key=len) in line):
            wrong.append(message)
    assert wrong == []


def test_clients_of_the_pages_ask_where_the_web_page_listens() -> None:
    asked = {address for page in PAGES for address in re.findall(r'Client\("http://([^"]+)"\)', text_of(page))}
    assert asked == {DashboardSettings().listen}


def test_every_condition_of_alerts_has_its_row() -> None:
    page = (ROOT / "docs/alerts.md").read_text(encoding="utf-8")
    names = [*NAMES, *(name for each in installed() for name in each.conditions)]
    assert [name for name in names if f"| `{name}` |" not in page] == []
