"""What becomes of a batch when OpenSearch or a proxy refuses: each answer once, most of them from a real server."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import orjson
import pytest
from opensearchpy import OpenSearch

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.event import RowEvent
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.settings import OpenSearchSettings
from stack import ports
from tests.builders import batch, delete, table, upsert
from tests.contract.beside import OpenSearchParts, generations_of
from tests.proxies import JSON, Answer, before

pytestmark = pytest.mark.live

ORDERS = table()


@pytest.fixture
def direct(endpoints: Any, client: OpenSearch) -> Iterator[OpenSearchParts]:
    """A sink with a table and nothing in between."""
    settings = OpenSearchSettings(urls=(endpoints.opensearch_url,), replicas=0, timeout_s=30)
    sink = OpenSearchParts(OpenSearchIndexes(f"t{uuid.uuid4().hex[:12]}", settings, 1))
    sink.prepare([ORDERS])
    yield sink
    client.indices.delete(index=f"{sink.indexes.prefix}.*")
    sink.close()


def index_of(sink: OpenSearchParts) -> str:
    return f"{sink.indexes.prefix}.public.orders_g1"


def row(number: int, at: int = 1, note: str = "n") -> RowEvent:
    return upsert({"id": number, "note": note}, at)


@contextmanager
def through(direct: OpenSearchParts, *urls: str, **others: Any) -> Iterator[OpenSearchParts]:
    """The same sink, reached through other addresses."""
    settings = direct.indexes.settings.model_copy(update={"urls": urls, **others})
    sink = OpenSearchParts(OpenSearchIndexes(direct.indexes.prefix, settings, 1))
    yield sink
    sink.close()


def held(sink: OpenSearchParts) -> list[int]:
    return sorted(int(str(stored.row["id"])) for stored in sink.scan(ORDERS))


def _is_bulk(request: BaseHTTPRequestHandler) -> bool:
    return request.path.startswith("/_bulk")


TROUBLES: list[Answer] = [
    (429, JSON, b'{"error": {"type": "es_rejected_execution_exception", "reason": "row 1"}, "status": 429}'),
    (429, JSON, b'{"error": {"type": "circuit_breaking_exception", "reason": "row 1"}, "status": 429}'),
    (503, JSON, b'{"error": {"type": "cluster_block_exception", "reason": "no master"}, "status": 503}'),
    (500, JSON, b'{"error": {"type": "null_pointer_exception", "reason": "row 1"}, "status": 500}'),
    (502, "text/html", b"<html>bad gateway: row 1</html>"),
    (504, "text/html", b"<html>row 1</html>"),
]


def test_what_passes_by_itself_is_waited_for(endpoints: Any, direct: OpenSearchParts) -> None:
    trouble: Answer | None = None

    def change(request: BaseHTTPRequestHandler, sent: bytes, send_on: Callable[[bytes], Answer]) -> Answer:
        return send_on(sent) if trouble is None or not _is_bulk(request) else trouble

    with before(endpoints.opensearch_url, change) as url, through(direct, url) as sink:
        for number, next_trouble in enumerate(TROUBLES):
            trouble = next_trouble
            with pytest.raises(Unavailable) as raised:
                sink.apply(batch(row(number), row(number + 100)))
            assert "row 1" not in str(raised.value)
        trouble = None
        assert sink.apply(batch(row(1), row(2))).applied == 2
    assert held(direct) == [1, 2]


@pytest.mark.soak
def test_items_that_found_no_room_are_sent_again_and_no_others(endpoints: Any, direct: OpenSearchParts) -> None:
    """Like a node whose queue was full in the middle of a request."""
    sizes = []

    def change(request: BaseHTTPRequestHandler, sent: bytes, send_on: Callable[[bytes], Answer]) -> Answer:
        lines = sent.splitlines(keepends=True)
        if not _is_bulk(request) or len(sizes) == 1:
            sizes.append(len(lines) // 2) if _is_bulk(request) else None
            return send_on(sent)
        sizes.append(len(lines) // 2)
        status, kind, content = send_on(b"".join(lines[:10]))
        full = {"status": 429, "error": {"type": "rejected_execution_exception", "reason": "rejected execution"}}
        items = orjson.loads(content).get("items", [{"index": {"status": 201}}] * 5)
        return (
            status,
            kind,
            orjson.dumps({"errors": True, "items": [*items, *[{"index": full}] * (len(lines) // 2 - 5)]}),
        )

    with before(endpoints.opensearch_url, change) as url, through(direct, url) as sink:
        outcome = sink.apply(batch(*(row(number) for number in range(20))))
    assert (outcome.applied, outcome.stale, list(outcome.rejections), sizes) == (20, 0, [], [20, 15])
    assert held(direct) == list(range(20))


def test_a_connection_that_ends_in_the_middle_costs_nothing_but_a_repetition(
    endpoints: Any, direct: OpenSearchParts
) -> None:
    cuts = 1

    def change(request: BaseHTTPRequestHandler, sent: bytes, send_on: Callable[[bytes], Answer]) -> Answer | None:
        nonlocal cuts
        answer = send_on(sent)
        if _is_bulk(request) and cuts:
            cuts -= 1
            return None
        return answer

    with before(endpoints.opensearch_url, change) as url, through(direct, url) as sink:
        events = batch(row(1), delete({"id": 2}, 1))
        with pytest.raises(Unavailable):
            sink.apply(events)
        outcome = sink.apply(events)
    assert (outcome.applied, outcome.stale) == (0, 2)
    assert held(direct) == [1]


def test_a_request_that_is_too_long_is_sent_in_parts_from_then_on(endpoints: Any, direct: OpenSearchParts) -> None:
    """Like a proxy before the cluster, which answers with a page of its own."""
    lengths = []

    def change(request: BaseHTTPRequestHandler, sent: bytes, send_on: Callable[[bytes], Answer]) -> Answer:
        if _is_bulk(request):
            lengths.append(len(sent))
        return (413, "text/html", b"<html>too large</html>") if len(sent) > 400_000 else send_on(sent)

    with before(endpoints.opensearch_url, change) as url, through(direct, url) as sink:
        outcome = sink.apply(batch(*(row(number, note="x" * 20_000) for number in range(100))))
        assert (outcome.applied, list(outcome.rejections)) == (100, [])
        lengths.clear()
        assert sink.apply(batch(*(row(number, 2, "x" * 20_000) for number in range(100)))).applied == 100
        assert max(lengths) < 400_000
        outcome = sink.apply(batch(row(1, 3), row(2, 3, "x" * 500_000), row(3, 3)))
        assert (outcome.applied, [refused.event.key["id"] for refused in outcome.rejections]) == (2, [2])
        assert [refused.reason for refused in outcome.rejections] == ["content_too_long"]
    assert held(direct) == list(range(100))


def test_an_index_that_takes_no_writes_stops_the_job(client: OpenSearch, direct: OpenSearchParts) -> None:
    for block in ("write", "read_only", "read_only_allow_delete"):
        client.indices.put_settings(index=index_of(direct), body={f"index.blocks.{block}": True})
        for event in (row(1), delete({"id": 1}, 1)):
            with pytest.raises(LockstepError, match="cluster_block_exception") as raised:
                direct.apply(batch(event))
            assert not isinstance(raised.value, Unavailable)
        client.indices.put_settings(index=index_of(direct), body={f"index.blocks.{block}": None})
    assert direct.apply(batch(row(1))).applied == 1


def test_a_value_that_a_field_cannot_hold_costs_its_row_alone(client: OpenSearch, endpoints: Any) -> None:
    fields = {"public.orders.note": {"type": "keyword"}}  # without a limit: Lucene's is 32766 bytes
    settings = OpenSearchSettings(urls=(endpoints.opensearch_url,), replicas=0, timeout_s=30, fields=fields)
    sink = OpenSearchParts(OpenSearchIndexes(f"t{uuid.uuid4().hex[:12]}", settings, 1))
    sink.prepare([ORDERS])
    outcome = sink.apply(batch(row(1), row(2, note="x" * 33_000), row(3)))
    assert (outcome.applied, [refused.event.key["id"] for refused in outcome.rejections]) == (2, [2])
    assert "xxx" not in outcome.rejections[0].reason
    assert held(sink) == [1, 3]
    client.indices.delete(index=f"{sink.indexes.prefix}.*")
    sink.close()


def test_another_routing_than_the_indexes_stops_the_job(client: OpenSearch, endpoints: Any) -> None:
    routed = OpenSearchSettings(urls=(endpoints.opensearch_url,), replicas=0, routing={"public.orders": ("id",)})
    sink = OpenSearchParts(OpenSearchIndexes(f"t{uuid.uuid4().hex[:12]}", routed, 1))
    sink.prepare([ORDERS])
    other = OpenSearchParts(OpenSearchIndexes(sink.indexes.prefix, routed.model_copy(update={"routing": {}}), 1))
    assert sink.apply(batch(row(1))).applied == 1
    for event in (row(1, 2), delete({"id": 1}, 2)):
        with pytest.raises(LockstepError, match="routing_missing_exception"):
            other.apply(batch(event))
    with pytest.raises(LockstepError, match="routing_missing_exception"):
        list(other.rows(ORDERS, [{"id": 1}]))
    assert held(sink) == [1]
    client.indices.delete(index=f"{sink.indexes.prefix}.*")
    sink.close()
    other.close()


# The way to the server


def _dead() -> str:
    return f"http://127.0.0.1:{ports.pick(taken=())}"


def test_a_node_that_is_down_is_passed_over(endpoints: Any, direct: OpenSearchParts) -> None:
    up = endpoints.opensearch_url
    for at, urls in enumerate([(_dead(), up), (up, _dead()), (_dead(), _dead(), up)], start=1):
        with through(direct, *urls) as sink:
            for number in range(3):
                assert sink.apply(batch(row(number, at))).applied == 1
            assert generations_of(sink).live() == 1
    with through(direct, _dead(), _dead()) as sink, pytest.raises(Unavailable, match="doesn't answer"):
        sink.apply(batch(row(1)))
