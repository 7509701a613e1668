"""Names of the topics of stream queries. Pure."""

import re
from typing import Final

from cdc.kafka.topic_names import control_topic, escaped

_STREAM_QUERIES: Final = "__stream_queries"


def stream_query_topic(prefix: str, query: str) -> str:
    """``<prefix>.__stream_queries.<query>``: late events of its streams, and everything else that its result lacks."""
    return f"{control_topic(prefix, _STREAM_QUERIES)}.{escaped(query)}"


def stream_result_topic(prefix: str, query: str, generation: int) -> str:
    """``<prefix>.__stream_queries.<query>.g<generation>``: the rows of a stream query's result."""
    return f"{stream_query_topic(prefix, query)}.g{generation}"


def is_stream_query_topic(prefix: str, topic: str) -> bool:
    """Whether it is the side topic or a result topic of any stream query."""
    return topic.startswith(f"{control_topic(prefix, _STREAM_QUERIES)}.")


def is_stream_result_topic(prefix: str, topic: str) -> bool:
    """Whether it is a result topic of any stream query, configured or not."""
    return re.fullmatch(rf"{re.escape(control_topic(prefix, _STREAM_QUERIES))}\.[^.]+\.g[1-9]\d*", topic) is not None


def stream_result_generation(prefix: str, query: str, topic: str) -> int | None:
    """The generation whose rows are on a result topic of this query; None for any other topic."""
    start, _, number = topic.rpartition(".g")
    is_one = is_stream_result_topic(prefix, topic) and start == stream_query_topic(prefix, query)
    return int(number) if is_one else None
