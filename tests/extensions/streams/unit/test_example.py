"""What the file of ``lockstep init`` shows of stream queries."""

import re
import tomllib
from typing import Any

from extensions.streams.extension import STREAMS
from extensions.streams.settings import PatternSettings, StepSettings, StreamQuerySettings, StreamSettings


def _document() -> dict[str, Any]:
    lines = (line.removeprefix("# ") for line in STREAMS.example.splitlines())
    return tomllib.loads("\n".join(line for line in lines if re.match(r"\[|[a-z_]+ = ", line)))


def test_a_stream_and_a_query_over_it_have_all_of_their_settings_in_it() -> None:
    [stream] = _document()["streams"].values()
    assert stream.keys() == StreamSettings.model_fields.keys()
    queries = _document()["stream_queries"].values()
    assert {name for query in queries for name in query} == {"sink", *StreamQuerySettings.model_fields}
    [pattern] = [query["pattern"] for query in queries if "pattern" in query]
    assert pattern.keys() == PatternSettings.model_fields.keys()
    assert {name for step in pattern["steps"] for name in step} == StepSettings.model_fields.keys()
    for query in queries:
        StreamQuerySettings.model_validate({name: value for name, value in query.items() if name != "sink"})
