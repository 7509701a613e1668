"""lockstep.erase.streams: which stream queries may have read a row"""

from pathlib import Path

import pytest

from lockstep.config import read
from lockstep.erase.streams import places_of_queries

_FILE = """
[pipeline]
name = "shop"
[source]
dsn = "host=db dbname=shop user=me"
tables = ["public.orders"]
[kafka]
bootstrap_servers = "127.0.0.1:9092"
[sinks.warehouse]
type = "warehouse"
url = "postgresql+psycopg://warehouse/shop"
[streams.s]
topic = "shop.__views.open.g1"
columns = { id = "text", at = "timestamptz" }
time = "at"
late = "10 minutes"
[streams.t]
topic = "web.searches"
columns = { id = "text", at = "timestamptz" }
time = "at"
late = "10 minutes"
[stream_queries.recent]
sink = "warehouse"
key = ["id"]
sql = "select id, at from s"
[stream_queries.others]
sink = "warehouse"
key = ["id"]
sql = "select id, at as s_at from t"
"""


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        ({"shop.__views.open.g1"}, ["stream query recent"]),
        ({"web.searches"}, ["stream query others"]),
        ({"shop.public.orders"}, []),
    ],
)
def test_a_query_over_a_topic_that_has_had_the_row_keeps_it(
    tmp_path: Path, topics: set[str], expected: list[str]
) -> None:
    (tmp_path / "lockstep.toml").write_text(_FILE)
    places = places_of_queries(read(tmp_path / "lockstep.toml"), topics.__contains__)
    assert [place.name for place in places] == expected
    assert not any(place.is_proven for place in places)
    for place in places:
        assert place.unasked is not None
        assert f"it reads {min(topics)}," in place.unasked
        query = place.name.removeprefix("stream query ")
        assert f"shop.__stream_queries.{query}" in place.unasked
        assert f"`lockstep streams rebuild {query}`" in place.unasked
