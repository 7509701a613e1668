"""Whether standing searches can be reported: the state of their topic, and of each search."""

from collections.abc import Sequence
from itertools import groupby

from cdc.kafka.control_topics import record_at
from cdc.kafka.newest_records import newest_records
from cdc.kafka.topic_admin import TopicAdmin, without_rights
from cdc.kafka.topic_policy import check_kept
from cdc.model.errors import ForeignRecord, LockstepError, Unavailable
from cdc.model.finding import Finding, error, ok, warning
from extensions.searches.commands import ListedSearch, listed
from extensions.searches.searchable import searchable
from extensions.searches.settings import SearchesSettings
from extensions.searches.topic import Match, match_topic_plan
from lockstep.config import Config
from lockstep.extension import Reached

_SUBJECT = "searches"
_NONE_REPORTED = "no search is reported"
_TOPIC_RIGHTS = ("Describe", "Read", "Write", "DescribeConfigs")


def check_searches(reached: Reached, config: Config) -> list[Finding]:
    """The searches of the sinks that answer, and the topic of matches if any search exists or is configured. Raises
    LockstepError if Kafka or OpenSearch doesn't answer.
    """
    if not reached.kafka:
        return []
    findings: list[Finding] = []
    are_expected = bool(config.section(SearchesSettings).sinks)
    for name in (name for name in searchable(config) if name in reached.sinks):
        searches = list(listed(config, [name]))
        are_expected |= bool(searches)
        findings += searches_findings(name, searches)
    return [*_topic_findings(config), *findings] if are_expected else []


def searches_findings(name: str, searches: Sequence[ListedSearch]) -> list[Finding]:
    """Findings on one sink's searches. Searches that aren't reported for the same reason are one finding."""
    subject = f"{_SUBJECT} of {name}"
    reported = [each.search.name for each in searches if each.problem is None]
    findings = [ok(subject, f"{len(reported):,} of {len(searches):,} are reported")] if reported else []
    unreported = sorted((each for each in searches if each.problem is not None), key=lambda each: each.problem or "")
    for problem, of_it in groupby(unreported, key=lambda each: each.problem or ""):
        names = ", ".join(each.search.name for each in of_it)
        findings.append(
            warning(
                subject,
                f"{names}: {problem}",
                "documents that begin or cease to match aren't reported meanwhile; they are compared afterwards",
                f"`lockstep searches list {name}` shows them; a refused one goes on once its query is changed",
            )
        )
    return findings


def _topic_findings(config: Config) -> list[Finding]:
    cluster, plan = TopicAdmin(config.kafka.client()), match_topic_plan(config.pipeline.name, config.kafka.topics)
    lacking = cluster.lacking_rights([plan.name], _TOPIC_RIGHTS)
    if rights := lacking.get(plan.name):
        what = f"the right {', '.join(rights)} on topic {plan.name} lacks"
        return [error(_SUBJECT, what, _NONE_REPORTED, without_rights(rights))]
    try:
        if cluster.missing([plan]):
            refused = cluster.why_not_created([plan]).get(plan.name)
            if refused is not None:
                raise refused
            return [ok(_SUBJECT, f"topic {plan.name} is created by the first process that reports searches")]
        check_kept(cluster, plan, config.kafka.bootstrap_servers)
    except Unavailable:
        raise
    except LockstepError as refused:
        return [error(_SUBJECT, refused.message, _NONE_REPORTED, refused.hint or "")]
    findings = [ok(_SUBJECT, f"topic {plan.name} is there"), *_foreign_findings(config, plan.name)]
    findings += [
        warning(
            _SUBJECT,
            str(difference),
            "readers that come seldom may miss matches that have ended",
            "alter the topic with kafka-configs.sh, or change [kafka.topics]",
        )
        for difference in cluster.differences([plan])
    ]
    return findings


def _foreign_findings(config: Config, topic: str) -> list[Finding]:
    """Whether the newest record of the topic of matches is one of Lockstep's."""
    for record in newest_records(config.kafka.client(), [topic]):
        what = record_at(topic, record.offset)
        try:
            if record.value is not None:
                Match.from_bytes(record.value, what)
        except ForeignRecord:
            return [
                error(
                    f"topic {topic}",
                    f"holds a record that isn't one of Lockstep's: {what}",
                    "its writer can report false matches, and no process goes on from such a record",
                    "find out who writes to it, and take that right away (docs/kafka.md)",
                )
            ]
    return []
