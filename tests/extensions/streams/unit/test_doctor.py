"""extensions.streams.doctor"""

from pathlib import Path

import pytest

from cdc.model.finding import Severity
from cdc.webhook import WebhookSettings
from extensions.streams.configured import queries_of
from extensions.streams.doctor import row_webhook_findings, state_findings, token_findings, unread_streams
from jobs.settings import SparkSettings
from tests.configurations import configured


def test_a_stream_that_no_query_reads_is_told_of() -> None:
    read = {"sessions": ["searches"]}
    (finding,) = unread_streams(["searches", "clicks"], ["sessions"], read)
    assert (finding.subject, finding.what) == ("stream clicks", "no stream query reads it")
    assert "[streams.clicks]" in finding.fix


def test_where_a_query_is_wrong_nobody_knows_what_it_reads() -> None:
    assert unread_streams(["searches", "clicks"], ["sessions", "joined"], {"sessions": ["searches"]}) == []


CLUSTER = "spark://master:7077"


@pytest.mark.parametrize(
    ("master", "directory", "queries", "count"),
    [
        (CLUSTER, "/var/lib/lockstep", ["sessions"], 1),
        (CLUSTER, "file:///var/lib/lockstep", ["sessions"], 1),
        (CLUSTER, "s3a://bucket/checkpoints", ["sessions"], 0),
        (CLUSTER, "/var/lib/lockstep", [], 0),
        ("local[2]", "/var/lib/lockstep", ["sessions"], 0),
    ],
)
def test_a_cluster_whose_machines_would_each_keep_a_state_is_told_of(
    master: str, directory: str, queries: list[str], count: int
) -> None:
    spark = SparkSettings(master=master, checkpoint_directory=directory)
    findings = state_findings(spark, queries)
    assert len(findings) == count
    assert all("spark.checkpoint_directory" in finding.fix for finding in findings)


def test_an_address_of_a_mistyped_scheme_is_told_of_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_STREAM_QUERY_RECENT_WEBHOOK_URL", "htps://hooks.example.com/secret")
    (finding,) = row_webhook_findings("recent", WebhookSettings())
    assert finding.what == "the address of stream_queries.recent.webhook isn't one of HTTP"
    assert "$LOCKSTEP_STREAM_QUERY_RECENT_WEBHOOK_URL" in finding.fix
    assert "secret" not in finding.fix


_TOKENS = 'sasl_mechanism = "OAUTHBEARER"\nlibrdkafka = { "sasl.oauthbearer.method" = "oidc" }'


@pytest.mark.parametrize(
    ("login", "master", "subjects"),
    [
        (_TOKENS, "spark://master:7077", ["stream query busy"]),
        (_TOKENS, "local[2]", []),
        ('sasl_mechanism = "PLAIN"', "spark://master:7077", []),
    ],
)
def test_what_javas_client_needs_on_other_machines_to_get_tokens_is_told(
    tmp_path: Path, login: str, master: str, subjects: list[str]
) -> None:
    kafka = f'{login}\nusername = "u"'
    sections = f"""
[spark]
master = "{master}"
[sinks.cache]
type = "redis"
[sinks.expensive]
type = "redis"
url = "redis://other"
where = {{ "public.orders" = "price > 7" }}
[streams.clicks]
topic = "clicks"
columns = {{ id = "text", page = "text", at = "timestamptz" }}
time = "at"
late = "1 minute"
id = ["id"]
[sinks.dwh]
type = "warehouse"
url = "postgresql+psycopg://nowhere/w"
[stream_queries.busy]
sink = "dwh"
sql = "select page, at from clicks"
key = ["page"]
"""
    config = configured(tmp_path, sections, kafka=kafka)
    found = token_findings(config.kafka, config.spark, queries_of(config))
    assert [finding.subject for finding in found] == subjects
    assert all(finding.severity is Severity.WARNING for finding in found)
