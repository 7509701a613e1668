"""Removes what OpenSearch keeps of a deleted document: its marker, and its remains in segments.

A deleted document stays in its segment until that is merged. A merge keeps it while copies of the shard may need it to
catch up (retention leases). Leases advance up to half a minute after a flush. So everything deleted before a moment is
gone once two things have happened: all leases have passed the newest change of that moment; and after that, a merge of
all segments with deletions has begun and ended in every copy.

OpenSearch answers for the shards that it reaches, and at most reports the others as missing. So each answer is checked.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from cdc.model.event import JsonValue
from cdc.model.table import Table
from sinks.capabilities.erasing import Erasing, Leftover
from sinks.opensearch.answers import require_all, unreadable, unserved
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.mapping import DELETED_FIELD, TAG_FIELD
from sinks.opensearch.reading import WHOLE, identity_of, whole
from sinks.opensearch.shard_copies import STATE_FIELDS, Copies, copies_of

_ALLOWED: Final = "index.merge.policy.expunge_deletes_allowed"
"""Such a merge skips a segment with at most this percentage of deleted documents."""

_KEPT: Final = "index.soft_deletes.retention.operations"

_UNMERGED: Final = Leftover("deleted documents that the index hasn't merged away, maybe this one", has_values=True)

_AWAY: Final = Leftover("a copy of a shard that isn't in service, maybe with this document", has_values=True)

_ALL: Final = ""
"""Stands for a document's identity and means everything that was deleted."""

_PAGE: Final = 500

_Shards = dict[tuple[str, int], int]


