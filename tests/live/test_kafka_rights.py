"""A pipeline and its commands on a broker that gives each user what the docs say to grant it, and no more."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from pyspark.sql import SparkSession

from cdc.kafka.control_topics import read_tables
from cdc.kafka.topic_names import view_topic
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from cdc.postgres.preflight.finding import Severity
from jobs.generations.asides import load_asides
from lockstep.config import load
from lockstep.doctor.sinks import check_view_topics
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.captured import Captured
from tests.databases import Database, until
from tests.guarded_kafka import GuardedKafka, guarded_kafka
from tests.pipeline import Pipeline, wait_until
from tests.tls_servers import PASSWORD

pytestmark = pytest.mark.live

_PAGES = Path(__file__).parents[2] / "docs"
_LOGIN = 'security_protocol = "sasl_plaintext"\nsasl_mechanism = "SCRAM-SHA-512"\npassword_file = "password"\n'


def rights(page: str, heading: str, columns: int) -> list[list[str]]:
    """The rows of the first table below a heading of a page."""
    text = (_PAGES / page).read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    assert all(len(row) == columns for row in rows)
    return rows[2:]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedKafka]:
    with guarded_kafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running


def _granted(broker: GuardedKafka, pipeline: str, user: str, *who: str) -> None:
    for name, resource, operations in rights("kafka.md", "Rights in Kafka", 3):
        if name in who:
            broker.grant(user, resource, operations.split(", "), pipeline=pipeline)


@pytest.fixture
def pipeline(endpoints: Endpoints, broker: GuardedKafka, tmp_path: Path) -> Iterator[Pipeline]:
    """Its configuration has the login of the sinks; another file beside it has that of capture."""
    name = f"t{uuid.uuid4().hex[:10]}"
    (tmp_path / "password").write_text(PASSWORD)
    pipeline = Pipeline(
        replace(endpoints, kafka_bootstrap=broker.address),
        tmp_path,
        name,
        sinks=True,
        more={
            "kafka": f'{_LOGIN}username = "{name}-sinks"',
            "search": f'where = {{ "{name}.account" = "id > 0" }}',  # Spark's own client reads for it
            "cache": "max_value_bytes = 10_000",
        },
    )
    for user, who in (("capture", ["capture"]), ("sinks", ["sinks and commands"])):
        broker.add_user(f"{name}-{user}")
        _granted(broker, name, f"{name}-{user}", *who, "all")
        (tmp_path / f"{user}.toml").write_text(pipeline.path.read_text().replace(f"{name}-sinks", f"{name}-{user}"))
    yield pipeline
    pipeline.close()


@pytest.mark.busy
@pytest.mark.soak
def test_a_pipeline_and_its_commands_live_with_the_rights_that_they_are_to_be_given(
    pipeline: Pipeline, broker: GuardedKafka, spark: SparkSession
) -> None:
    name = pipeline.name
    with pipeline.sql() as connection:
        connection.execute(f"insert into {name}.account (id, owner) select i, 'o' from generate_series(1, 50) i")
        connection.execute(f"insert into {name}.entry select i, 1, 'n', '{{}}' from generate_series(1, 50) i")
    capture = pipeline.start("lockstep", "capture", "--config", str(pipeline.directory / "capture.toml"))
    pipeline.wait_streaming(capture)
    pipeline.change_accounts("streamed")
    with pipeline.sql() as connection:
        connection.execute(f"insert into {name}.account (id, owner) values (999, repeat('x', 20000))")
    pipeline.run("snapshot", "table", f"{name}.entry")
    pipeline.wait_published(capture)
    assert pipeline.apply(spark, once=True).finish() == 0
    cache = f"{name}_cache"
    assert "max_value_bytes" in pipeline.run("rejections", "list", cache)
    with pipeline.sql() as connection:
        connection.execute(f"delete from {name}.account where id = 999")
    following = pipeline.apply(spark)
    for sink in pipeline.config.sinks:
        pipeline.run("verify", sink)
    pipeline.run("wait")
    _granted(broker, name, f"{name}-sinks", "standing searches")
    search = f"{name}_search"
    query = ("--table", f"{name}.account", "--query", '{"match_all": {}}')
    pipeline.run("searches", "add", "all", "--sink", search, *query)
    watching = pipeline.start("lockstep", "searches", "watch", search, "--config", str(pipeline.path))
    wait_until(lambda: "search compared" in watching.told(), what="the search is told of")
    assert pipeline.stop(watching) == 0
    pipeline.run("lag")
    pipeline.run("state")
    pipeline.run("generations", cache)
    pipeline.run("tail", f"{name}.account", "--from-start", "--count", "3")
    assert pipeline.rebuild(spark, cache, switch_over=True).finish().is_live
    _granted(broker, name, f"{name}-sinks", "`lockstep doctor`")
    said = pipeline.run("doctor")
    assert "not authorized" not in said.lower(), said
    assert (following.poll(), capture.poll()) == (None, None)


@pytest.mark.soak
def test_who_lacks_a_right_is_told_which_one(pipeline: Pipeline, broker: GuardedKafka) -> None:
    """Brokers hide a topic from who may not describe it: that must not pass for a topic that doesn't exist."""

    def told(*command: str, user: str, ends_with: int = 1) -> str:
        path = pipeline.directory / f"{user}.toml"
        path.write_text(pipeline.path.read_text().replace(f"{pipeline.name}-sinks", f"{pipeline.name}-{user}"))
        process = pipeline.start("lockstep", *command, "--config", str(path))
        assert pipeline.wait_ended(process) == ends_with, process.told()
        return process.told()

    assert "the right Create" in told("capture", user="sinks")
    capture = pipeline.start("lockstep", "capture", "--config", str(pipeline.directory / "capture.toml"))
    pipeline.wait_streaming(capture)
    pipeline.wait_published(capture)
    assert pipeline.stop(capture) == 0
    said = told("capture", user="sinks")
    assert ("the right Write on topic" in said, "lockstep tables remove" in said) == (True, True), said
    broker.grant(f"{pipeline.name}-sinks", "topics `<pipeline>.*`", ["Write"], pipeline=pipeline.name)
    assert "Write on its transactional ids" in told("capture", user="sinks")
    broker.add_user(f"{pipeline.name}-nobody")
    hidden = "the right Describe on the pipeline's topics"
    account = f"{pipeline.name}.account"
    for command in (["capture"], ["tail", account, "--from-start"], ["lag"], ["apply", "--once"]):
        assert hidden in told(*command, user="nobody")
    said = told("doctor", user="nobody")
    assert (hidden in said, "pg_drop_replication_slot" in said, "will be created" in said) == (True, False, False), said


