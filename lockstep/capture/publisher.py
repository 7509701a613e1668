"""The publisher of a pipeline's capture: whoever starts one fences all that were started before."""

from collections.abc import Callable, Mapping

from cdc.capture.settings import QUEUE_BYTES
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
    """Not started yet. The arguments are the publisher's own. Raises as ``TransactionalPublisher``."""
    max_message_bytes = pipeline.kafka.topics.max_message_bytes
    return TransactionalPublisher(
        pipeline.kafka.client(),
        prefix=pipeline.name,
        transactional_id=f"{pipeline.name}.{pipeline.slot}",
        queue_bytes=QUEUE_BYTES,
        max_message_bytes=max_message_bytes,
        while_waiting=while_waiting,
        new_topic=new_topic,
        progress_every_s=pipeline.progress_every_s,
        limits=limits,
        large_rows=LargeRows(pipeline.rejecting_topics, max_message_bytes=max_message_bytes, limits=limits, say=say),
    )
