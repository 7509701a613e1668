"""The sections ``[streams.NAME]`` and ``[stream_queries.NAME]``. A query names a sink, and takes the store, the address
and the login from it, as a view does.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ConfigDict, RootModel, model_validator

from extensions.streams.settings import StreamQuerySettings, StreamSettings
from lockstep.view_sections import kind_of_sink
from sinks.registry import SinkSettings

_QUERY: Final = tuple(StreamQuerySettings.model_fields)

_OWN: Final = ("sink", *_QUERY)
"""The settings of a query's section that don't belong to its kind of sink."""

_NOT_OF_A_QUERY: Final = "a stream query has no such setting; its query says which rows and columns it has"
_OF_ITS_SINK: Final = {
    "apply": "a stream query is always applied: remove it, or say so of a sink",
    "type": "a stream query has the store of its sink: remove it, or name another sink",
}


class StreamQuerySection(StreamQuerySettings):
    """A query, and the sink of its result. ``lender`` is the section that the address comes from."""

    sink: SinkSettings
    lender: str = ""

    @property
    def query(self) -> StreamQuerySettings:
        return StreamQuerySettings(**{name: getattr(self, name) for name in _QUERY if name in self.model_fields_set})

    @model_validator(mode="after")
    def _names_no_tables(self) -> "StreamQuerySection":
        if self.sink.tables or self.sink.named_tables():
            raise ValueError("it has one table, its result: remove the settings that name tables")
        return self

    @model_validator(mode="after")
    def _is_in_postgresql(self) -> "StreamQuerySection":
        # A row is final once written, and a batch that is done again must find it as it was written. No test shows this
        # for other stores, and Redis may forget rows and has no fence.
        if not self.sink.takes_sql:
            raise ValueError("a stream query's result is in a warehouse in PostgreSQL: name such a sink")
        return self


class Streams(RootModel[dict[str, StreamSettings]]):
    model_config = ConfigDict(frozen=True)

    root: dict[str, StreamSettings] = {}


class StreamQueries(RootModel[dict[str, StreamQuerySection]]):
    model_config = ConfigDict(frozen=True)

    root: dict[str, StreamQuerySection] = {}


def with_stream_queries(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The document with each query's settings completed from its sink, and problems that the models won't find. A query
    with such a problem is left out. A query that already has its sink's settings stays as it is.
    """
    sections, sinks = document.get("stream_queries"), document.get("sinks", {})
    if not isinstance(sections, dict) or not isinstance(sinks, dict):
        return dict(document), []
    problems, made = list[str](), dict[str, Any]()
    for name, section in sections.items():
        at = f"stream_queries.{name}"
        if not isinstance(section, dict):
            problems.append(f"{at}: must be a section, or a table in {{ }}")
            continue
        lender = section.get("sink")
        if isinstance(lender, dict) and "lender" in section:  # already complete
            made[name] = section
            continue
        if lender is not None and not isinstance(lender, str):
            problems.append(f"{at}.sink: must be the name of a sink")
            continue
        if lender is None or not isinstance(sinks.get(lender), dict):
            problems.append(
                f"{at}.sink: is missing" if lender is None
                else f"{at}.sink: there is no section [sinks.{lender}], whose store it would take"
            )  # fmt: skip
            continue
        kind = kind_of_sink(sinks[lender])
        if kind is None:  # reported for the sink itself
            continue
        refused = [setting for setting in section if setting in kind.NOT_OF_VIEWS | {"tables", "view", "lender"}]
        problems += [f"{at}.{setting}: {_NOT_OF_A_QUERY}" for setting in refused]
        problems += [f"{at}.{setting}: {why}" for setting, why in _OF_ITS_SINK.items() if setting in section]
        taken_over = {key: value for key, value in sinks[lender].items() if key not in kind.OWN | {"apply"}}
        own = {key: value for key, value in section.items() if key not in (*_OWN, *_OF_ITS_SINK, *refused)}
        query = {key: section[key] for key in _QUERY if key in section}
        made[name] = query | {"sink": taken_over | own, "lender": lender}
    return {**document, "stream_queries": made}, problems
