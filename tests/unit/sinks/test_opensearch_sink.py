"""sinks.opensearch_sink: the pure parts; its behaviour is in tests/contract"""

from itertools import combinations
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.event import JsonValue, TableEvents
from cdc.model.table import Column, TableName
from sinks.access import Login, Tls
from sinks.opensearch_sink import (
    OpenSearchSettings,
    OpenSearchSink,
    Verdict,
    _searchable_json,
    _Target,
    alias_name,
    document_id,
    field_mapping,
    field_name,
    flat_settings,
    mapping,
    verdict,
)
from sinks.shape import Shape
from tests.builders import column, delete, table


def test_a_plain_table_keeps_its_name() -> None:
    assert alias_name("shop", TableName("public", "order_items")) == "shop.public.order_items"


def test_different_tables_have_different_indexes_and_no_index_looks_like_another_ones_generation() -> None:
    parts = ["orders", "Orders", "orders_g1", "orders_g1_w", "a.b", "a", "b", "ü", "~4f", "a b", "_", "-", "*"]
    names = [alias_name("shop", TableName(one, other)) for one in parts for other in parts]
    indexes = [index for name in names for index in (name, f"{name}_g1", f"{name}_g1_W")]
    assert all(one != other for one, other in combinations(indexes, 2))
    assert all(not set(index) & set('\\/*?"<>| ,#:') for index in indexes)
    assert all(name == name.lower() for name in names)


def test_a_name_that_is_too_long_is_an_error() -> None:
    with pytest.raises(LockstepError, match="longer than OpenSearch allows"):
        alias_name("shop", TableName("Ü" * 31, "Ü" * 31))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([42], "42"),
        (["a/b c"], "a/b c"),
        ([1, "x"], '[1,"x"]'),
        ([""], "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
    ],
)
def test_document_id(values: list[JsonValue], text: str) -> None:
    assert document_id(values) == text


def test_a_long_key_is_hashed_and_a_key_that_looks_hashed_too() -> None:
    hashed = document_id(["x" * 513])
    assert len(hashed) == len("sha256:") + 64
    assert document_id([hashed]) != hashed
    assert document_id(["x" * 512]) == "x" * 512


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("a", "a"),
        ("a.b", "a%2eb"),
        ("a%2eb", "a%252eb"),
        ("_tag", "%5ftag"),
        ("_id", "%5fid"),
        ("_deleted", "%5fdeleted"),
        ("_x", "_x"),
        (" ", "%20"),
    ],
)
def test_field_name(name: str, field: str) -> None:
    assert field_name(name) == field


@pytest.mark.parametrize(
    ("of", "kind"),
    [
        (column("c", "int4"), "integer"),
        (column("c", "int8"), "long"),
        (column("c", "numeric"), "double"),
        (column("c", "text"), "text"),
        (column("c", "text", type_name="order_status"), "keyword"),
        (column("c", "varchar", type_name="character varying(20)"), "text"),
        (column("c", "uuid"), "keyword"),
        (column("c", "bool"), "boolean"),
        (column("c", "bool", is_array=True), "keyword"),
        (column("c", "timestamptz"), "date"),
        (column("c", "jsonb"), "flat_object"),
        (column("c", "jsonb", is_array=True), "keyword"),
        (column("c", "int4range"), "keyword"),
    ],
)
def test_field_mapping(of: Column, kind: str) -> None:
    assert field_mapping(of)["type"] == kind


def test_a_value_that_does_not_fit_an_integer_is_never_ignored() -> None:
    assert "ignore_malformed" not in field_mapping(column("c", "int4"))


def test_the_mapping_is_strict_and_carries_the_shape() -> None:
    shape = Shape.of(table())
    made = mapping(shape)
    assert made["dynamic"] == "strict"
    assert Shape.from_json(made["_meta"]["lockstep_shape"]) == shape


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (201, None, Verdict.APPLIED),
        (404, None, Verdict.APPLIED),
        (409, "version_conflict_engine_exception", Verdict.STALE),
        (429, "rejected_execution_exception", Verdict.AGAIN),
        (429, "circuit_breaking_exception", Verdict.AGAIN),
        (503, "unavailable_shards_exception", Verdict.AGAIN),
        (503, "cluster_block_exception", Verdict.AGAIN),
        (400, "mapper_parsing_exception", Verdict.REJECTED),
        (413, "content_too_long", Verdict.REJECTED),
        (403, "cluster_block_exception", Verdict.STOP),
        (429, "cluster_block_exception", Verdict.STOP),
        (404, "index_not_found_exception", Verdict.STOP),
        (400, "invalid_index_name_exception", Verdict.STOP),
        (401, "security_exception", Verdict.STOP),
    ],
)
def test_verdict(status: int, error: str | None, expected: Verdict) -> None:
    assert verdict(status, error) is expected


