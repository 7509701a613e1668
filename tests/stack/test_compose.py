"""The compose file describes the same servers as the local stack: versions, settings, and nothing open to the network.

No Docker engine is needed, and none was there: this compares the file with what `stack` passes to its servers.
"""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from stack import kafka, opensearch, postgres, valkey, versions
from stack.stack import NAMES, Stack

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {"capture": ["capture"], "apply": ["apply"], "alerts": ["alerts", "watch"], "dashboard": ["dashboard"]}


def options(name: str, flag: str) -> dict[str, str]:
    """The settings in a command: `-c key=value` or `--key value`."""
    command = SERVICES[name]["command"]
    if flag == "-c":
        return dict(word.split("=", 1) for before, word in pairwise(command) if before == "-c")
    return {key.removeprefix("--"): value for key, value in zip(command[1::2], command[2::2], strict=True)}


def test_every_server_of_the_stack_is_there() -> None:
    assert set(SERVICES) == {*NAMES, *OURS}


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("postgres", f"postgres:{versions.POSTGRES_SERVER}"),
        ("warehouse", f"postgres:{versions.POSTGRES_SERVER}"),
        ("kafka", f"apache/kafka:{versions.KAFKA}"),
        ("opensearch", f"opensearchproject/opensearch:{versions.OPENSEARCH_3}"),
        ("valkey", f"valkey/valkey:{versions.VALKEY}"),
    ],
)
def test_the_versions_are_those_of_the_stack(name: str, image: str) -> None:
    assert SERVICES[name]["image"] == image


def test_the_databases_get_the_settings_of_the_stack() -> None:
    assert options("postgres", "-c") == postgres.SOURCE_SETTINGS
    assert options("warehouse", "-c") == postgres.WAREHOUSE_SETTINGS


def test_the_databases_have_the_names_of_the_stack() -> None:
    stack = Stack(ROOT)
    databases = {stack.source.name: stack.source.database, stack.warehouse.name: stack.warehouse.database}
    assert {name: SERVICES[name]["environment"]["POSTGRES_DB"] for name in databases} == databases


def test_kafka_gets_the_settings_of_the_stack() -> None:
    expected = {f"KAFKA_{key.upper().replace('.', '_')}": value for key, value in kafka.SETTINGS.items()}
    environment = SERVICES["kafka"]["environment"]
    assert {key: environment.get(key) for key in expected} == expected


def test_opensearch_gets_the_settings_of_the_stack() -> None:
    environment = SERVICES["opensearch"]["environment"]
    assert {key: environment.get(key) for key in opensearch.SETTINGS} == opensearch.SETTINGS


def test_valkey_gets_the_settings_of_the_stack() -> None:
    given = options("valkey", "--")
    assert "VALKEY_PASSWORD" in given.pop("requirepass")
    assert given == valkey.SETTINGS


@pytest.mark.parametrize(
    ("name", "variable", "heap_mb"),
    [("kafka", "KAFKA_HEAP_OPTS", kafka.HEAP_MB), ("opensearch", "OPENSEARCH_JAVA_OPTS", opensearch.HEAP_MB)],
)
def test_the_heaps_are_as_large(name: str, variable: str, heap_mb: int) -> None:
    assert SERVICES[name]["environment"][variable] == f"-Xms{heap_mb // 2}m -Xmx{heap_mb}m"


@pytest.mark.parametrize("name", NAMES)
def test_every_server_has_a_health_check_a_volume_and_loopback_ports(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    for port in service["ports"]:
        assert port.startswith("127.0.0.1:")
    (volume,) = service["volumes"]
    assert volume.split(":")[0] in COMPOSE["volumes"]


def test_no_two_servers_are_published_on_one_port() -> None:
    published = [re.sub(r"\$\{\w+:-(\d+)\}", r"\1", SERVICES[name]["ports"][0]).split(":")[1] for name in NAMES]
    assert len(set(published)) == len(NAMES)


@pytest.mark.parametrize("name", OURS)
def test_the_pipeline_waits_for_healthy_servers(name: str) -> None:
    service = SERVICES[name]
    assert service["build"] == "."
    assert service["command"] == OURS[name]
    assert {entry["condition"] for entry in service["depends_on"].values()} == {"service_healthy"}


def test_no_secret_is_in_the_files() -> None:
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if "PASSWORD" in key or key.endswith("_AUTH"):
                assert re.fullmatch(r"\$\{\w+_PASSWORD:\?[^}]+\}", value), (name, key)
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    wanted = set(re.findall(r"\$\{(\w+):\?", (ROOT / "docker-compose.yml").read_text(encoding="utf-8")))
    given = dict(line.split("=", 1) for line in example.splitlines() if line and not line.startswith("#"))
    assert given == dict.fromkeys(wanted, "")


def test_the_image_does_not_run_as_root() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    last_stage = dockerfile.rpartition("\nFROM ")[2]
    assert re.search(r"^USER (?!root)\w+$", last_stage, re.MULTILINE)
    assert f"openjdk-{versions.JAVA_FETCHED}-jre" in last_stage
    for install in re.findall(r"pip install (.*?)(?:&&|\n)", dockerfile):
        assert "--require-hashes" in install or "--no-deps" in install
