"""Stream queries in the configuration: each takes the store of a sink."""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cdc.model.errors import ConfigurationError, LockstepError
from extensions.streams.configured import queries_of
from extensions.streams.jobs.resume import Figures
from extensions.streams.queries import stream_query_plan
from extensions.streams.sections import with_stream_queries
from extensions.streams.status import StreamQueryStatus
from jobs.generations.status import JobState, JobStatus
from lockstep.config import Config, read
from lockstep.generations import settings_of
from lockstep.rejections.retry import retry
from lockstep.rejections.selection import Selection
from lockstep.views.status import view_now
from sinks.warehouse.settings import WarehouseSettings

TEXT = """
[pipeline]
name = "shop"
[source]
dsn = "postgresql://x/y"
tables = ["public.orders"]
[kafka]
bootstrap_servers = "x:1"
[sinks.warehouse]
type = "warehouse"
url = "postgresql://a/b"
schema = "orders"
apply = false
[streams.searches]
topic = "web.searches"
columns = { id = "text", at = "timestamptz" }
time = "at"
late = "10 minutes"
[stream_queries.recent]
sink = "warehouse"
key = ["id"]
sql = "select id, at from searches"
"""


SINKS = """
[sinks.cache]
type = "redis"
[sinks.search]
type = "opensearch"
[views.totals]
sink = "search"
key = ["id"]
sql = "select id from orders"
"""


def problems(tmp_path: Path, *changes: tuple[str, str]) -> str:
    text = TEXT
    for before, after in changes:
        assert before in text
        text = text.replace(before, after, 1)
    path = tmp_path / "lockstep.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        read(path)
    return "\n".join(refused.value.problems)


def test_a_query_has_the_store_of_its_sink_and_a_place_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "lockstep.toml"
    path.write_text(TEXT)
    config = read(path)
    section = queries_of(config)["recent"]
    assert isinstance(section.sink, WarehouseSettings)
    assert section.sink.url.get_secret_value() == "postgresql://a/b"
    assert section.sink.prefix is None
    assert section.lender == "warehouse"
    assert config.sinks == {}
    plan = stream_query_plan(config, "recent")
    assert plan.side_topic.name == "shop.__stream_queries.recent"
    assert plan.side_topic.config["cleanup.policy"] == "compact"
    for names in ((), ("recent",)):
        sinks, added = config.chosen_to_apply(names)
        assert (sinks, list(added), added["recent"].settings) == ({}, ["recent"], section.sink)
    with pytest.raises(ConfigurationError, match="no such sink: other"):
        config.chosen_to_apply(("recent", "other"))


def test_rows_may_be_on_a_topic_as_well_and_those_for_a_webhook_are(tmp_path: Path) -> None:
    path = tmp_path / "lockstep.toml"
    definitions = []
    for setting in ("", "topic = true\n", 'webhook = { url_file = "hook" }\n'):
        path.write_text(TEXT + setting)
        plan = stream_query_plan(read(path), "recent")
        topic = plan.result_topic(2)
        assert (topic is not None) == bool(setting)
        if topic is not None:
            assert (topic.name, topic.partitions) == ("shop.__stream_queries.recent.g2", 1)
            assert topic.config["cleanup.policy"] == "compact"
        definitions.append(plan.definition(plan.streams))
    # A result whose topic lacks its first rows would be no whole one: it is built again.
    assert definitions[1] == definitions[2] == {**definitions[0], "topic": True}
    assert plan.query.webhook is not None
    assert plan.query.webhook.url_file == tmp_path / "hook"


PATTERN = """
[stream_queries.twice]
sink = "warehouse"
[stream_queries.twice.pattern]
per = ["id"]
within = "1 hour"
steps = [{ name = "search", stream = "searches", times = 2 }]
"""


def test_a_query_may_be_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "lockstep.toml"
    path.write_text(TEXT + PATTERN)
    plan = stream_query_plan(read(path), "twice")
    assert plan.query.pattern is not None
    assert plan.query.key_columns == ("id", "began_at")
    text = (TEXT + PATTERN).replace('stream = "searches", times', 'stream = "clicks", times')
    path.write_text(text.replace('per = ["id"]', 'per = ["user_id"]'))
    with pytest.raises(ConfigurationError) as refused:
        read(path)
    (problem,) = refused.value.problems
    assert "stream_queries.twice.pattern.steps.search: there is no section [streams.clicks]" in problem


@pytest.mark.parametrize(
    ("look_up", "told", "command"),
    [
        (
            lambda config: config.chosen_sinks(["cache", "recent"]),
            "recent is a stream query and no sink",
            "streams list",
        ),
        (lambda config: settings_of(config, "recent"), "recent is a stream query", "lockstep streams rebuild recent"),
        (lambda config: view_now(config, "recent"), "recent is a stream query and no view", "lockstep apply recent"),
        (lambda config: stream_query_plan(config, "cache"), "cache is a sink and no stream query", "rebuild cache"),
        (lambda config: stream_query_plan(config, "totals"), "totals is a view and no stream query", "rebuild totals"),
        (lambda config: view_now(config, "cache"), "cache is a sink and no view", "lockstep generations cache"),
        (lambda config: stream_query_plan(config, "resent"), "no such stream query: resent", "recent"),
        (lambda config: settings_of(config, "cash"), "no such sink: cash", "cache, search, totals"),
        (
            lambda config: retry(config, "resent", Selection(), say=lambda _: None),
            "no such sink: resent",
            "recent",
        ),
    ],
)
def test_a_name_of_something_else_is_told_with_the_commands_that_are_meant_for_it(
    tmp_path: Path, look_up: Callable[[Config], object], told: str, command: str
) -> None:
    path = tmp_path / "lockstep.toml"
    path.write_text(TEXT + SINKS)
    with pytest.raises(ConfigurationError, match=told) as refused:
        look_up(read(path))
    assert command in (refused.value.hint or "")


