"""The bookkeeping index of an OpenSearch sink: progress, coordination records and the stored format."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sinks.opensearch.answers import unreadable
from sinks.opensearch.client import OpenSearchClient
from sinks.opensearch.names import BOOKKEEPING
from sinks.stored_format import STORED_FORMAT, check_stored_format

_EARLIER: Final = "lockstep_progress"
_DOCUMENTS_MAX: Final = 10_000  # max_result_window; a pipeline has a handful
# Documents are read by id, which needs no refresh. They are listed after an explicit refresh.
_NEVER: Final = "-1"
_NO_INDEX: Final = "index_not_found_exception"


class Held(NamedTuple):
    """A document, and the server's identity of this version of it."""

    source: Any
    seq_no: int
    primary_term: int


class Bookkeeping:
    """The documents of one sink's bookkeeping index. Every method raises LockstepError for another stored format."""

    def __init__(self, client: OpenSearchClient, name: str, *, prefix: str, replicas: int) -> None:
        self._client = client
        self._name = name
        self._prefix = prefix
        self.index = f"{prefix}.{BOOKKEEPING}"
        self._replicas = replicas
        self._format_is_checked = False

    def check_format(self) -> None:
        """Raise LockstepError if the stored data has another format. Asks the cluster once."""
        if self._format_is_checked:
            return
        lenient = {"ignore_unavailable": "true", "allow_no_indices": "true"}
        earlier = f"{self._prefix}.{_EARLIER}"
        answer = self._client.call("GET", f"/{self.index},{earlier}/_mapping", parameters=lenient)
        if self.index in answer:
            meta = answer[self.index]["mappings"].get("_meta") or {}
            check_stored_format(self._name, int(meta.get("lockstep_stored_format", 1)), elsewhere="prefix")
        elif earlier in answer:
            check_stored_format(self._name, 1, elsewhere="prefix")
        self._format_is_checked = True

    def create_index(self) -> None:
        self.check_format()
        index_mapping = {"dynamic": False, "_meta": {"lockstep_stored_format": STORED_FORMAT}}
        settings = {"number_of_replicas": self._replicas, "number_of_shards": 1, "refresh_interval": _NEVER}
        self._client.create_index(self.index, index_mapping, settings)

    def load(self, document: str) -> Any:
        """A document's ``_source``, or None if there is none of that id."""
        held = self.held(document)
        return None if held is None else held.source

    def held(self, document: str) -> Held | None:
        """A document in its present version, or None if there is none of that id."""
        self.check_format()
        # From the primary: a replica may lag, and what it lacks would look lost.
        primary = {"preference": "_primary"}
        answer = self._client.call("GET", self._path(document), parameters=primary, missing_ok=True)
        if not answer or not answer.get("found"):
            return None
        return Held(answer["_source"], answer["_seq_no"], answer["_primary_term"])

    def load_all(self, documents: Sequence[str]) -> dict[str, Any]:
        """The ``_source`` of those of these documents that exist, by id."""
        self.check_format()
        if not documents:
            return {}
        path = f"/{self.index}/_mget"
        answer = self._client.call("POST", path, {"ids": list(documents)}, {"preference": "_primary"})
        for document in answer["docs"]:
            if "error" in document and document["error"]["type"] != _NO_INDEX:
                raise unreadable(document["error"])
        return {document["_id"]: document["_source"] for document in answer["docs"] if document.get("found")}

    def save(self, document: str, source: Any) -> None:
        """Store a document. The index must exist."""
        self.check_format()
        self._client.call("PUT", f"/{self.index}_W/_doc/{document}", source, {"require_alias": "true"})

    def save_version(self, document: str, source: Any, version: int) -> bool:
        """Store a document unless it has a greater version; returns whether. The index must exist.

        A document that is stored like this is never stored without a version.
        """
        self.check_format()
        external = {"require_alias": "true", "version": str(version), "version_type": "external_gte"}
        path, newer = f"/{self.index}_W/_doc/{document}", ("version_conflict_engine_exception",)
        return self._client.call("PUT", path, source, external, passing_errors=newer) is not None

    def create(self, document: str, source: Any) -> bool:
        """Store a document unless one of that id exists. Returns whether it was stored. The index must exist."""
        return self.replace(document, None, source)

    def replace(self, document: str, held: Held | None, source: Any) -> bool:
        """Store a document if the present one is still ``held`` (None: none). Returns whether it was stored."""
        return self.replaced(document, held, source) is not None

    def replaced(self, document: str, held: Held | None, source: Any) -> Held | None:
        """Like ``replace``, but returns the new document, or None. If the index is gone, so is ``held``."""
        self.check_format()
        parameters = {"require_alias": "true"}
        changed: tuple[str, ...] = ("version_conflict_engine_exception",)
        if held is None:
            path = f"/{self.index}_W/_create/{document}"
        else:
            path = f"/{self.index}_W/_doc/{document}"
            parameters |= {"if_seq_no": str(held.seq_no), "if_primary_term": str(held.primary_term)}
            changed = (*changed, "index_not_found_exception")
        answer = self._client.call("PUT", path, source, parameters, passing_errors=changed)
        return None if answer is None else Held(source, answer["_seq_no"], answer["_primary_term"])

    def remove(self, document: str) -> None:
        self.check_format()
        self._client.call("DELETE", self._path(document), missing_ok=True)

    def documents(self, beginning: str) -> list[str]:
        self.check_format()
        if self._client.call("POST", f"/{self.index}/_refresh", missing_ok=True) is None:
            return []
        everything = {"size": _DOCUMENTS_MAX, "_source": False, "query": {"match_all": {}}}
        answer = self._client.call("POST", f"/{self.index}/_search", everything)
        return [hit["_id"] for hit in answer["hits"]["hits"] if hit["_id"].startswith(beginning)]

    def _path(self, document: str) -> str:
        return f"/{self.index}/_doc/{document}"
