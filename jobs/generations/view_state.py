"""What the view of a generation keeps besides its sink: a state on the machine of its task, and maybe a topic."""

import shutil
from pathlib import Path

from cdc.kafka.settings import KafkaSettings
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import view_topic
from cdc.model.errors import ConfigurationError
from jobs.executor.view_topic import remove_steps
from jobs.settings import SparkSettings


def state_directory(spark: SparkSettings, *, pipeline: str, sink: str, generation: int) -> Path:
    """Where the view of a generation keeps its state."""
    return spark.view_directory.absolute() / pipeline / sink / f"g{generation}"


def remove_kept(spark: SparkSettings, kafka: KafkaSettings, *, pipeline: str, sink: str, generation: int) -> None:
    """Remove the state of a generation that is dropped, as far as it is on this machine, and its topic.

    Raises Unavailable, and LockstepError where the brokers don't allow it.
    """
    shutil.rmtree(state_directory(spark, pipeline=pipeline, sink=sink, generation=generation), ignore_errors=True)
    topic, cluster = view_topic(pipeline, sink, generation), TopicAdmin(kafka.client())
    if topic in cluster.partition_counts():
        remove_steps(kafka.client(), pipeline=pipeline, view=sink, generation=generation)
        cluster.remove([topic])


def check_can_keep(spark: SparkSettings, name: str) -> None:
    """Raise ConfigurationError where the tasks of this view would each have a state of their own."""
    if not spark.is_local:
        raise ConfigurationError(
            f"view {name!r} keeps its state on the machine of its task, and this Spark is a cluster",
            hint='keep views in a job with a local master: spark.master = "local[2]"',
        )
