"""lockstep.erase.sinks: what is said of sinks that aren't asked"""

from pathlib import Path

from cdc.model.table import TableName
from lockstep.config import read
from lockstep.erase.sinks import DeletedRow, SinkErasing
from tests.builders import column, table

_FILE = """
[pipeline]
name = "shop"
[source]
dsn = "host=db dbname=shop user=me"
tables = ["public.orders", "public.items"]
[kafka]
bootstrap_servers = "127.0.0.1:9092"
[sinks.cache]
type = "redis"
url = "redis://127.0.0.1:1"
apply = false
[views.open]
sink = "cache"
key = ["id"]
sql = "select id from orders"
"""


def test_a_view_proves_nothing_of_the_tables_that_it_reads(tmp_path: Path) -> None:
    (tmp_path / "lockstep.toml").write_text(_FILE)
    config = read(tmp_path / "lockstep.toml")

    def places(name: str) -> dict[str, bool]:
        deleted = table(column("id", "int8"), name=TableName("public", name))
        erasing = SinkErasing(config, DeletedRow(deleted, {"id": 1}, "", name), timeout_s=1, check=lambda: None)
        return {place.name: place.is_proven for place in erasing.places("open", only_look=False)}

    assert places("orders") == {"view open": False}
    assert places("items") == {}
