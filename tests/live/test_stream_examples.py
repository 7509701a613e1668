"""The pages of ``docs/examples`` with streams are run as they are written: each step has the result that they say."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from pyspark.sql import SparkSession

from jobs.streams.settings import StreamQuerySettings
from sinks.warehouse.settings import WarehouseSettings
from stack.stack import Endpoints
from tests.databases import Database, url_of
from tests.docs.generated import DOCS
from tests.streams import Streams

pytestmark = [pytest.mark.live, pytest.mark.busy, pytest.mark.soak]

_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]


@pytest.mark.parametrize("page", ["search-clicks", "abandoned-carts", "sessions"])
def test_a_stream_query_of_the_docs_has_the_result_that_its_page_says(
    endpoints: Endpoints, spark: SparkSession, tmp_path: Path, page: str
) -> None:
    (_, toml), *steps = _BLOCK.findall((DOCS / "examples" / f"{page}.md").read_text(encoding="utf-8"))
    document: dict[str, Any] = tomllib.loads(toml)
    ((_, section),) = document["stream_queries"].items()
    settings = [
        {name: value for name, value in stream.items() if name != "topic"} for stream in document["streams"].values()
    ]
    database = Database(endpoints.warehouse_dsn)
    streams = Streams(
        endpoints.kafka_bootstrap,
        tmp_path,
        dict(zip(document["streams"], settings, strict=True)),
        StreamQuerySettings.model_validate({name: value for name, value in section.items() if name != "sink"}),
        WarehouseSettings.model_validate({"url": url_of(endpoints.warehouse_url, database.name), "schema": "result"}),
    )
    try:
        assert [language for language, _ in steps] == ["json", "text"] * (len(steps) // 2)
        for (_, events), (_, expected) in zip(steps[::2], steps[1::2], strict=True):
            for stream, records in json.loads(events).items():
                streams.send(stream, *records)
            assert streams.run(spark) == 0, streams.told
            assert shown(database) == cells(expected)
    finally:
        database.drop()


def shown(database: Database) -> list[list[str]]:
    """The rows of the result, as the pages show them."""
    with psycopg.connect(database.dsn, options="-c timezone=UTC") as connection:
        ((table, columns),) = connection.execute(
            "select table_name, string_agg(quote_ident(column_name), ', ' order by ordinal_position) from"
            " information_schema.columns where table_schema = 'result' and column_name not like '\\_%'"
            " and table_name not like '\\_%' group by table_name"
        ).fetchall()
        rows = connection.execute(f"select {columns} from result.{table} order by 1, 2").fetchall()
    return [["" if value is None else str(value) for value in row] for row in rows]
