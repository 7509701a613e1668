"""The demo's configuration is one that every command takes."""

from extensions.demo.settings import configuration
from lockstep.config import load
from stack.stack import Endpoints

ENDPOINTS = Endpoints(
    source_dsn="host=127.0.0.1 port=1 dbname=app user=postgres passfile='/a \\\\ \"b\"/pgpass'",
    warehouse_dsn="host=127.0.0.1 port=2 dbname=warehouse user=postgres",
    warehouse_url="postgresql+psycopg://postgres@127.0.0.1:2/warehouse",
    kafka_bootstrap="127.0.0.1:3",
    opensearch_url="http://127.0.0.1:4",
    redis_url="redis://127.0.0.1:5/0",
)
LISTEN = "127.0.0.1:6"


def test_it_loads_with_another_mapping_too(tmp_path):
    file = tmp_path / "lockstep.toml"
    file.write_text(configuration(ENDPOINTS, listen=LISTEN, mapping_has_changed=True))

    config = load(file)

    assert config.sinks["search"].exclude == ("public.customers.email",)
    assert config.sinks["search"].fields.keys() == {"public.products.title"}
