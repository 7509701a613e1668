"""sinks.opensearch.settings"""

from typing import Any

import pytest
from pydantic import ValidationError

from cdc.model.table import TableName
from sinks.opensearch.settings import OpenSearchSettings
from tests.builders import column, table


@pytest.mark.parametrize(
    "url",
    [
        "localhost:9200",
        "ftp://h",
        "https://user:secret-word@host:9200",
        "http://h:secret-word",
        "http://h:99999",
        "http://[secret-word",
        "http://secret word",
    ],
)
def test_a_wrong_address_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ValidationError) as raised:
        OpenSearchSettings(urls=(url,))
    assert all("secret-word" not in error["msg"] for error in raised.value.errors())


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"fields": {"note": {"type": "keyword"}, "a.b": {"type": "keyword"}}}, r"'note'.*'a.b'"),
        ({"fields": {"public.orders.note": {}}}, "public.orders.note: nothing is said of it"),
        ({"fields": {"public.orders.note": {"type": 1}, "public.orders.id": {"copy_to": "a.b"}}},
         r"orders.note: its type.*orders.id: copy_to"),
        ({"fields": {"public.orders.note": {"copy_to": ["_tag"]}}}, "copy_to names a field"),
        ({"names": {"public.orders": "a", "public.items": "a"}}, "both have the name 'a'"),
        ({"names": {"orders": "a", 'public."orders"': "b", "public.orders": "c"}}, r"'orders'.*are the same table"),
        ({"names": {"public.orders": "A"}, "ids": {"public.orders": "x"}, "routing": {"public.orders": []}},
         r"(?s)names.*ids.*no key column.*routing.*name columns of its key"),
        ({"ids": {"public.orders": "{a}{b}", "public.items": "{"}}, r"public.orders: between.*public.items: a brace"),
        ({"routing": {"public.orders": ["id", "id"]}}, "each once"),
        ({"names": {"public.items": "i"}, "ids": {"public.orders": "{id}"}, "tables": ("public.orders",)},
         "names names public.items"),
        ({"fields": {"public.orders.note": {"type": "text"}}, "exclude": ("public.orders.note",)},
         "exclude leaves out"),
        ({"fields": {"public.orders.note": {"type": "text"}}, "tables": ("public.items",)},
         "tables doesn't name public.orders"),
        ({"index_settings": {"number_of_shards": 2, "index": {"refresh_interval": "1s"}}},
         r"set shards.*set refresh_interval_ms"),
        ({"index_settings": {"index.gc_deletes": "1s"}}, "how long markers stay goes by it"),
        ({"index_settings": {"translog": {"durability": "async"}}}, "must be durable"),
        ({"index_settings": {"index": {"mapping": {"total_fields.limit": 5}}}}, "follows from the table's columns"),
        ({"index_settings": {"final_pipeline": "p"}}, "rows as they are"),
        ({"aws_region": "eu-central-1", "login": {"user": "u"}}, "aws_region and login exclude each other"),
        ({"aws_region": "eu central"}, "aws_region"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        OpenSearchSettings(**values)


def test_what_is_said_of_a_table_must_fit_it() -> None:
    orders = table(column("region"), column("id", "int8"), column("note"), key=("region", "id"))
    settings = OpenSearchSettings(
        fields={"public.orders.nite": {"type": "text"}, "public.orders.note": {"copy_to": "all"},
            "public.orders.all": {"type": "text"}},
        ids={"public.orders": "{id}-{note}"},
        routing={"public.orders": ("note", "region", "regoin")},
    )  # fmt: skip
    assert settings.problems_of(orders) == [
        "fields: table public.orders has no column 'nite'",
        "ids: table public.orders: 'note' isn't a column of the key (region, id)",
        "ids: table public.orders: key column 'region' is missing, so that different rows would have the same id",
        "routing: 'note' isn't a column of the key of table public.orders (region, id): "
        "when it changes, the row's old document would stay on another shard",
        "routing: table public.orders has no column 'regoin'",
    ]
    assert settings.problems_of(table(name=TableName("public", "items"))) == []


def test_what_is_said_of_a_table_is_found_by_its_name() -> None:
    settings = OpenSearchSettings(
        names={'public."Odd t"': "odd"}, ids={'public."Odd t"': "o{id}"}, routing={'public."Odd t"': ("id",)}
    )
    odd, other = TableName("public", "Odd t"), TableName("public", "other")
    assert settings.table_names() == {odd: "odd"}
    template = settings.id_of(odd)
    assert template is not None
    assert (template.columns, settings.routing_of(odd)) == (("id",), ("id",))
    assert (settings.id_of(other), settings.routing_of(other)) == (None, ())
