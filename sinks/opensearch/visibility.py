"""Which documents of a generation searches find: those from before the last refresh of each shard."""

from typing import Final

from sinks.capabilities.refreshing import Refreshes, Refreshing
from sinks.opensearch.indexes import OpenSearchIndexes

_FIELDS: Final = (
    "indices.*.shards.*.routing.node,indices.*.shards.*.refresh.external_total,"
    "indices.*.shards.*.segments.index_writer_memory_in_bytes"
)


class OpenSearchRefreshing(Refreshing):
    """A part is a copy of a shard. Unrefreshed documents are in the index writer's memory, which a refresh empties."""

    def __init__(self, indexes: OpenSearchIndexes) -> None:
        self._indexes = indexes

    def refresh(self) -> None:
        self._indexes.refresh(self._indexes.of_generation)

    def refreshes(self) -> Refreshes:
        answer = self._indexes.client.call(
            "GET",
            f"/{self._indexes.of_generation}/_stats/refresh,segments",
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
