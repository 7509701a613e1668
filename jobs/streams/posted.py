"""What of a result's rows was posted to its webhook, and what is posted of a row. Pure."""

import hashlib
from dataclasses import dataclass
from typing import Any, Self

import orjson

from cdc.model.event import JsonValue


@dataclass(frozen=True, slots=True)
class Posted:
    """How far the rows of one build are posted. Kept with the result.

    ``offset`` is the next one of the result's topic, whose id is ``topic_id``; "" before the first row. ``posted``
    counts receipts. ``waiting`` are rows that weren't taken yet, as of the last look at the topic, and an upper bound.
    While the receiver takes none, ``reason`` says why, since ``since_ms`` in milliseconds since 1970.
    """

    topic_id: str = ""
    offset: int = 0
    posted: int = 0
    waiting: int = 0
    since_ms: int | None = None
    reason: str = ""

    def to_json(self) -> dict[str, JsonValue]:
        return {
            "topic_id": self.topic_id,
            "offset": self.offset,
            "posted": self.posted,
            "waiting": self.waiting,
            "since_ms": self.since_ms,
            "reason": self.reason,
        }

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """That of a coordination record; nothing is posted where there is none."""
        return cls() if text is None else cls(**orjson.loads(text))

    def text(self) -> str:
        return orjson.dumps(self.to_json()).decode()


def posted_document(*, pipeline: str, query: str, generation: int, key: bytes, row: bytes) -> bytes:
    """What is posted of a row. ``key`` and ``row`` are JSON, as on the topic.

    The id is the key's: posted again, also of another build, a row has the same one.
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
