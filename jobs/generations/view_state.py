"""What the view of a generation has besides its sink: a state on the machine of its task, and maybe a topic.
``g<n>.view`` is a coordination record of the destination: the view's figures as its job last reported them."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import orjson

from cdc.kafka.settings import KafkaSettings
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import view_topic
from cdc.model.errors import ConfigurationError
from jobs.settings import SparkSettings
from sinks.contract import CoordinationRecords
from views.figures import ViewFigures


@dataclass(frozen=True, slots=True)
class ReportedView:
    """The figures of a view, and since when its state is being built or complete, in milliseconds since 1970."""

    since_ms: int
    figures: ViewFigures

    @property
    def is_building(self) -> bool:
        return self.figures.building is not None

    def next(self, figures: ViewFigures, *, now_ms: int) -> Self:
        """The record after this one."""
        if figures.building is not None:
            return type(self)(figures.building.began_ms, figures)
        return type(self)(now_ms if self.is_building else self.since_ms, figures)

    def to_json(self) -> dict[str, Any]:
        return {"since_ms": self.since_ms, **self.figures.to_json()}

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> Self:
        return cls(facts["since_ms"], ViewFigures.from_json(facts))


def view_record_name(generation: int) -> str:
    return f"g{generation}.view"


def dump_view(view: ReportedView) -> str:
    return orjson.dumps(view.to_json()).decode()


def parse_view(text: str | None) -> ReportedView | None:
    """None if no job has reported any."""
    return None if text is None else ReportedView.from_json(orjson.loads(text))


def load_view(records: CoordinationRecords, generation: int) -> ReportedView | None:
    """What the job of a view last reported; None if it never did. Raises what the destination raises."""
    return parse_view(records.load(view_record_name(generation)))


def state_directory(spark: SparkSettings, *, pipeline: str, sink: str, generation: int) -> Path:
    """Where the view of a generation has its state."""
    return spark.view_directory.absolute() / pipeline / sink / f"g{generation}"


def remove_kept(spark: SparkSettings, kafka: KafkaSettings, *, pipeline: str, sink: str, generation: int) -> None:
    """Remove the topic of a dropped generation, and its state if that is on this machine. Raises Unavailable, and
    LockstepError if the brokers don't allow that, or to see whether there is a topic."""
    shutil.rmtree(state_directory(spark, pipeline=pipeline, sink=sink, generation=generation), ignore_errors=True)
    topic, cluster = view_topic(pipeline, sink, generation), TopicAdmin(kafka.client())
    if cluster.exists(topic):
        # The writer of the log takes a while to load, and `lockstep lag` doesn't need it.
        from jobs.executor.view_topic import remove_steps

        remove_steps(kafka.client(), pipeline=pipeline, view=sink, generation=generation)
        cluster.remove([topic])


def check_can_keep(spark: SparkSettings, name: str) -> None:
    """Raise ConfigurationError if the tasks of this view would each have a state of their own."""
    if not spark.is_local:
        raise ConfigurationError(
            f"view {name!r} keeps its state on the machine of its task, and this Spark is a cluster",
            hint='keep views in a job with a local master: spark.master = "local[2]"',
        )
