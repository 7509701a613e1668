"""sinks.registry"""

import pickle
import subprocess
import sys

import pytest
from pydantic import TypeAdapter, ValidationError

from sinks.opensearch_sink import OpenSearchSink
from sinks.redis_sink import RedisSink
from sinks.registry import SinkSettings, open_sink
from sinks.warehouse_sink import WarehouseSink

ADAPTER: TypeAdapter[SinkSettings] = TypeAdapter(SinkSettings)

EXAMPLES = [
    (
        {"type": "opensearch", "urls": ["https://a:9200"], "login": {"user": "u", "password": "secret-word"}},
        OpenSearchSink,
    ),
    ({"type": "redis", "url": "rediss://:secret-word@h:6379/0", "tls": {"verify": False}}, RedisSink),
    ({"type": "warehouse", "url": "postgresql+psycopg://u:secret-word@h/d", "schema": "dwh"}, WarehouseSink),
]


@pytest.mark.parametrize(("values", "kind"), EXAMPLES)
def test_type_chooses_the_sink(values: dict[str, object], kind: type) -> None:
    assert isinstance(open_sink("shop", ADAPTER.validate_python(values), 1), kind)


@pytest.mark.parametrize(("values", "_kind"), EXAMPLES)
def test_settings_travel_to_other_processes_and_show_no_secret(values: dict[str, object], _kind: type) -> None:
    settings = ADAPTER.validate_python(values)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert "secret-word" not in repr(settings)


@pytest.mark.parametrize(("values", "_kind"), EXAMPLES)
def test_an_unknown_key_is_an_error(values: dict[str, object], _kind: type) -> None:
    with pytest.raises(ValidationError, match="prefixx"):
        ADAPTER.validate_python({**values, "prefixx": "a"})


def test_an_unknown_type_is_an_error() -> None:
    with pytest.raises(ValidationError, match="union_tag_invalid"):
        ADAPTER.validate_python({"type": "tape"})


def test_importing_the_registry_loads_no_client() -> None:
    clients = "opensearchpy redis sqlalchemy psycopg alembic confluent_kafka pyspark"
    program = f"import sys, sinks.registry; print([m for m in '{clients}'.split() if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert answer.stdout.strip() == "[]"