def test_a_query_may_be_read_twice() -> None:
    """The models expand the document again."""
    once, _ = with_stream_queries(tomllib.loads(TEXT + PATTERN))
    assert with_stream_queries(once) == (once, [])


def test_what_a_query_means_is_no_setting_of_sparks(tmp_path: Path) -> None:
    path = tmp_path / "lockstep.toml"
    path.write_text(TEXT + '[spark.conf]\n"spark.sql.ansi.enabled" = "false"\n')
    with pytest.raises(ConfigurationError, match="the results of stream queries would change"):
        read(path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (('sink = "warehouse"\nkey', "key"), "stream_queries.recent.sink: is missing"),
        (('sink = "warehouse"', 'sink = "lake"'), "stream_queries.recent.sink: there is no section [sinks.lake]"),
        (('key = ["id"]', "key = []"), "stream_queries.recent.key: must not be empty"),
        (('key = ["id"]', 'key = ["id"]\nexclude = ["a.b"]'), "stream_queries.recent.exclude: "),
        (('key = ["id"]', 'key = ["id"]\nfoo = 1'), "stream_queries.recent.foo: unknown setting"),
        (('key = ["id"]', 'key = ["id"]\nlogin = { password = "x" }'), "stream_queries.recent.login.password: use"),
        (("[stream_queries.recent]", "[stream_queries.Recent]"), "stream_queries.Recent: a name is a lower-case"),
        (("apply = false\n", "apply = false\n[sinks.recent]\ntype = 'redis'\n"), "have one name"),
        (
            ('url = "postgresql://a/b"', 'url = "duckdb:////var/lib/a.duckdb"'),
            "stream_queries.recent: a stream query's result is in a warehouse in PostgreSQL",
        ),
        (('late = "10 minutes"', 'late = "soon"'), "streams.searches.late: must be a number and a unit"),
        (('key = ["id"]', 'key = ["id", "id"]'), "stream_queries.recent.key: names a column twice: id"),
        (('key = ["id"]', 'key = ["id"]\ntype = "redis"'), "stream_queries.recent.type: a stream query has the store"),
        (('key = ["id"]', 'key = ["id"]\napply = false'), "stream_queries.recent.apply: a stream query is always"),
        (('key = ["id"]', 'key = ["id"]\ntopic = "rows"'), "stream_queries.recent.topic: must be true or false"),
        (('key = ["id"]', 'key = ["id"]\nwebhook = { url = "h/x" }'), "stream_queries.recent.webhook.url: "),
        (
            ('key = ["id"]', 'key = ["id"]\nwebhook = { url = "https://h/x?token=tell" }'),
            "stream_queries.recent.webhook.url: holds a password, or an @ that has to be written as %40; use"
            " stream_queries.recent.webhook.url_file",
        ),
        (('key = ["id"]', 'key = ["id"]\nurl = "postgresql://a:b@c/d"'), "use login.password_file, or the sink's own"),
        (('sink = "warehouse"', "sink = 3"), "stream_queries.recent.sink: must be the name of a sink"),
        (
            ('sink = "warehouse"', 'sink = { type = "redis", url = "redis://x/0" }'),
            "stream_queries.recent.sink: must be the name of a sink",
        ),
        (('late = "10 minutes"', 'late = "1 day"\nid = ["id", "id"]'), "streams.searches.id: names a column twice: id"),
        (('"web.searches"', '"web searches"'), "streams.searches.topic: a topic's name has up to 249"),
        (('"web.searches"', '"shop.__stream_queries.recent"'), "streams.searches.topic is written by this pipeline's"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, change: tuple[str, str], problem: str) -> None:
    assert problem in problems(tmp_path, change)


def test_two_streams_of_one_topic_are_refused(tmp_path: Path) -> None:
    second = '[streams.others]\ntopic = "web.searches"\ncolumns = { at = "timestamptz" }\ntime = "at"\nlate = "1 day"\n'
    told = problems(tmp_path, ("[stream_queries.recent]", f"{second}[stream_queries.recent]"))
    assert "streams.searches and streams.others have one topic" in told


@pytest.mark.parametrize(
    ("facts", "state", "needs_somebody"),
    [
        ({}, "absent", False),
        ({"problem": LockstepError("no answer")}, "unknown", True),
        ({"job": JobStatus(JobState.RUNNING)}, "running", False),
        ({"job": JobStatus(JobState.RUNNING), "waits_for": "there is no topic"}, "waiting", False),
        ({"job": JobStatus(JobState.ABSENT), "waits_for": "there was no topic"}, "absent", False),
        ({"job": JobStatus(JobState.SILENT, 0)}, "silent", True),
        ({"job": JobStatus(JobState.STOPPED, reason="its checkpoint is gone")}, "stopped", True),
    ],
)
def test_a_query_that_is_not_run_is_told_of(facts: Mapping[str, Any], state: str, needs_somebody: bool) -> None:
    status = StreamQueryStatus("recent", "shop.__stream_queries.recent", 1, True, **facts)
    assert (status.state, status.needs_somebody) == (state, needs_somebody)
    assert bool(status.hint) == needs_somebody
    assert bool(status.reason) == (state not in ("absent", "running"))


def test_figures_are_told_to_programs_with_their_offsets_by_partition() -> None:
    figures = Figures(batch=3, watermark_ms=1_000, results=5, late=2, offsets={("web.searches", 0): 17})
    told = StreamQueryStatus("recent", "topic", 1, True, figures=figures).to_json()
    assert (told["results"], told["late"], told["watermark_ms"]) == (5, 2, 1_000)
    assert told["offsets"] == {"web.searches-0": 17}
