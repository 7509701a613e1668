"""Whether a topic retains its records, in one order: somebody else may have created it before us. Unless configured
otherwise, brokers create topics on request: with their own policy, which deletes records by age, and their own number
of partitions."""

from typing import Final

from cdc.kafka.record_limits import set_command
from cdc.kafka.topic_admin import TopicAdmin, TopicPlan, partitions_of
from cdc.model.errors import LockstepError

_POLICY: Final = "cleanup.policy"


def check_kept(cluster: TopicAdmin, plan: TopicPlan, bootstrap_servers: str) -> None:
    """Raise LockstepError, with the command to run, if an existing topic isn't compacted or partitioned as planned.
    Raises Unavailable if the brokers don't list it."""
    policy, planned = cluster.setting(plan.name, _POLICY), plan.config[_POLICY]
    if policy != planned:
        raise LockstepError(
            f"topic {plan.name} has {_POLICY}={policy}: its records would expire",
            hint=f"run {set_command(bootstrap_servers, plan.name, _POLICY, planned)}",
        )
    partitions = len(partitions_of([plan.name], cluster.partition_counts([plan.name])))
    if partitions != plan.partitions:
        raise LockstepError(
            f"topic {plan.name} has {partitions} partitions: its records need one order, so one partition",
            hint=f"run kafka-topics.sh --bootstrap-server {bootstrap_servers} --delete --topic {plan.name};"
            " its writer creates it again",
        )
