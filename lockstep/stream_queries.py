"""Stream queries as commands see them: what each has done, and whether a job runs it."""

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from cdc.model.times import time_text
from jobs.settings import SparkSettings
from jobs.streams.plan import StreamQueryPlan
from jobs.streams.rebuild import begin_again
from lockstep.config import Config
from monitor.stream_queries import StreamQueryCollector, StreamQueryStatus


def stream_query_plan(
    config: Config, name: str, *, spark: SparkSettings | None = None, once: bool = False
) -> StreamQueryPlan:
    """What the job of this stream query is about. Raises ConfigurationError for a name of none."""
    section = config.stream_queries.get(name)
    if section is None:
        raise config.not_found("stream query", name)
    return StreamQueryPlan(
        name,
        section.query,
        section.sink,
        config.streams,
        config.pipeline.name,
        config.kafka,
        spark or config.spark,
        once,
    )


def stream_query_plans(config: Config) -> list[StreamQueryPlan]:
    """What the jobs of all stream queries are about."""
    return [stream_query_plan(config, name) for name in config.stream_queries]


def stream_queries_now(config: Config) -> list[StreamQueryStatus]:
    """Each build of each query that isn't on its way out. Asks the stores alone."""
    with StreamQueryCollector(stream_query_plans(config)) as collector:
        return collector.look()


def stream_queries_table(statuses: Sequence[StreamQueryStatus]) -> Group:
    """What is known of stream queries, for people: a line for each, then why one isn't run."""
    columns = ("stream query", "state", "watermark", "results", "late", "malformed", "refused", "kept rows")
    table = Table(*columns, box=None)
    for status in statuses:
        figures = status.figures
        counts = (figures.results, figures.late, figures.malformed, figures.refused, figures.state_rows)
        watermark = "none yet" if figures.watermark_ms is None else time_text(figures.watermark_ms)
        table.add_row(status.label, status.state, watermark, *[f"{count:,}" for count in counts])
    reasons = [f"{status.label}: {status.reason}" for status in statuses if status.reason]
    hints = [status.hint and f"\n    {status.hint}" for status in statuses if status.reason]
    return Group(table, *map(Text, map("".join, zip(reasons, hints, strict=True))))


def rebuild_stream_query(config: Config, name: str) -> int:
    """Begin to build a query's result again; returns the build's number. Raises as ``begin_again``."""
    return begin_again(stream_query_plan(config, name))
