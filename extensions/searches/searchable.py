"""The sinks that can have standing searches."""

from collections.abc import Iterator, Sequence

from extensions.searches.settings import SearchesSettings
from lockstep.config import Config
from sinks.opensearch.settings import OpenSearchSettings


def searchable(config: Config) -> dict[str, OpenSearchSettings]:
    """The sinks of tables in OpenSearch."""
    return {
        name: settings
        for name, settings in config.sinks.items()
        if isinstance(settings, OpenSearchSettings) and settings.view is None
    }


def problems(config: Config) -> Iterator[str]:
    """Sinks that the section names although they can't have searches."""
    known = searchable(config)
    for name in config.section(SearchesSettings).sinks:
        if name not in known:
            yield f"searches.sinks: {name} is no sink of tables in OpenSearch; those are: {', '.join(known) or 'none'}"


def processes(config: Config) -> Sequence[Sequence[str]]:
    """The process that reports the searches of the sinks in the section, if it names any."""
    return [("searches", "watch")] if config.section(SearchesSettings).sinks else []
