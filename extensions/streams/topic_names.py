"""Names of the topics of stream queries. Pure."""

import re
from typing import Final

from cdc.kafka.topic_names import control_topic, escaped

_STREAM_QUERIES: Final = "__stream_queries"


def stream_query_topic(prefix: str, query: str) -> str:
    """``<prefix>.__stream_queries.<query>``: late events of its streams, and what else its result lacks."""
    return f"{control_topic(prefix, _STREAM_QUERIES)}.{escaped(query)}"


def stream_result_topic(prefix: str, query: str, generation: int) -> str:
    """``<prefix>.__stream_queries.<query>.g<generation>``: the rows of a stream query's result."""
    return f"{stream_query_topic(prefix, query)}.g{generation}"


def is_stream_query_topic(prefix: str, topic: str) -> bool:
    """Whether it is of some stream query, be that its side topic or one of its results."""
    return topic.startswith(f"{control_topic(prefix, _STREAM_QUERIES)}.")


def is_stream_result_topic(prefix: str, topic: str) -> bool:
    """Whether it is the topic of the rows of some stream query, also of one that isn't configured any more."""
    return re.fullmatch(rf"{re.escape(control_topic(prefix, _STREAM_QUERIES))}\.[^.]+\.g[1-9]\d*", topic) is not None


def stream_result_generation(prefix: str, query: str, topic: str) -> int | None:
    """The generation whose rows a topic has, of a build of this query's result; None where it is no such topic."""
    start, _, number = topic.rpartition(".g")
    is_one = is_stream_result_topic(prefix, topic) and start == stream_query_topic(prefix, query)
    return int(number) if is_one else None
