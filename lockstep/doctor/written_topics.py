"""Whether jobs may write their results' topics, which keep the results, or create the missing ones."""

from collections.abc import Collection, Mapping
from typing import Final

from cdc.kafka.topic_admin import TopicAdmin, TopicPlan, without_rights
from cdc.kafka.topic_policy import check_kept
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.finding import Finding, error, ok

JOB_STOPS: Final = "its job would stop there"
_RIGHTS: Final = ("Describe", "DescribeConfigs", "Read", "Write", "Delete")
"""What a job needs on such a topic. It deletes it with the generation."""


def written_topics(
    cluster: TopicAdmin,
    subject: str,
    plans: Mapping[str, TopicPlan],
    *,
    bootstrap_servers: str,
    named: Collection[str],
    rights: Collection[str] = _RIGHTS,
    kind: str = "topic",
) -> list[Finding]:
    """What is missing for these topics, by their names; for those in ``named``, also that nothing is. ``kind`` is the
    word for such a topic. Creates nothing. Raises what the brokers raise."""
    existing = cluster.partition_counts(plans)
    lacking = cluster.lacking_rights(plans, rights)
    findings = [
        error(subject, f"the right {', '.join(without)} on {kind} {topic} lacks", JOB_STOPS, without_rights(without))
        for topic, without in lacking.items()
    ]
    missing = [plan for topic, plan in plans.items() if topic not in existing and topic not in lacking]
    refused = cluster.why_not_created(missing)
    for topic in plans:
        if topic in lacking:
            continue
        if topic in existing:
            try:
                check_kept(cluster, plans[topic], bootstrap_servers)
            except Unavailable:
                raise
            except LockstepError as other:
                refused[topic] = other
        if topic in refused:
            findings.append(error(subject, refused[topic].message, JOB_STOPS, refused[topic].hint or ""))
        elif topic in named:
            findings.append(
                ok(subject, f"topic {topic} {'is there' if topic in existing else 'is created by its job'}")
            )
    return findings
