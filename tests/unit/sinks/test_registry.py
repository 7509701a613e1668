"""sinks.registry"""

import json
import pickle
import subprocess
import sys

import pytest
from pydantic import TypeAdapter, ValidationError

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from sinks.delta.sink import DeltaSink
from sinks.opensearch.sink import OpenSearchSink
from sinks.redis.sink import RedisSink
from sinks.registry import SinkSettings, definition, load_client, open_sink, projection_of, with_definition
from sinks.warehouse.sink import WarehouseSink
from sinks.wrappers.projecting import ProjectingSink

ADAPTER: TypeAdapter[SinkSettings] = TypeAdapter(SinkSettings)

EXAMPLES = [
    (
        {"type": "opensearch", "urls": ["https://a:9200"], "login": {"user": "u", "password": "secret-word"}},
        OpenSearchSink,
    ),
    ({"type": "redis", "url": "rediss://:secret-word@h:6379/0", "tls": {"ca_file": "ca"}}, RedisSink),
    ({"type": "warehouse", "url": "postgresql+psycopg://u:secret-word@h/d", "schema": "dwh"}, WarehouseSink),
    ({"type": "warehouse", "url": "duckdb:////var/lib/dwh.duckdb"}, WarehouseSink),
    ({"type": "delta", "root": "s3://bucket/lake", "login": {"user": "u", "password": "secret-word"}}, DeltaSink),
]


@pytest.mark.parametrize(("values", "kind"), EXAMPLES)
def test_type_chooses_the_sink(values: dict[str, object], kind: type) -> None:
    assert isinstance(open_sink("shop", ADAPTER.validate_python(values), 1).sink, kind)


@pytest.mark.parametrize(("values", "_kind"), EXAMPLES)
def test_each_kind_has_a_client_library_that_can_be_loaded_before(values: dict[str, object], _kind: type) -> None:
    of_kind = {"opensearch": "opensearchpy", "redis": "redis", "warehouse": "sqlalchemy", "delta": "deltalake"}
    load_client(ADAPTER.validate_python(values))
    assert of_kind[str(values["type"])] in sys.modules


@pytest.mark.parametrize(("values", "_kind"), EXAMPLES)
def test_settings_travel_to_other_processes_and_show_no_secret(values: dict[str, object], _kind: type) -> None:
    settings = ADAPTER.validate_python(values)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert "secret-word" not in repr(settings)


def test_an_unknown_type_is_an_error() -> None:
    with pytest.raises(ValidationError, match="union_tag_invalid"):
        ADAPTER.validate_python({"type": "tape"})


def test_importing_the_registry_loads_no_client() -> None:
    clients = (
        "opensearchpy redis sqlalchemy psycopg alembic deltalake duckdb duckdb_engine pyarrow confluent_kafka pyspark"
    )
    program = f"import sys, sinks.registry; print([m for m in '{clients}'.split() if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize(("values", "_kind"), EXAMPLES)
def test_a_sink_that_leaves_columns_out_is_wrapped(values: dict[str, object], _kind: type) -> None:
    settings = ADAPTER.validate_python({**values, "exclude": ["public.orders.note"]})
    assert isinstance(open_sink("shop", settings, 1).sink, ProjectingSink)
    assert projection_of(settings).excluded == {TableName("public", "orders"): frozenset({"note"})}
    assert not projection_of(ADAPTER.validate_python(values))


COMMON: dict[str, object] = {
    "tables": ["public.orders"],
    "exclude": ["public.orders.note"],
    "rename": {"public.orders.title": "name"},
    "mask": {"public.orders.phone": {"truncate": 3}},
    "computed": {"public.orders.day": {"sql": "cast(at as date)", "type": "date"}},
    "where": {"public.orders": "price > 0"},
}
SHAPED: dict[str, dict[str, object]] = {
    "opensearch": {
        **COMMON,
        "fields": {"public.orders.title": {"type": "keyword", "fields": {"x": {"type": "text"}}}},
        "index_settings": {"analysis": {"analyzer": {"a": {"type": "keyword"}}}},
        "shards": 3,
        "deletes": "marker",
        "names": {"public.orders": "orders"},
        "ids": {"public.orders": "o-{id}"},
        "routing": {"public.orders": ["id"]},
    },
    "redis": {
        **COMMON,
        "keys": {"public.orders": "order:{id}"},
        "values": "fields",
        "sets": {"public.orders": ["orders:by_customer:{customer}"]},
        "ttl_s": {"public.orders": 60},
        "mode": "materialise",
    },
    "warehouse": {
        **COMMON,
        "names": {"public.orders": "bought"},
        "history": ["public.orders"],
        "synced_at": True,
    },
    "delta": {**COMMON, "synced_at": True, "partition_by": {"public.orders": ["region", "day"]}},
}


@pytest.mark.parametrize(("values", "_kind"), EXAMPLES)
def test_a_definition_makes_the_round_trip_through_json(values: dict[str, object], _kind: type) -> None:
    shaped = ADAPTER.validate_python({**values, **SHAPED[str(values["type"])]})
    kept = json.loads(json.dumps(definition(shaped)))
    assert kept == {**SHAPED[str(values["type"])], "view": None}
    plain = ADAPTER.validate_python(values)
    assert with_definition(plain, kept) == shaped
    assert with_definition(shaped, definition(plain)) == plain


@pytest.mark.parametrize(("values", "_kind"), EXAMPLES)
def test_what_a_definition_lacks_has_its_default_and_the_rest_stays(values: dict[str, object], _kind: type) -> None:
    other = {"lock_timeout_s": 7} if values["type"] == "warehouse" else {"prefix": "p"}
    shaped = ADAPTER.validate_python({**values, **SHAPED[str(values["type"])], **other})
    expected = ADAPTER.validate_python({**values, **other})
    assert with_definition(shaped, {}) == expected


@pytest.mark.parametrize(("values", "_kind"), EXAMPLES)
def test_a_definition_of_another_kind_is_refused(values: dict[str, object], _kind: type) -> None:
    settings = ADAPTER.validate_python(values)
    with pytest.raises(LockstepError, match="doesn't know: colour, timeout_s"):
        with_definition(settings, {"timeout_s": 1, "exclude": [], "colour": "red"})
    with pytest.raises(LockstepError, match=r"doesn't fit a sink of type .* exclude"):
        with_definition(settings, {"exclude": ["nonsense"]})
