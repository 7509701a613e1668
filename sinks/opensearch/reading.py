"""Reads documents of an index: by a query as of the last refresh, or by their ids as of now."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import orjson

from cdc.model.errors import LockstepError, Unavailable
from sinks.opensearch.answers import RETRY_AFTER_S, unreadable
from sinks.opensearch.client import OpenSearchClient
from sinks.page_size import PageSize

_FOUND_AT_ONCE: Final = 2000
_KEEP_ALIVE: Final = "5m"

WHOLE: Final[Mapping[str, str]] = {"allow_partial_search_results": "false"}
"""Parameters of a search: if one shard refuses, the whole search fails with the reason."""

DOCUMENTS_MAX: Final = 1000
"""How many documents one request looks up."""


def found(client: OpenSearchClient, index: str, query: Mapping[str, Any]) -> Iterator[Sequence[Mapping[str, str]]]:
    """The identities of documents that match a query, in groups, in no particular order.

    Only ids, since a page of documents may have any size. As of the last refresh. Raises as ``whole`` does.
    """
    asked = {"size": _FOUND_AT_ONCE, "sort": ["_doc"], "query": query, "_source": False}
    page = client.call("POST", f"/{index}/_search", asked, {"scroll": _KEEP_ALIVE, **WHOLE})
    try:
        while whole(page)["hits"]["hits"]:
            yield [identity_of(hit) for hit in page["hits"]["hits"]]
            again = {"scroll": _KEEP_ALIVE, "scroll_id": page["_scroll_id"]}
            page = client.call("POST", "/_search/scroll", again)
    finally:
        with suppress(LockstepError):  # the server ends it by itself, and the error to report is the earlier one
            client.call("DELETE", "/_search/scroll", {"scroll_id": [page["_scroll_id"]]}, missing_ok=True)


def looked_up(
    client: OpenSearchClient,
    index: str,
    documents: Sequence[Mapping[str, str]],
    page_size: PageSize,
    *,
    is_routed: bool,
) -> Iterator[tuple[Mapping[str, str], Mapping[str, Any]]]:
    """Those of these documents that exist, each with its ``_source``. Each request has a bounded number of bytes.

    By id, hence as of now: the server also looks at what it hasn't refreshed. ``page_size`` has at most
    ``DOCUMENTS_MAX`` rows. Raises as ``unreadable`` does.
    """
    begin = 0
    while portion := documents[begin : begin + page_size.rows]:
        begin += len(portion)
        wanted = {"docs": portion} if is_routed else {"ids": [document["_id"] for document in portion]}
        answer = client.call("POST", f"/{index}/_mget", wanted)
        size = 0
        for identity, document in zip(portion, answer["docs"], strict=True):
            if "error" in document:
                raise unreadable(document["error"])
            if document["found"]:
                size += len(orjson.dumps(document["_source"]))
                yield identity, document["_source"]
        page_size.learn(len(portion), size)


def identity_of(hit: Mapping[str, Any]) -> Mapping[str, str]:
    """By what a document is found again."""
    return {"_id": hit["_id"], **({"routing": hit["_routing"]} if "_routing" in hit else {})}


def whole(page: Any) -> Any:
    """A page of results. Raises Unavailable if a shard couldn't answer: OpenSearch reports success nevertheless."""
    if page["_shards"]["failed"] or page.get("timed_out"):
        raise Unavailable("opensearch can't read all shards of an index now", retry_after_s=RETRY_AFTER_S)
    return page
