"""The publisher of a pipeline's capture. Starting one fences all that were started before."""

from collections.abc import Callable, Mapping

from cdc.kafka.large_rows import LargeRows
from cdc.kafka.publisher import TransactionalPublisher
from cdc.kafka.record_limits import RecordLimit
from cdc.kafka.topic_admin import TopicPlan
from cdc.pipeline_settings import Pipeline


def capture_publisher(
    pipeline: Pipeline,
    *,
    while_waiting: Callable[[], None] = lambda: None,
    new_topic: Callable[[str], TopicPlan | None] = lambda _: None,
    limits: Mapping[str, RecordLimit] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> TransactionalPublisher:
    """A publisher that isn't started yet. The arguments are its own. Raises as ``TransactionalPublisher``."""
    sizes = LargeRows(
        pipeline.rejecting_topics, max_message_bytes=pipeline.kafka.topics.max_message_bytes, limits=limits, say=say
    )
    return TransactionalPublisher(
        pipeline.kafka.client(),
        f"{pipeline.name}.{pipeline.slot}",
        sizes,
        prefix=pipeline.name,
        progress_every_s=pipeline.progress_every_s,
        while_waiting=while_waiting,
        new_topic=new_topic,
    )
