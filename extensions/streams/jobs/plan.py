"""The plan of one stream query's job."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc.kafka.settings import KafkaSettings
from cdc.kafka.topic_admin import TopicPlan, ordered_topic_plan, table_topic_plan
from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue
from extensions.streams.jobs.resume import FIRST_STATE_FORM, PATTERN_STATE_FORM
from extensions.streams.settings import StreamQuerySettings, StreamSettings
from extensions.streams.topic_names import stream_query_topic, stream_result_topic
from jobs.generations.record import Generation, list_generations
from jobs.settings import SparkSettings
from sinks.contract import OpenedSink
from sinks.registry import SinkSettings, definition, open_sink

if TYPE_CHECKING:
    from jobs.executor.task_input import OpenSink  # it imports PyArrow, which commands that only read don't need


_NOT_OF_RESULT: Final[Any] = {"topic": True, "webhook": True, "rows_of": True}
"""Settings of a query on which no row depends."""

_NOT_OF_EVENTS: Final = {"rows_of"}
"""Settings of a stream on which no event depends."""


@dataclass(frozen=True)
class StreamQueryPlan:
    """The configuration of one stream query's job; nothing is opened. ``streams`` are all configured streams, by name.
    ``settings`` say where the result is. ``once``: the job ends where the topics end now.
    """

    name: str
    query: StreamQuerySettings
    settings: SinkSettings
    streams: Mapping[str, StreamSettings]
    pipeline: str
    kafka: KafkaSettings
    spark: SparkSettings
    once: bool
    open: "OpenSink" = open_sink

    def opened(self, generation: int) -> OpenedSink:
        """Open the result's sink for this generation. Raises what opening it raises."""
        return self.open(self.name, self.settings, generation)

    def builds(self, opened: OpenedSink) -> list[Generation]:
        """All builds of the result, oldest first. ``opened`` may be of any build. Raises LockstepError if one is
        another pipeline's, and what the destination raises.
        """
        generations = list_generations(opened)
        for each in generations:
            if each.record is not None and each.record.pipeline != self.pipeline:
                raise LockstepError(
                    f"generation {each.number} of stream query {self.name!r} is written by pipeline"
                    f" {each.record.pipeline!r}, not by {self.pipeline!r}",
                    hint="two results in one place would mix: give the query of one of the two pipelines another name",
                )
        return generations

    def definition(self, streams: Mapping[str, StreamSettings]) -> dict[str, JsonValue]:
        """Everything that the result depends on, for the streams that the query reads."""
        return {
            **self.query.model_dump(mode="json", exclude_none=True, exclude=_NOT_OF_RESULT),
            **({"topic": True} if self.query.has_topic else {}),
            **{
                f"streams.{name}": stream.model_dump(mode="json", exclude=_NOT_OF_EVENTS)
                for name, stream in sorted(streams.items())
            },
            **definition(self.settings),
        }

    @property
    def state_form(self) -> int:
        return FIRST_STATE_FORM if self.query.pattern is None else PATTERN_STATE_FORM

    @property
    def side_record_bytes_max(self) -> int:
        """The largest record of the side topic. Larger ones are cut."""
        return 4 * self.kafka.topics.max_message_bytes

    @property
    def side_topic(self) -> TopicPlan:
        """The topic of records and rows that the result lacks. Each has its own key, so compaction keeps all."""
        topic = table_topic_plan(stream_query_topic(self.pipeline, self.name), self.kafka.topics)
        size = {"max.message.bytes": str(self.side_record_bytes_max)}
        return TopicPlan(topic.name, 1, topic.replication_factor, {**topic.config, **size})

    def result_topic(self, generation: int) -> TopicPlan | None:
        """The topic of this build's rows, or None. Each row has its own key, so compaction keeps all."""
        if not self.query.has_topic:
            return None
        return ordered_topic_plan(stream_result_topic(self.pipeline, self.name, generation), self.kafka.topics)
