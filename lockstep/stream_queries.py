"""Stream queries as commands see them: what each has done, and whether a job runs it."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from cdc.model.errors import LockstepError
from cdc.model.times import time_text
from jobs.generations.record import Generation, Phase, list_generations
from jobs.generations.status import JobStatus, job_status
from jobs.settings import SparkSettings
from jobs.streams.plan import StreamQueryPlan
from jobs.streams.rebuild import begin_again
from jobs.streams.records import figures_name
from jobs.streams.resume import Figures
from lockstep.config import Config


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


@dataclass(frozen=True, slots=True)
class StreamQueryStatus:
    """One build of a query's result. ``generation`` is None where nothing of it is there, or where nobody knows.

    ``problem`` says why its store couldn't be asked.
    """

    name: str
    side_topic: str
    generation: int | None = None
    is_live: bool = False
    job: JobStatus | None = None
    figures: Figures = field(default_factory=Figures)
    problem: str | None = None

    @property
    def needs_somebody(self) -> bool:
        return self.problem is not None or (self.job is not None and self.job.needs_somebody)

    @property
    def state(self) -> str:
        """In one word, as that of a sink's job; ``unknown`` where its store couldn't be asked."""
        return "unknown" if self.problem is not None else "absent" if self.job is None else self.job.state.value

    @property
    def reason(self) -> str:
        """Why nothing moves, "" where all is well."""
        parts = [self.problem] if self.job is None else [self.job.reason, self.job.hint]
        return "; ".join(part for part in parts if part)

    def to_json(self) -> dict[str, Any]:
        figures = self.figures.to_json()
        figures["offsets"] = {
            f"{topic}-{partition}": offset for (topic, partition), offset in self.figures.offsets.items()
        }
        return {
            "stream_query": self.name,
            "generation": self.generation,
            "is_live": self.is_live,
            "state": self.state,
            "reason": self.reason or None,
            "side_topic": self.side_topic,
            **figures,
        }


def stream_queries_now(config: Config) -> Iterator[StreamQueryStatus]:
    """Each build of each query that isn't on its way out. Asks the stores alone."""
    for name in config.stream_queries:
        plan = stream_query_plan(config, name)
        topic = plan.side_topic.name
        try:
            yield from _statuses(plan, topic)
        except LockstepError as error:
            yield StreamQueryStatus(name, topic, problem=error.message)


def _statuses(plan: StreamQueryPlan, topic: str) -> list[StreamQueryStatus]:
    opened = plan.opened(1)
    try:
        generations = [each for each in list_generations(opened) if each.phase is not Phase.RETIRED]

        def of(each: Generation) -> StreamQueryStatus:
            figures = Figures.parse(opened.records.load(figures_name(each.number)))
            job = job_status(opened.records, each.number, now_ms=time.time_ns() // 1_000_000)
            return StreamQueryStatus(plan.name, topic, each.number, each.is_live, job, figures)

        return [of(each) for each in generations] or [StreamQueryStatus(plan.name, topic)]
    finally:
        opened.sink.close()


def stream_queries_table(statuses: Sequence[StreamQueryStatus]) -> Group:
    """What is known of stream queries, for people: a line for each, then why one isn't run."""
    columns = ("stream query", "state", "watermark", "results", "late", "malformed", "refused", "kept rows")
    table = Table(*columns, box=None)
    for status in statuses:
        name = status.name if status.is_live or status.generation is None else f"{status.name} g{status.generation}"
        figures = status.figures
        counts = (figures.results, figures.late, figures.malformed, figures.refused, figures.state_rows)
        watermark = "none yet" if figures.watermark_ms is None else time_text(figures.watermark_ms)
        table.add_row(name, status.state, watermark, *[f"{count:,}" for count in counts])
    return Group(table, *[Text(f"{status.name}: {status.reason}") for status in statuses if status.reason])


def rebuild_stream_query(config: Config, name: str) -> int:
    """Begin to build a query's result again; returns the build's number. Raises as ``begin_again``."""
    return begin_again(stream_query_plan(config, name))