@pytest.mark.soak
def test_a_table_joins_capture_only_once_its_topic_may_be_created(
    database: Database, broker: GuardedKafka, tmp_path: Path
) -> None:
    """Until then it is as one that lacks anything else: nothing was promised of it, and the others go on."""
    user = f"joins-{uuid.uuid4().hex[:10]}"
    broker.add_user(user)
    for name, resource, operations in rights("kafka.md", "Rights in Kafka", 3):
        if name in ("capture", "all"):
            broker.grant(user, resource.replace("<pipeline>.", "t"), operations.split(", "), pipeline="")
    (tmp_path / "password").write_text(PASSWORD)
    database.execute(
        "create table t (id int primary key)",
        "create publication whole for tables in schema public with (publish_via_partition_root = true)",
    )
    captured = Captured(
        database,
        broker.address,
        tmp_path,
        ["public.*"],
        source="publication = 'whole'",
        sections=f'{_LOGIN}username = "{user}"',
    )
    with captured.start():
        with broker.denied(user, "topic `<pipeline>.public.late`", "Create", pipeline=captured.name):
            database.execute("create table late (id int primary key)", "insert into late values (1)")
            captured.wait_for("public.late matches source.tables and isn't captured: topic")
            assert any("the right Create" in line for line in captured.said)
            database.execute("insert into t values (1)", "insert into late values (2)")
            captured.assert_equal("public.t")
        captured.wait_for("public.late: matches source.tables, and is captured from now on")
        until(lambda: TableName("public", "late") in load(captured.path).source.table_names)
        captured.config = load(captured.path)
        captured.assert_equal("public.late", "public.t")


@pytest.mark.soak
def test_a_right_that_is_taken_away_stops_a_capture_that_runs(
    database: Database, broker: GuardedKafka, tmp_path: Path
) -> None:
    user = f"loses-{uuid.uuid4().hex[:10]}"
    broker.add_user(user)
    for name, resource, operations in rights("kafka.md", "Rights in Kafka", 3):
        if name in ("capture", "all"):
            broker.grant(user, resource.replace("<pipeline>.", "t"), operations.split(", "), pipeline="")
    (tmp_path / "password").write_text(PASSWORD)
    database.execute("create table t (id int primary key)")
    captured = Captured(database, broker.address, tmp_path, ["public.t"], sections=f'{_LOGIN}username = "{user}"')
    with captured:
        for number, resource in enumerate(
            (f"topic `{captured.topic('public.t')}`", f"transactional id `{captured.name}.{captured.config.slot}`")
        ):
            captured.start()
            captured.settle()
            with broker.denied(user, resource, "Write", pipeline=""):
                database.execute(f"insert into t values ({number})")
                error = captured.wait_error()
                assert isinstance(error, LockstepError)
                assert "Write" in (error.hint or ""), error
        captured.start()
        captured.assert_equal()


