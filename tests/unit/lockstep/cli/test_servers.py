"""Commands of the local servers: what ``up`` prints of which server."""

from dataclasses import fields
from pathlib import Path

import pytest

from lockstep.cli.servers import SERVER_OF, has_other_source
from stack.stack import NAMES, Endpoints


def test_every_address_belongs_to_a_server() -> None:
    assert list(SERVER_OF) == [field.name for field in fields(Endpoints)]
    assert set(SERVER_OF.values()) == set(NAMES)


CONFIG = """
[pipeline]
name = "shop"
[source]
dsn = "{dsn}"
tables = ["public.orders"]
[kafka]
bootstrap_servers = "kafka:9092"
"""


@pytest.mark.parametrize(
    ("dsn", "local", "is_other"),
    [
        ("host=db dbname=shop user=me", "host=127.0.0.1 port=21000 dbname=app", True),
        ("host=localhost port=21000 dbname=app", "host=127.0.0.1 port=21000 dbname=app", False),
        ("postgresql://me@127.0.0.1:21000/shop", "host=127.0.0.1 port=21000 dbname=app", False),
        ("host=127.0.0.1 port=5432 dbname=app", "host=127.0.0.1 port=21000 dbname=app", True),
        ("host=127.0.0.1 port=21000 dbname=app", None, True),
        ("dbname=shop", "host=127.0.0.1 port=21000 dbname=app", True),
    ],
)
def test_a_source_is_another_one_where_it_has_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dsn: str, local: str | None, is_other: bool
) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    monkeypatch.delenv("PGPORT", raising=False)
    path = tmp_path / "lockstep.toml"
    path.write_text(CONFIG.format(dsn=dsn))
    assert has_other_source(path, local) is is_other


def test_without_a_configuration_nobody_has_another_source(tmp_path: Path) -> None:
    assert not has_other_source(tmp_path / "lockstep.toml", None)
    (tmp_path / "wrong.toml").write_text("[pipeline")
    assert not has_other_source(tmp_path / "wrong.toml", None)
