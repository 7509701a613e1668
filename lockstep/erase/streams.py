"""Stream queries that may have a row: what they have read of it stays, by keys of their own, and is told of. Pure."""

import re
from collections.abc import Callable
from typing import Final

from cdc.kafka.topic_names import stream_query_topic
from jobs.streams.settings import StreamQuerySettings
from lockstep.config import Config
from lockstep.erase.report import Place

_HAS_READ: Final = (
    "it reads {topics}, which has or may have had values of the row. Its result is final, and its checkpoint and topic"
    " {side} keep events by keys of their own. Delete what its result has by hand; `lockstep streams rebuild {query}`"
    " then builds it again from what the topics still hold. Delete records of {side} by hand"
)


def places_of_queries(config: Config, has_had: Callable[[str], bool]) -> list[Place]:
    """A place for each query over a stream whose topic ``has_had`` the row, or what the row has led to."""
    topic_of = {name: stream.topic for name, stream in config.streams.items() if has_had(stream.topic)}
    places = []
    for query, section in config.stream_queries.items():
        topics = [topic for name, topic in topic_of.items() if _reads(section, name)]
        if topics:
            side = stream_query_topic(config.pipeline.name, query)
            why = _HAS_READ.format(topics=", ".join(sorted(topics)), side=side, query=query)
            places.append(Place(f"stream query {query}", unasked=why))
    return places


def _reads(query: StreamQuerySettings, stream: str) -> bool:
    """Whether a query names a stream."""
    if query.pattern is not None:
        return stream in query.pattern.streams
    return re.search(rf"\b{re.escape(stream)}\b", query.sql or "") is not None
