"""Who may write a view in a real OpenSearch: the previous writer's requests are rejected, however late they come."""

import http.client
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from opensearchpy import OpenSearch

from cdc.model.errors import Fenced, Unavailable
from sinks.contract import OpenedSink
from sinks.opensearch.questions import why_late_writes_are_unseen
from sinks.opensearch.settings import OpenSearchSettings
from sinks.opensearch.sink import open_opensearch
from sinks.view_settings import ViewSettings
from tests.builders import batch, tag
from tests.contract.items import ITEMS, item, rows_of
from tests.databases import until
from tests.proxies import JSON, Answer, before

pytestmark = pytest.mark.live

VIEW = ViewSettings(name="items", key=("id",), sql="select id, note, number from items")


@pytest.fixture
def writers(endpoints: Any, name: str, client: OpenSearch) -> Iterator[tuple[OpenedSink, OpenedSink]]:
    settings = OpenSearchSettings(urls=(endpoints.opensearch_url,), replicas=0, timeout_s=10, view=VIEW)
    older, newer = (open_opensearch(name, settings, 1) for _ in range(2))
    older.sink.prepare([ITEMS])
    yield older, newer
    older.sink.close()
    newer.sink.close()
    client.indices.delete(index=f"{name}.*")


def _index(name: str) -> str:
    return f"{name}.public.items_g1"


def _bulk(name: str, fence: int) -> bytes:
    """A row as the writer with this fence sends it."""
    action = {"index": {"_index": f"{_index(name)}_W{fence}", "_id": "1", "version": 1, "version_type": "external"}}
    row = {"id": 1, "note": "late", "_tag": tag(1)}
    return b"".join(orjson.dumps(line) + b"\n" for line in (action, row))


def test_a_request_that_was_sent_by_half_before_another_job_took_over_is_refused(
    writers: tuple[OpenedSink, OpenedSink], endpoints: Any, name: str
) -> None:
    older, newer = writers
    body = _bulk(name, older.sink.claim())
    address = urlsplit(endpoints.opensearch_url)
    assert address.hostname is not None
    request = http.client.HTTPConnection(address.hostname, address.port)
    request.putrequest("POST", "/_bulk?require_alias=true")
    request.putheader("content-type", "application/x-ndjson")
    request.putheader("content-length", str(len(body)))
    request.endheaders(body[:-10])
    newer.sink.claim()
    assert rows_of(newer.sink) == {}
    request.send(body[-10:])
    answer = orjson.loads(request.getresponse().read())
    request.close()
    assert [item["index"]["error"]["type"] for item in answer["items"]] == ["index_not_found_exception"]
    assert rows_of(newer.sink) == {}


def test_a_request_that_the_cluster_has_begun_is_waited_for(
    writers: tuple[OpenedSink, OpenedSink], client: OpenSearch, name: str
) -> None:
    """It has found the index already, and waits for a replica that doesn't exist."""
    older, newer = writers
    body = _bulk(name, older.sink.claim())
    client.indices.put_settings(index=_index(name), body={"index": {"number_of_replicas": 1}})
    waits_for_all = {"require_alias": "true", "wait_for_active_shards": "all"}
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(client.bulk, body=body, params=waits_for_all)
        parts = {"actions": "indices:data/write/bulk[s]*", "detailed": "true"}
        until(lambda: _index(name) in str(client.tasks.list(params=parts)))
        for _ in range(2):
            with pytest.raises(Unavailable, match="still under way"):
                newer.sink.claim()
        client.indices.put_settings(index=_index(name), body={"index": {"number_of_replicas": 0}})
        assert not late.result()["errors"]
    fence = newer.sink.claim()
    assert rows_of(newer.sink) == {"(1,)": "late"}  # so the newer job sees it, and removes it if it must go
    with pytest.raises(Fenced):
        older.sink.apply(batch(item(2, "later", 2), fence=fence - 1))


@pytest.mark.soak
def test_where_the_cluster_does_not_say_what_it_is_at_work_on_a_job_goes_on(
    writers: tuple[OpenedSink, OpenedSink], endpoints: Any, name: str
) -> None:
    """Like a cluster with security, where our role lacks that right."""

    def refused(request: BaseHTTPRequestHandler, body: bytes, sent_on: Callable[[bytes], Answer]) -> Answer:
        return (403, JSON, b"{}") if request.path.startswith("/_tasks") else sent_on(body)

    with before(endpoints.opensearch_url, refused) as url:
        settings = OpenSearchSettings(urls=(url,), replicas=0, timeout_s=10, view=VIEW)
        assert why_late_writes_are_unseen(name, settings) == "GET /_tasks is answered with 403"
        opened = open_opensearch(name, settings, 1)
        fence = opened.sink.claim()
        opened.sink.apply(batch(item(1, "new", 1), fence=fence))
        assert rows_of(opened.sink) == {"(1,)": "new"}
        opened.sink.close()
    older, _ = writers
    assert older.sink.fence() == fence
    assert not why_late_writes_are_unseen(name, settings.model_copy(update={"urls": (endpoints.opensearch_url,)}))
    assert not why_late_writes_are_unseen(name, OpenSearchSettings(urls=("http://127.0.0.1:1",)))


@pytest.mark.soak
def test_an_index_from_before_there_were_fences_gets_one_with_the_next_job(
    writers: tuple[OpenedSink, OpenedSink], client: OpenSearch, name: str
) -> None:
    older, newer = writers
    older.sink.apply(batch(item(1, "before", 1)))
    assert list(client.indices.get_alias(index=_index(name))[_index(name)]["aliases"]) == [
        f"{name}.public.items",
        f"{_index(name)}_W",
    ]
    fence = newer.sink.claim()
    newer.sink.apply(batch(item(2, "after", 2), fence=fence))
    with pytest.raises(Fenced):
        older.sink.apply(batch(item(3, "late", 3)))
    assert rows_of(newer.sink) == {"(1,)": "before", "(2,)": "after"}
