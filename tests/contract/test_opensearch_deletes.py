"""What a deletion leaves behind in a real OpenSearch, and what protects it once the server has forgotten it."""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opensearchpy import OpenSearch

from sinks.contract import OpenedSink, Sink
from sinks.opensearch.settings import OpenSearchSettings
from sinks.opensearch.sink import open_opensearch
from tests.builders import batch, delete, progress, table, tag, upsert
from tests.contract.items import counts
from tests.databases import until

pytestmark = pytest.mark.live

Open = Callable[..., OpenedSink]
ORDERS = table()
WRITTEN, GONE = upsert({"id": 1, "note": "n"}, 1), delete({"id": 1}, 2)


@pytest.fixture
def name() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def open_sink(endpoints: Any, client: OpenSearch, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    opened: list[OpenedSink] = []

    def open_(gc_deletes_s: int = 1, **settings: Any) -> OpenedSink:
        for module in ("indexes", "generations"):
            monkeypatch.setattr(f"sinks.opensearch.{module}.GC_DELETES_S", gc_deletes_s)
        chosen = {"urls": (endpoints.opensearch_url,), "replicas": 0, "timeout_s": 30} | settings
        opened.append(open_opensearch(name, OpenSearchSettings(**chosen), 1))
        opened[-1].sink.prepare([ORDERS])
        return opened[-1]

    yield open_
    client.indices.delete(index=f"{name}.*")
    for each in opened:
        each.sink.close()


def _live(sink: Sink) -> list[Any]:
    return [stored.key["id"] for stored in sink.scan(ORDERS)]


def _takes(sink: Sink, client: OpenSearch, name: str, number: int) -> bool:
    """Whether a late write is taken. Servers drop old deletions while they work and refresh."""
    sink.apply(batch(upsert({"id": 2, "note": f"{number}"}, number)))
    client.indices.refresh(index=f"{name}.public.orders_g1")
    return sink.apply(batch(WRITTEN)).applied == 1


def test_a_replay_ends_right_also_where_the_server_has_forgotten_the_delete(
    client: OpenSearch, open_sink: Open, name: str
) -> None:
    """Only a lone late write would bring the row back: in the log, a row's deletion follows its earlier writes."""
    sink = open_sink().sink
    sink.apply(batch(WRITTEN))
    sink.apply(batch(GONE))
    assert sink.apply(batch(WRITTEN)).stale == 1
    attempts = iter(range(1, 1_000_000))
    until(lambda: time.sleep(0.1) or _takes(sink, client, name, next(attempts)))
    assert 1 in _live(sink)
    assert sink.apply(batch(GONE)).applied == 1
    assert 1 not in _live(sink)


def test_a_marker_is_never_forgotten_nor_found(client: OpenSearch, open_sink: Open, name: str) -> None:
    sink = open_sink(deletes="marker").sink
    sink.apply(batch(WRITTEN))
    sink.apply(batch(GONE))
    ends = time.monotonic() + 2.5
    number = 0
    while time.monotonic() < ends:
        number += 1
        assert not _takes(sink, client, name, number)
        time.sleep(0.1)
    assert _live(sink) == [2]
    index = f"{name}.public.orders"
    assert client.count(index=index)["count"] == 1
    document = client.get(index=f"{index}_g1", id="1")
    assert (document["_source"], document["_version"] > 1) == ({"_tag": GONE.tag, "_deleted": True}, True)
    assert sink.apply(batch(upsert({"id": 1, "note": "again"}, 3))).applied == 1
    assert sorted(_live(sink)) == [1, 2]


def test_a_large_transactions_markers_are_removed_once_it_is_applied_whole(
    client: OpenSearch, open_sink: Open, name: str
) -> None:
    """Beyond 4,095 changes a deletion leaves a marker, even in a sink whose deletions leave none."""
    opened = open_sink()
    sink, generations = opened.sink, opened.generations
    index = f"{name}.public.orders_g1"

    def held() -> list[str]:
        client.indices.refresh(index=index)
        generations.save_progress(progress(0x1000000 + 8 * 8, epoch=1))
        return sorted(hit["_id"] for hit in client.search(index=index)["hits"]["hits"])

    events = [delete({"id": 1}, tag(7, 5000)), delete({"id": 2}, tag(8, 5000)), upsert({"id": 3, "note": "n"}, 7)]
    assert counts(sink.apply(batch(*events))) == (3, 0, 0)
    assert _live(sink) == [3]
    until(lambda: held() == ["2", "3"])
    assert sink.apply(batch(upsert({"id": 2, "note": "late"}, tag(8, 4999)))).stale == 1
    assert counts(sink.apply(batch(*(upsert({"id": key, "note": "n"}, 13) for key in (1, 2))))) == (2, 0, 0)
    assert sorted(_live(sink)) == [1, 2, 3]


def test_a_large_transactions_deletion_is_remembered_as_long_as_any_other(
    client: OpenSearch, open_sink: Open, name: str
) -> None:
    """A restarted job doesn't remove markers at once: the writer before it may hang, and write once more."""
    opened = open_sink(gc_deletes_s=60)
    sink = opened.sink
    sink.apply(batch(upsert({"id": 1, "note": "n"}, tag(7, 5000))))
    sink.apply(batch(delete({"id": 1}, tag(7, 6000))))
    client.indices.refresh(index=f"{name}.public.orders_g1")
    for _ in range(2):
        opened.generations.save_progress(progress(0x1000000 + 8 * 8, epoch=1))
    assert counts(sink.apply(batch(upsert({"id": 1, "note": "n"}, tag(7, 5000))))) == (0, 1, 0)
    assert _live(sink) == []


def test_a_change_that_comes_after_its_transactions_markers_were_removed_is_written(
    client: OpenSearch, open_sink: Open, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was rejected before, or the log is read again. What a later transaction has deleted stays deleted."""
    opened = open_sink(gc_deletes_s=60)
    sink, index = opened.sink, f"{name}.public.orders_g1"
    monkeypatch.setattr("sinks.opensearch.generations.GC_DELETES_S", 0)

    def is_removed() -> bool:
        client.indices.refresh(index=index)
        opened.generations.save_progress(progress(0x1000000 + 8 * 8, epoch=1))
        return not client.exists(index=index, id="1")

    sink.apply(batch(delete({"id": 1}, tag(7, 5000)), delete({"id": 2}, tag(7, 5001))))
    until(is_removed)
    sink.apply(batch(upsert({"id": 2, "note": "n"}, 13)))
    sink.apply(batch(delete({"id": 2}, 14)))
    late = [upsert({"id": key, "note": "late"}, tag(7, 6000)) for key in (1, 2)]
    assert counts(sink.apply(batch(*late))) == (1, 1, 0)
    assert counts(sink.apply(batch(*late))) == (0, 2, 0)
    assert _live(sink) == [1]
    assert counts(sink.apply(batch(upsert({"id": 1, "note": "n"}, tag(7, 6001))))) == (1, 0, 0)
    assert counts(sink.apply(batch(upsert({"id": 1, "note": "n"}, 12)))) == (1, 0, 0)
