"""What crosses a network as it is, by the settings."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.config import load
from lockstep.doctor.encryption import encryption_findings, source_encryption

KAFKA = 'bootstrap_servers = "127.0.0.1:9092"'
SASL = 'sasl_mechanism = "{}"\nusername = "u"\n'


def findings(
    tmp_path: Path, *, kafka: str = KAFKA, sink: str = "", more: str = "", environment: dict[str, str] | None = None
) -> list[str]:
    sinks = f"[sinks.s]\n{sink}\n" if sink else ""
    source = '[source]\ndsn = "host=x"\ntables = ["public.t"]\n'
    (tmp_path / "lockstep.toml").write_text(f'[pipeline]\nname = "p"\n{source}[kafka]\n{kafka}\n{sinks}{more}')
    found = encryption_findings(load(tmp_path / "lockstep.toml"), environment or {})
    return [f"{finding.subject}: {finding.what}" for finding in found]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("", "isn't encrypted"),
        ("tls = {}\n", None),
        ("tls = {}\n" + SASL.format("PLAIN"), None),
        (SASL.format("PLAIN"), "has a password, which is sent as it is"),
        (
            'sasl_mechanism = "OAUTHBEARER"\nlibrdkafka = { "sasl.oauthbearer.method" = "oidc" }\n',
            "has a password, which is sent as it is",
        ),
        (SASL.format("SCRAM-SHA-512"), "although it has a password"),
    ],
)
def test_a_broker_without_tls_is_told_where_it_is_another_machine(
    tmp_path: Path, settings: str, words: str | None
) -> None:
    for servers in ("127.0.0.1:9092", "localhost:1, [::1]:2"):
        assert findings(tmp_path, kafka=f'bootstrap_servers = "{servers}"\n{settings}') == []
    found = findings(tmp_path, kafka=f'bootstrap_servers = "localhost:1,kafka:9092"\n{settings}')
    assert len(found) == (0 if words is None else 1)
    assert all(words in what for what in found if words)


@pytest.mark.parametrize(
    ("sink", "is_told"),
    [
        ('type = "opensearch"\nurls = ["http://127.0.0.1:9200", "https://search:9200"]', False),
        ('type = "opensearch"\nurls = ["https://search:9200", "http://search:9200"]', True),
        ('type = "redis"\nurl = "redis://localhost:6379"', False),
        ('type = "redis"\nurl = "unix:///run/redis.sock"', False),
        ('type = "redis"\nurl = "rediss://cache:6379"', False),
        ('type = "redis"\nurl = "redis://cache:6379"', True),
        ('type = "delta"\nroot = "/srv/lake"', False),
        ('type = "delta"\nroot = "s3://b/l"\nstorage_options = { aws_endpoint_url = "https://s3" }', False),
        ('type = "delta"\nroot = "s3://b/l"\nstorage_options = { aws_endpoint_url = "http://s3" }', True),
        ('type = "warehouse"\nurl = "duckdb:////srv/dwh.duckdb"', False),
        ('type = "warehouse"\nurl = "postgresql+psycopg://u@127.0.0.1/d"', False),
        ('type = "warehouse"\nurl = "postgresql+psycopg://u@/d?host=/run/postgresql"', False),
        ('type = "warehouse"\nurl = "postgresql+psycopg://u@dwh/d?sslmode=require"', True),
        ('type = "warehouse"\nurl = "postgresql+psycopg://u@dwh/d?sslmode=verify-full"', False),
        ('type = "warehouse"\nurl = "postgresql+psycopg://u@dwh/d"\ntls = {}', False),
        ('type = "warehouse"\nurl = "postgresql+psycopg://u@dwh/d"', True),
        ('type = "warehouse"\nurl = "postgresql+psycopg://u@dwh/d?sslmode=disable"', True),
        ('type = "warehouse"\nurl = "postgresql+psycopg:///d?host=127.0.0.1,dwh"', True),
    ],
)  # fmt: skip
def test_a_sink_without_tls_is_told_where_it_is_another_machine(tmp_path: Path, sink: str, *, is_told: bool) -> None:
    assert len(findings(tmp_path, sink=sink)) == is_told


def test_libpqs_variable_counts_for_a_warehouse(tmp_path: Path) -> None:
    sink = 'type = "warehouse"\nurl = "postgresql+psycopg://u@dwh/d"'
    assert findings(tmp_path, sink=sink, environment={"PGSSLMODE": "verify-full"}) == []


@pytest.mark.parametrize(
    ("mode", "address", "encrypted", "words"),
    [
        (None, "10.0.0.7", False, "isn't encrypted (sslmode prefer)"),
        (None, "10.0.0.7", True, "may do without encryption (sslmode prefer)"),
        ("disable", "10.0.0.7", False, "isn't encrypted (sslmode disable)"),
        ("require", "10.0.0.7", True, "the server's certificate isn't checked (sslmode require)"),
        ("verify-ca", "10.0.0.7", True, None),
        (None, "127.0.0.1", False, None),
        (None, "", False, None),
    ],
)
def test_the_source_is_judged_by_its_connection(
    mode: str | None, address: str, *, encrypted: bool, words: str | None
) -> None:
    parameters = {} if mode is None else {"sslmode": mode}
    info = SimpleNamespace(get_parameters=lambda: parameters, hostaddr=address, host="")
    connection: Any = SimpleNamespace(info=info, pgconn=SimpleNamespace(ssl_in_use=encrypted))
    assert [words in finding.what for finding in source_encryption(connection) if words] == ([True] if words else [])
    assert len(source_encryption(connection)) == (words is not None)
