"""How far a result's rows are posted to its webhook, and the document that is posted for a row. Pure."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Self

import orjson

from cdc.model.event import JsonValue


@dataclass(frozen=True, slots=True)
class Posted:
    """How far the rows of one build are posted. Stored with the result.

    ``offset`` is the next one of the result's topic with the id ``topic_id``, "" before the first row. ``posted``
    counts receipts, ``rejected`` rows that were refused for good. ``waiting`` is an upper bound of the rows left, as of
    the last read of the topic. While the receiver takes none, ``reason`` says why, since ``since_ms``, in ms since
    1970.
    """

    topic_id: str = ""
    offset: int = 0
    posted: int = 0
    waiting: int = 0
    since_ms: int | None = None
    reason: str = ""
    rejected: int = 0

    def to_json(self) -> dict[str, JsonValue]:
        return {
            "topic_id": self.topic_id,
            "offset": self.offset,
            "posted": self.posted,
            "waiting": self.waiting,
            "since_ms": self.since_ms,
            "reason": self.reason,
            "rejected": self.rejected,
        }

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """From a coordination record; without one, nothing is posted."""
        return cls() if text is None else cls(**orjson.loads(text))

    def text(self) -> str:
        return orjson.dumps(self.to_json()).decode()


def kept_back(at: Posted, reason: str, *, now_ms: int) -> Posted:
    """The same with a reason why nothing gets through. ``since_ms`` stays that of the first reason."""
    return replace(at, reason=reason, since_ms=at.since_ms or now_ms)


def going_on(at: Posted, *, topic_id: str | None, begin: int, end: int) -> tuple[Posted, str]:
    """Where to go on in a result's topic as it is now, and why rows may be lost ("" if none may be). ``topic_id`` is
    None if there is no topic. ``begin`` is its first offset, ``end`` the one after its last.
    """
    if topic_id is None:
        if at.topic_id == "":  # a build from before the webhook was set
            return at, ""
        return _anew(at), "their topic is gone"
    lost = ""
    if at.topic_id not in ("", topic_id):
        at, lost = _anew(at), "their topic was removed and made anew"
    elif at.offset > end:
        at, lost = _anew(at), "their topic ends before what was posted of it"
    if at.offset < begin:
        at, lost = replace(at, offset=begin), lost or "the first records of their topic were deleted"
    return replace(at, topic_id=topic_id, waiting=max(0, end - at.offset)), lost


def _anew(at: Posted) -> Posted:
    """From the beginning of another topic, with the same counts."""
    return Posted(posted=at.posted, rejected=at.rejected)


def refused_row(answer: str) -> str:
    """The reason of a rejection, from the status of the webhook's answer."""
    return f"{answer}: the webhook refuses the row"


def posted_document(*, pipeline: str, query: str, generation: int, key: bytes, row: bytes) -> bytes:
    """The document that is posted for a row. ``key`` and ``row`` are JSON, as on the topic. Its id comes from the key:
    a row that is posted again, also from another build, has the same id.
    """
    digest = hashlib.sha256(key).hexdigest()[:32]
    document: dict[str, Any] = {
        "id": f"{pipeline}/{query}/{digest}",
        "pipeline": pipeline,
        "stream_query": query,
        "generation": generation,
        "key": orjson.Fragment(key),
        "row": orjson.Fragment(row),
    }
    return orjson.dumps(document)
