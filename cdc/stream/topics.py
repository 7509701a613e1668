"""The topics of a pipeline, created where they are missing."""

from collections.abc import Callable

from cdc.kafka.topic_admin import TopicAdmin, control_topic_plans, message_topic_plans, table_topic_plan
from cdc.model.errors import LockstepError
from cdc.pipeline import Pipeline


def create_missing_topics(pipeline: Pipeline, say: Callable[[str], None]) -> None:
    """Create the control topics and those of messages and tables; an existing topic is left as it is.

    Raises LockstepError for a topic with another cleanup policy, and Unavailable when the brokers don't answer.
    """
    admin = TopicAdmin(pipeline.kafka.client())
    settings = pipeline.kafka.topics
    plans = [
        *control_topic_plans(pipeline.name, settings),
        *(message_topic_plans(pipeline.name, settings) if pipeline.source.messages else []),
        *(
            table_topic_plan(topic, settings, append_only=name in pipeline.source.append_only)
            for name, topic in pipeline.topics().items()
        ),
    ]
    missing = admin.missing(plans)
    if missing:
        say(f"creating topics: {', '.join(plan.name for plan in missing)}")
        admin.create(missing)
    wrong = [sentence for sentence in admin.differences(plans) if "cleanup.policy" in sentence]
    if wrong:
        raise LockstepError(
            "\n".join(wrong), hint="a topic of a table must be compacted; was it made by something else?"
        )
