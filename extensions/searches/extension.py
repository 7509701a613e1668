"""The extension ``searches``."""

from typing import Final

from cdc.model.later import later
from extensions.searches import cli
from lockstep.extension import Extension, Group

_EXAMPLE: Final = """\
# Standing searches over documents in OpenSearch: docs/searches.md.
# [searches]
# sinks = ["search"]                       # `lockstep run` reports their matches
"""

SEARCHES: Final = Extension(
    name="searches",
    groups=[
        Group(
            "searches",
            "Standing searches: reports of documents that match a query.",
            {"add": cli.add, "list": cli.list_all, "remove": cli.remove, "watch": cli.watch},
        )
    ],
    sections={"searches": "extensions.searches.settings:SearchesSettings"},
    problems=later("extensions.searches.searchable:problems"),
    example=_EXAMPLE,
    processes=later("extensions.searches.searchable:processes"),
    doctor=later("extensions.searches.doctor:check_searches"),
    conditions=("search-refused", "searches-silent"),
    metrics=later("extensions.searches.watch:metrics"),
    watch=later("extensions.searches.watch:searches_watch"),
    eraser=later("extensions.searches.erasing:MatchErasing"),
)