@pytest.mark.parametrize("url", ["localhost:9200", "ftp://h", "https://user:secret-word@host:9200"])
def test_a_wrong_address_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ValidationError) as raised:
        OpenSearchSettings(urls=(url,))
    assert all("secret-word" not in error["msg"] for error in raised.value.errors())


def test_a_prefix_must_be_legal() -> None:
    with pytest.raises(ConfigurationError, match="can't begin an index name"):
        OpenSearchSink("Shop", OpenSearchSettings(), 1)


@pytest.mark.parametrize(
    ("verify", "requirement", "hostname"), [(True, "CERT_REQUIRED", None), (False, "CERT_NONE", False)]
)
def test_certificates_are_checked_unless_that_is_switched_off(verify: bool, requirement: str, hostname: object) -> None:
    settings = OpenSearchSettings(
        urls=("https://h:9200",), tls=Tls(verify=verify), login=Login(user="u", password=SecretStr("p"))
    )
    sink = OpenSearchSink("shop", settings, 1)
    connection = sink._transport().get_connection()
    pool = connection.pool
    assert (pool.cert_reqs, pool.assert_hostname) == (requirement, hostname)
    assert connection.headers["authorization"] == "Basic dTpw"
    sink.close()


def test_a_field_can_be_indexed_in_another_way() -> None:
    how = {"type": "text", "analyzer": "german"}
    settings = OpenSearchSettings(fields={"public.orders.note": how, 'public."Other t".note': {"type": "keyword"}})
    made = mapping(Shape.of(table()), settings.fields_of(TableName("public", "orders")))["properties"]
    assert (made["note"], made["id"]) == (how, {"type": "long"})
    assert settings.fields_of(TableName("public", "Other t")) == {"note": {"type": "keyword"}}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"fields": {"note": {"type": "keyword"}, "a.b": {"type": "keyword"}}}, r"'note'.*'a.b'"),
        ({"fields": {"public.orders.note": {"analyzer": "german"}}}, "no type is given for public.orders.note"),
        ({"fields": {"public.orders.note": {"type": "text"}}, "exclude": ("public.orders.note",)}, "exclude leaves out"),
        ({"fields": {"public.orders.note": {"type": "text"}}, "tables": ("public.items",)}, "tables doesn't name public.orders"),
        ({"index_settings": {"number_of_shards": 2, "index": {"refresh_interval": "1s"}}}, r"set shards.*set refresh_interval_ms"),
        ({"index_settings": {"index.gc_deletes": "1s"}}, "set gc_deletes_s"),
        ({"index_settings": {"translog": {"durability": "async"}}}, "must be durable"),
        ({"index_settings": {"index": {"mapping": {"total_fields.limit": 5}}}}, "follows from the table's columns"),
        ({"index_settings": {"final_pipeline": "p"}}, "rows as they are"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        OpenSearchSettings(**values)


def test_index_settings_are_known_by_their_full_names() -> None:
    nested = {
        "analysis": {"analyzer": {"a": {"type": "custom", "filter": ["x"]}}},
        "index": {"codec": "best_compression"},
    }
    expected = {"analysis.analyzer.a.type": "custom", "analysis.analyzer.a.filter": ["x"], "codec": "best_compression"}
    assert flat_settings(nested) == expected
    assert flat_settings({"index.codec": "best_compression", "index": {"mapping": {"depth.limit": 5}}}) == {
        "codec": "best_compression",
        "mapping.depth.limit": 5,
    }


def test_a_delete_is_a_delete_or_a_marker() -> None:
    event = delete({"id": 1}, 1)
    events = TableEvents.of(event.table, [event])
    written = [_Target("w", Shape.of(table()), markers).lines(events, 0) for markers in (False, True)]
    assert written[0].startswith(b'{"delete":')
    assert written[0].count(b"\n") == 1
    assert written[1].startswith(b'{"index":')
    assert b'"_deleted":true' in written[1]


def test_json_for_searching_is_left_out_where_it_cannot_be_indexed() -> None:
    deep = '{"a":' * 21 + "1" + "}" * 21
    long = '{"a":"' + "x" * 40_000 + '"}'
    many = "{" + ",".join(f'"k{n}":"{"x" * 100}"' for n in range(400)) + "}"
    for text in ("[1]", "1", '"x"', "null", deep, long):
        assert _searchable_json(text, "jsonb") is None
    for text in ('{"a":1.0}', " {}", many):
        assert _searchable_json(text, "jsonb") is not None
    assert _searchable_json('{"a":1,"a":2}', "json") == {"a": 2}
