"""Whether a topic keeps what is written to it, and in one order: another may have made it before us.

Brokers create topics that somebody asks for, where nobody has told them not to: with their own policy, which deletes
records by their age, and as many partitions as they like.
"""

from typing import Final

from cdc.kafka.record_limits import set_command
from cdc.kafka.topic_admin import TopicAdmin, TopicPlan, partitions_of
from cdc.model.errors import LockstepError

_POLICY: Final = "cleanup.policy"


def check_kept(cluster: TopicAdmin, plan: TopicPlan, bootstrap_servers: str) -> None:
    """Raise LockstepError, with the command to run, where an existing topic isn't compacted or partitioned as planned.

    Raises Unavailable where the brokers don't list it.
    """
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
