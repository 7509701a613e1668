"""Which of the documents of a generation searches find: those from before the last refresh of each shard."""

from typing import Final

from sinks.contract import Refreshes
from sinks.opensearch.indexes import OpenSearchIndexes

_FIELDS: Final = (
    "indices.*.shards.*.routing.node,indices.*.shards.*.refresh.external_total,"
    "indices.*.shards.*.segments.index_writer_memory_in_bytes"
)


def refreshes(indexes: OpenSearchIndexes) -> Refreshes:
    """How often each copy of each shard was refreshed, and which of them hold documents that no search finds yet.

    Those are in the memory of the index writer, which a refresh empties. Raises as ``OpenSearchClient.call``.
    """
    answer = indexes.client.call(
        "GET",
        f"/{indexes.prefix}.*_g{indexes.generation}/_stats/refresh,segments",
        parameters={"level": "shards", "filter_path": _FIELDS},
    )
    counts, waiting = {}, []
    for index, stats in (answer or {}).get("indices", {}).items():
        for number, copies in stats["shards"].items():
            for copy in copies:
                part = f"{index} {number} {copy['routing']['node']}"
                counts[part] = copy["refresh"]["external_total"]
                if copy["segments"]["index_writer_memory_in_bytes"]:
                    waiting.append(part)
    return Refreshes(counts, waiting)