class OpenSearchErasing(Erasing):
    """Erases documents of one generation. Remembers, for each index, up to which change everything deleted must go."""

    def __init__(self, indexes: OpenSearchIndexes) -> None:
        self._indexes = indexes
        self._client = indexes.client
        self._newest: dict[tuple[str, str], _Shards] = {}
        self._merged: set[tuple[str, str]] = set()

    def leftovers(self, table: Table, key: Mapping[str, JsonValue] | None) -> list[Leftover]:
        """The document or its marker, and what may be left of it in the index's segments."""
        self._indexes.bookkeeping.check_format()
        index = self._indexes.index(table.name)
        if self._indexes.held(index) is None:
            return []
        if key is None:
            return self._of_all(index, None)
        identity = self._identity(table, key)
        document = self._document(index, identity)
        if document is not None:
            is_mark = bool(document["_source"].get(DELETED_FIELD))
            return [Leftover("the mark of its deletion" if is_mark else "the document", has_values=not is_mark)]
        return self._in_segments(index, (index, str(identity)))

    def erase(self, table: Table, key: Mapping[str, JsonValue] | None, *, below: str | None) -> list[Leftover]:
        self._indexes.bookkeeping.check_format()
        index = self._indexes.index(table.name)
        if self._indexes.held(index) is None:
            return []
        if key is None:
            return self._erase_all(index, below)
        identity = self._identity(table, key)
        document = self._document(index, identity)
        if document is not None:
            source = document["_source"]
            if below is None or not source.get(DELETED_FIELD) or source[TAG_FIELD] >= below:
                return self.leftovers(table, key)
            self._delete(index, identity, document["_version"])
            self._indexes.refresh(index)
        about = (index, str(identity))
        if about not in self._merged and self._merge_away(index, about):
            self._merged.add(about)
        return self.leftovers(table, key)

    def _delete(self, index: str, identity: Mapping[str, str], version: int) -> None:
        """Delete a marker of this version. A newer event that has come since stays."""
        parameters = {"version": str(version), "version_type": "external_gte"}
        if "routing" in identity:
            parameters["routing"] = identity["routing"]
        path = f"/{index}/_doc/{quote(identity['_id'], safe='')}"
        self._client.call("DELETE", path, parameters=parameters, missing_ok=True)

    def _erase_all(self, index: str, below: str | None) -> list[Leftover]:
        """Delete all markers with tags less than ``below``, and have everything deleted merged away."""
        if below is not None and (index, _ALL) not in self._newest:
            while markers := self._markers(index, below):
                for hit in markers:
                    self._delete(index, identity_of(hit), hit["_version"])
                self._indexes.refresh(index)
        if (index, _ALL) not in self._merged and self._merge_away(index, (index, _ALL)):
            self._merged.add((index, _ALL))
        return self._of_all(index, below)

    def _of_all(self, index: str, below: str | None) -> list[Leftover]:
        self._indexes.refresh(index)
        has_markers = bool(self._markers(index, below))
        markers = [Leftover("marks of deleted documents, with their keys", has_values=True)] if has_markers else []
        return [*markers, *self._in_segments(index, (index, _ALL))]

    def _in_segments(self, index: str, about: tuple[str, str]) -> list[Leftover]:
        """What copies may still hold of deleted documents. A copy that missed the merge still has everything."""
        if about in self._merged:
            return []
        away = [_AWAY] if self._copies(index).has_others else []
        return [_UNMERGED, *away] if self._has_deletions(index) else away

    def _markers(self, index: str, below: str | None) -> list[Mapping[str, Any]]:
        """Some of the markers with tags less than ``below``; None: of any."""
        conditions: list[Mapping[str, Any]] = [{"term": {DELETED_FIELD: True}}]
        if below is not None:
            conditions.append({"range": {TAG_FIELD: {"lt": below}}})
        query = {"query": {"bool": {"filter": conditions}}, "_source": False, "version": True, "size": _PAGE}
        answer = self._client.call("POST", f"/{index}/_search", query, WHOLE)
        hits: list[Mapping[str, Any]] = whole(answer)["hits"]["hits"]
        return hits

    def _merge_away(self, index: str, about: tuple[str, str]) -> bool:
        """Whether everything that was deleted at the first call for it is gone. Begins the work that this needs."""
        shards = list(self._shards(index))
        if about not in self._newest:
            newest: _Shards = {}
            for shard, _, newest_change in shards:
                newest[shard] = max(newest_change, newest.get(shard, -1))
            self._newest[about] = newest
        self._of_all_shards("POST", f"/{index}/_flush", {"force": "true", "wait_if_ongoing": "true"})
        copies = self._copies(index)
        if copies.has_others:
            return False
        if any(kept_from <= self._newest[about].get(shard, -1) for shard, kept_from, _ in self._shards(index)):
            return False
        settings = f"/{index}/_settings"
        self._client.call("PUT", settings, {_ALLOWED: "0.0"})
        try:
            merged = self._of_all_shards("POST", f"/{index}/_forcemerge", {"only_expunge_deletes": "true"})
        finally:
            self._client.call("PUT", settings, {_ALLOWED: None})
        self._indexes.refresh(index)
        # A copy that came or went during this may not have merged, or may have been filled from an unmerged one.
        return bool(merged["_shards"]["successful"] == len(copies.started)) and self._copies(index) == copies

    def _of_all_shards(self, method: str, path: str, parameters: Mapping[str, str]) -> Any:
        """Raises as ``require_all`` does."""
        return require_all(self._client.call(method, path, parameters=parameters))

    def _copies(self, index: str) -> Copies:
        path = f"/_cluster/state/metadata,routing_table/{index}"
        return copies_of(self._client.call("GET", path, parameters={"filter_path": STATE_FIELDS}), index)

    def _shards(self, index: str) -> Iterator[tuple[tuple[str, int], int, int]]:
        """Of each copy of a shard: its name, the change from which deleted documents are kept, its newest change."""
        held = self._client.call("GET", f"/{index}/_settings", parameters={"flat_settings": "true"})
        more = int(held[index]["settings"].get(_KEPT, 0))
        answer = self._of_all_shards("GET", f"/{index}/_stats/docs", {"level": "shards"})
        shards = answer["indices"].get(index, {"shards": {}})["shards"]
        if len(shards) != int(held[index]["settings"]["index.number_of_shards"]):
            raise unserved()
        for number, copies in shards.items():
            for copy in copies:
                numbers = copy["seq_no"]
                leases = [lease["retaining_seq_no"] for lease in copy["retention_leases"]["leases"]]
                kept_from = min([numbers["global_checkpoint"] + 1 - more, *leases])
                yield (index, int(number)), kept_from, numbers["max_seq_no"]

    def _has_deletions(self, index: str) -> bool:
        answer = self._of_all_shards("GET", f"/{index}/_stats/docs", {})
        return bool(answer["_all"]["total"]["docs"]["deleted"])

    def _identity(self, table: Table, key: Mapping[str, JsonValue]) -> dict[str, str]:
        return self._indexes.look_up_in(table).identity({name: key[name] for name in table.key})

    def _document(self, index: str, identity: Mapping[str, str]) -> Mapping[str, Any] | None:
        answer = self._client.call("POST", f"/{index}/_mget", {"docs": [identity]})
        document: Mapping[str, Any] = answer["docs"][0]
        if "error" in document:
            raise unreadable(document["error"])
        return document if document.get("found") else None