@pytest.mark.busy
@pytest.mark.soak
def test_a_sink_goes_on_without_the_table_whose_topic_it_may_not_read(
    pipeline: Pipeline, broker: GuardedKafka, spark: SparkSession
) -> None:
    """Its rows aren't passed over: once the right is granted, and the table resumed, the sink has all of them."""
    name, cache = pipeline.name, f"{pipeline.name}_cache"

    def write(key: int) -> None:
        with pipeline.sql() as connection, connection.transaction():
            connection.execute(f"insert into {name}.account (id, owner) values ({key}, 'o')")
            connection.execute(f"insert into {name}.entry values ({key}, 1, 'n', '{{}}')")

    def has(table: str, key: int) -> bool:
        shape = read_tables(pipeline.client, name)[TableName(name, table)]
        opened = open_sink(cache, pipeline.config.sinks[cache], 1)
        with closing(opened.sink):
            return any(key in stored.key.values() for stored in opened.sink.scan(shape))

    def reason() -> str | None:
        opened = open_sink(cache, pipeline.config.sinks[cache], 1)
        with closing(opened.sink):
            aside = load_asides(opened.records, 1).get(TableName(name, "entry"))
        return aside.sentence(cache, f"{name}.entry") if aside is not None and not aside.is_read else None

    write(1001)
    capture = pipeline.start("lockstep", "capture", "--config", str(pipeline.directory / "capture.toml"))
    pipeline.wait_streaming(capture)
    pipeline.wait_published(capture)
    assert pipeline.apply(spark, cache, once=True).finish() == 0
    following = None
    for key, right in ((1002, "Describe"), (1003, "Read")):  # when the job starts, and while it runs
        with broker.denied(f"{name}-sinks", f"topic `<pipeline>.{name}.entry`", right, pipeline=name):
            write(key)
            pipeline.wait_published(capture)
            following = following or pipeline.apply(spark, cache)
            until(lambda: reason() is not None)
            told = reason() or ""
            wanted = (f"{name}.{name}.entry", f"the right {right}", f"lockstep resume {cache}")
            assert [part in told for part in wanted] == [True] * 3, told
            # A fetch that waited at the broker when the right went may still have brought the first row.
            later = key + 10
            write(later)
            until(lambda later=later: has("account", later))
            assert not has("entry", later)
        pipeline.run("resume", cache, f"{name}.entry")
        until(lambda later=later: has("entry", later))
        assert has("entry", key)
    pipeline.run("wait", "--sink", cache, "--timeout", "180")
    pipeline.run("verify", cache)
    assert following is not None
    assert (following.poll(), capture.poll()) == (None, None)


@pytest.mark.soak
@pytest.mark.busy
def test_the_job_of_a_view_with_a_topic_needs_the_rights_that_it_is_to_be_given(
    pipeline: Pipeline, broker: GuardedKafka, spark: SparkSession
) -> None:
    name, user, view = pipeline.name, f"{pipeline.name}-sinks", f"{pipeline.name}_owners"
    pipeline.path.write_text(
        f'{pipeline.path.read_text()}\n[views.{view}]\nsink = "{name}_cache"\ntopic = true\nkey = ["owner"]\n'
        f'sql = "select owner, count(*) as n from {name}.account where owner is not null group by owner"\n'
    )
    config = load(pipeline.path)
    topic = view_topic(name, view, 1)

    def found(severity: Severity) -> list[str]:
        return [each.what for each in check_view_topics(config, name=view) if each.severity is severity]

    with pipeline.sql() as connection:
        connection.execute(f"insert into {name}.account (id, owner) values (1, 'a'), (2, 'b'), (3, 'b')")
    capture = pipeline.start("lockstep", "capture", "--config", str(pipeline.directory / "capture.toml"))
    pipeline.wait_streaming(capture)
    pipeline.wait_published(capture)

    refused = f"topic {topic} can't be created"
    assert any(refused in what for what in found(Severity.ERROR))
    without = pipeline.apply(spark, view, once=True)
    assert without.finish() == 1
    assert (refused in without.told(), "the right Create" in without.told()) == (True, True), without.told()

    _granted(broker, name, user, "jobs, [view topics](view-changes.md)", "jobs, view topics")
    assert (found(Severity.ERROR), found(Severity.OK)) == ([], [f"topic {topic} is created by its job"])
    assert pipeline.apply(spark, view, once=True).finish() == 0
    assert found(Severity.OK) == [f"topic {topic} is there"]
    assert {orjson.loads(record.key)["owner"] for record in TopicReader(pipeline.client).records(topic)} == {"a", "b"}
    with broker.denied(user, f"topic `{topic}`", "Write", pipeline=name):
        assert found(Severity.ERROR) == [f"the right Write on topic {topic} lacks"]
