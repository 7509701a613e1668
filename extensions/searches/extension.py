"""Standing searches, as Lockstep gets them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from extensions.searches import cli
from lockstep.extension import Extension, Group, KeyedTopic, Reached

if TYPE_CHECKING:
    from cdc.model.event import JsonValue
    from cdc.model.finding import Finding
    from cdc.model.table import TableName
    from cdc.settings import Settings
    from lockstep.config import Config
    from monitor.metrics.definitions import Definition
    from monitor.watching import Watch

_EXAMPLE: Final = """\
# Standing searches over documents in OpenSearch: docs/searches.md.
# [searches]
# sinks = ["search"]                       # whoever waits for their searches is told by `lockstep run`
"""


def _sections() -> "Mapping[str, type[Settings]]":
    from extensions.searches.settings import SearchesSettings

    return {"searches": SearchesSettings}


def _problems(config: "Config") -> "Iterable[str]":
    from extensions.searches.searchable import problems

    return problems(config)


def _processes(config: "Config") -> Sequence[Sequence[str]]:
    from extensions.searches.settings import SearchesSettings

    return [("searches", "watch")] if config.section(SearchesSettings).sinks else []


def _doctor(reached: Reached, config: "Config") -> "Iterable[Finding]":
    from extensions.searches.doctor import check_searches

    return check_searches(config, sinks=reached.sinks) if reached.kafka else []


def _metrics() -> "Sequence[Definition]":
    from extensions.searches.watch import METRICS

    return METRICS


def _watch(config: "Config") -> "Watch":
    from extensions.searches.watch import SearchesWatch

    return SearchesWatch.of(config)


def _keyed_topics(config: "Config", table: "TableName", key: "Mapping[str, JsonValue]") -> Iterable[KeyedTopic]:
    from extensions.searches.erasing import MatchesOfRow

    return [MatchesOfRow(config, table, key)]


SEARCHES: Final = Extension(
    name="searches",
    groups=[
        Group(
            "searches",
            "Standing searches: who is told of documents that match a query.",
            {"add": cli.add, "list": cli.list_all, "remove": cli.remove, "watch": cli.watch},
        )
    ],
    sections=_sections,
    problems=_problems,
    example=_EXAMPLE,
    processes=_processes,
    doctor=_doctor,
    conditions=("search-set-aside", "searches-silent"),
    metrics=_metrics,
    watch=_watch,
    keyed_topics=_keyed_topics,
)
