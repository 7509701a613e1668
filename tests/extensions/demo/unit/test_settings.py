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


def test_it_loads_with_three_sinks_a_view_and_seven_tables(tmp_path):
    file = tmp_path / "lockstep.toml"
    file.write_text(configuration(ENDPOINTS, listen=LISTEN))

    config = load(file)

    assert set(config.sinks) == {"search", "cache", "warehouse", "timeline"}
    assert set(config.views) == {"timeline"}
    assert config.sinks["timeline"].topic
    assert [str(table) for table in config.source.table_names] == [
        "public.customers",
        "public.products",
        "public.orders",
        "public.order_items",
        "public.users",
        "public.follows",
        "public.tweets",
    ]


def test_it_loads_with_another_mapping_too(tmp_path):
    file = tmp_path / "lockstep.toml"
    file.write_text(configuration(ENDPOINTS, listen=LISTEN, mapping_has_changed=True))

    config = load(file)

    assert config.sinks["search"].exclude == ("public.customers.email",)
    assert config.sinks["search"].fields.keys() == {"public.products.title"}


def test_checkpoints_and_states_of_views_are_beside_it(tmp_path):
    file = tmp_path / "lockstep.toml"
    file.write_text(configuration(ENDPOINTS, listen=LISTEN))

    spark = load(file).spark
    assert spark.checkpoint_directory == str(tmp_path / "checkpoints")
    assert spark.view_directory == tmp_path / "views"
