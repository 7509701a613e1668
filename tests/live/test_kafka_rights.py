"""A pipeline and its commands on a broker that gives each user exactly what the docs say to grant."""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stack.stack import Endpoints
from tests.guarded_kafka import GuardedKafka, guarded_kafka
from tests.pipeline import Pipeline, wait_until
from tests.tls_servers import PASSWORD

pytestmark = pytest.mark.live

_PAGES = Path(__file__).parents[2] / "docs"
_LOGIN = 'sasl_mechanism = "SCRAM-SHA-512"\npassword_file = "password"\n'


def rights(page: str, heading: str, columns: int) -> list[list[str]]:
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
    """Its configuration has the sinks' login; another file beside it has capture's."""
    name = f"t{uuid.uuid4().hex[:10]}"
    (tmp_path / "password").write_text(PASSWORD)
    pipeline = Pipeline(
        replace(endpoints, kafka_bootstrap=broker.address),
        tmp_path,
        name,
        sinks=True,
        more={
            "kafka": f'{_LOGIN}username = "{name}-sinks"',
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
    wait_until(lambda: "search compared" in watching.output(), what="the search is told of")
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
    """Brokers hide a topic from users who may not describe it. That must not pass for a missing topic."""

    def told(*command: str, user: str, ends_with: int = 1) -> str:
        path = pipeline.directory / f"{user}.toml"
        path.write_text(pipeline.path.read_text().replace(f"{pipeline.name}-sinks", f"{pipeline.name}-{user}"))
        process = pipeline.start("lockstep", *command, "--config", str(path))
        assert pipeline.wait_ended(process) == ends_with, process.output()
        return process.output()

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
