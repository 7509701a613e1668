"""``lockstep doctor`` over source and Kafka: before capture's first start, and when others meddle."""

import json
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer

from cdc.kafka.control_topics import read_compacted
from cdc.kafka.newest_records import newest_records
from cdc.kafka.topic_admin import TopicAdmin, control_topic_plans, table_topic_plan
from cdc.kafka.topic_names import PROGRESS, SCHEMA, STATE, control_topic
from cdc.model.errors import Unavailable
from cdc.model.finding import Finding, Severity
from cdc.model.table import TableName
from cdc.postgres.replication import ReplicationConnection
from cdc.postgres.slot import drop_slot, emit_functions
from cdc.protocol.control_records import CaptureState
from lockstep.config import Config, load
from lockstep.doctor.examine import examine, is_healthy
from migrations.source import messages_sql, publication_sql
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.builders import table
from tests.configurations import query
from tests.databases import Database
from tests.events import Log, Put, kafka_settings
from tests.history import state as any_state

pytestmark = pytest.mark.live

T = TableName("public", "t")


class Case:
    """A database with a table, and a configuration for it."""

    def __init__(self, database: Database, endpoints: Endpoints, directory: Path) -> None:
        """Nothing is captured yet."""
        self.database = database
        self.name = f"d{uuid.uuid4().hex[:12]}"
        self.path = directory / "lockstep.toml"
        database.execute(
            "create table t (id int primary key, v varchar(20))",
            messages_sql("postgres", emit_functions(database.connection)),
        )
        self.path.write_text(f"""
[pipeline]
name = "{self.name}"
[source]
dsn = "{database.dsn}"
tables = ["public.t"]
[kafka]
bootstrap_servers = "{endpoints.kafka_bootstrap}"
topics = {{ partitions = 3, replication_factor = 1 }}
""")
        self.config: Config = load(self.path)
        self.client = self.config.kafka.client()

    def create_topics(self) -> None:
        topics = self.config.kafka.topics
        TopicAdmin(self.client).create(
            [*control_topic_plans(self.name, topics), table_topic_plan(self.config.topics()[T], topics)]
        )

    def produce(self, topic: str, key: bytes, value: bytes) -> None:
        producer = Producer(self.client)
        producer.produce(topic, key=key, value=value)
        assert producer.flush(30) == 0

    def state(self) -> CaptureState:
        """A state as capture would have it after its snapshot."""
        with ReplicationConnection(self.config.source) as connection:
            identity = connection.identify_system()
        return replace(
            any_state(),
            slot=self.config.slot,
            publication=self.config.publication,
            database=self.database.name,
            system_id=identity.system_id,
            timeline=identity.timeline,
            end_lsn=identity.wal_end,
        )

    def make_slot(self) -> None:
        """Make the slot, and before it the publication that capture makes."""
        self.database.execute(
            publication_sql(self.config.publication, [T], version=self.database.connection.info.server_version)
        )
        with ReplicationConnection(self.config.source) as connection:
            connection.create_slot(self.config.slot, temporary=False)

    def wrong(self) -> list[tuple[Severity, str, str]]:
        return [
            (finding.severity, finding.subject, finding.what)
            for finding in examine(self.config)
            if finding.severity is not Severity.OK
        ]


@pytest.fixture
def case(database: Database, endpoints: Endpoints, tmp_path: Path) -> Case:
    return Case(database, endpoints, tmp_path)


def test_a_pipeline_before_its_first_start_is_healthy(case: Case) -> None:
    findings = examine(case.config)
    assert [finding for finding in findings if finding.severity is not Severity.OK] == []
    assert is_healthy(findings)
    assert "replication connection" in [finding.subject for finding in findings]


def test_that_every_role_may_ask_for_copies_is_told_until_its_sql_was_run(case: Case) -> None:
    functions = emit_functions(case.database.connection)
    case.database.execute(f"grant execute on function {', '.join(functions)} to public")
    (finding,) = [finding for finding in examine(case.config) if finding.severity is Severity.WARNING]
    assert (finding.subject, finding.what) == ("logical messages", "every role may write them")
    case.database.execute(finding.fix)
    assert case.wrong() == []
    with case.database.pinned(user=case.database.role()) as other, pytest.raises(psycopg.errors.InsufficientPrivilege):
        other.execute("select pg_logical_emit_message(true, 'lockstep.repair', '')")


@pytest.mark.soak
def test_control_records_that_somebody_else_wrote_are_found(case: Case) -> None:
    case.create_topics()
    case.make_slot()
    case.produce(control_topic(case.name, STATE), case.config.slot.encode(), case.state().to_bytes())
    for name, key in ((STATE, b"\xff"), (SCHEMA, b"mine"), (PROGRESS, b"k")):
        case.produce(control_topic(case.name, name), key, b"hello")
    found = [(subject, what.split(":")[0]) for _, subject, what in case.wrong()]
    words = "holds a record that isn't one of Lockstep's"
    assert sorted(found) == sorted(
        (f"topic {control_topic(case.name, name)}", words) for name in (STATE, SCHEMA, PROGRESS)
    )


def test_a_pipeline_that_runs_is_healthy(case: Case) -> None:
    case.create_topics()
    case.make_slot()
    state = case.state()
    case.produce(control_topic(case.name, STATE), case.config.slot.encode(), state.to_bytes())
    assert case.wrong() == []


def test_a_publication_that_was_dropped_is_missed_once_capture_has_begun_with_it(case: Case) -> None:
    assert any(finding.what.startswith("doesn't exist yet; capture creates it") for finding in examine(case.config))
    case.create_topics()
    case.make_slot()
    case.produce(control_topic(case.name, STATE), case.config.slot.encode(), case.state().to_bytes())
    assert case.wrong() == []
    case.database.execute(f"drop publication {case.config.publication}")
    (finding,) = [finding for finding in examine(case.config) if finding.subject.startswith("publication ")]
    assert finding.severity is Severity.ERROR
    assert finding.what == "is gone: it was dropped after capture began with it"
    case.database.execute(finding.fix.splitlines()[0])
    assert case.wrong() == []


_SINKS = """
[sinks.search]
type = "opensearch"
urls = ["{search}"]
replicas = 0
exclude = ["public.t.vv"]
[sinks.words]
type = "opensearch"
urls = ["{search}"]
replicas = 0
fields = {{ "public.t.v" = {{ type = "text", analyzer = "germann" }} }}
[sinks.cache]
type = "redis"
url = "{redis}"
sets = {{ "public.t" = ["by_w:{{w}}"] }}
[sinks.lake]
type = "delta"
root = "{lake}"
partition_by = {{ "public.t" = ["x"] }}
[sinks.dwh]
type = "warehouse"
url = "{warehouse}"
indexes = {{ "public.t" = [{{ columns = ["id"] }}, {{ columns = ["y"] }}] }}
[sinks.right]
type = "opensearch"
urls = ["{search}"]
replicas = 0
mask = {{ "public.t.v" = {{ truncate = 1 }} }}
rename = {{ "public.t.v" = "value" }}
fields = {{ "public.t.value" = {{ type = "text", analyzer = "german" }} }}
"""


def test_settings_of_sinks_that_name_what_is_not_there_are_found_and_nothing_is_created(
    case: Case, endpoints: Endpoints, tmp_path: Path
) -> None:
    sinks = _SINKS.format(
        search=endpoints.opensearch_url,
        redis=endpoints.redis_url,
        warehouse=endpoints.warehouse_url,
        lake=tmp_path / "lake",
    )
    case.path.write_text(case.path.read_text() + sinks)
    config = load(case.path)
    told = {finding.subject: finding.what for finding in examine(config) if finding.severity is Severity.ERROR}
    assert told == {
        "sink search": "exclude: table public.t has no column vv",
        "sink words": "opensearch refuses the index of table public.t: analyzer [germann] has not been configured in"
        " mappings",
        "sink cache": "sets: table public.t has no column 'w'",
        "sink lake": "table public.t has no column 'x' to be partitioned by",
        "sink dwh": "indexes: public.t has no column 'y'",
    }
    for name, settings in config.sinks.items():
        opened = open_sink(name, settings, 1)
        assert list(opened.generations.numbers()) == []
        opened.sink.close()


def test_tables_that_a_sink_cannot_hold_are_found(case: Case, endpoints: Endpoints, tmp_path: Path) -> None:
    case.database.execute(
        'create table tagged (id int primary key, "_tag" text)',
        f"create table wide (id int primary key, {', '.join(f'c{number} int' for number in range(1_599))})",
        "create schema a",
        "create table a.b (id int primary key)",
        "create table a__b (id int primary key)",
    )
    sinks = f"""
[sinks.dwh]
type = "warehouse"
url = "{endpoints.warehouse_url}"
[sinks.file]
type = "warehouse"
url = "duckdb:///{tmp_path}/dwh.duckdb"
[sinks.lake]
type = "delta"
root = "{tmp_path}/lake"
[sinks.cache]
type = "redis"
url = "{endpoints.redis_url}"
"""
    every = '"public.t", "public.tagged", "public.wide", "a.b", "public.a__b"'
    case.path.write_text(case.path.read_text().replace('tables = ["public.t"]', f"tables = [{every}]") + sinks)
    found = [finding for finding in examine(load(case.path)) if finding.severity is Severity.ERROR]
    tagged, wide, twice = ("public.tagged has a column '_tag'", "public.wide has 1,600 columns", "the name 'a__b'")
    told = {(finding.subject, text) for finding in found for text in (tagged, wide, twice) if text in finding.what}
    assert told == {("sink dwh", tagged), ("sink dwh", wide), ("sink dwh", twice)} | {
        (f"sink {name}", text) for name in ("file", "lake") for text in (tagged, twice)
    }
    assert len(found) == len(told)
    assert {finding.why for finding in found} == {"its job holds this table, and goes on without it"}
    assert all(finding.fix for finding in found)


def test_a_view_that_can_not_be_kept_is_told_of_with_every_reason(case: Case, endpoints: Endpoints) -> None:
    sink = f"""
[sinks.cache]
type = "redis"
url = "{endpoints.redis_url}"
apply = false
"""
    views = query("views.newest", "select id, lower(v) as v, now() as t from t") + query(
        "views.kept", "select id, v from t"
    )
    case.path.write_text(case.path.read_text() + sink + views)
    found = [finding for finding in examine(load(case.path)) if finding.severity is Severity.ERROR]
    assert {finding.subject for finding in found} == {"view newest"}
    assert sorted(finding.what.partition(":")[0] for finding in found) == ["CURRENT_TIMESTAMP", "LOWER(v)"]


def test_a_slot_that_nobody_knows_is_found_and_its_sql_removes_it(case: Case) -> None:
    case.create_topics()
    case.make_slot()
    (finding,) = [finding for finding in examine(case.config) if finding.severity is Severity.ERROR]
    assert finding.what == "exists, but Kafka holds no state of this pipeline for it"
    case.database.execute(finding.fix)
    assert case.wrong() == []


def test_a_slot_that_is_gone_is_found(case: Case) -> None:
    case.create_topics()
    case.make_slot()
    case.produce(control_topic(case.name, STATE), case.config.slot.encode(), case.state().to_bytes())
    drop_slot(case.database.connection, case.config.slot)
    ((severity, _, what),) = case.wrong()
    assert (severity, what.split(";")[0]) == (Severity.ERROR, "is gone")


@pytest.mark.soak
def test_a_slot_that_another_client_reads_is_found(case: Case) -> None:
    case.make_slot()
    reader = Path(case.path.parent / "reader.log")
    with reader.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _OTHER_READER, case.database.dsn, case.config.slot],
            stdout=subprocess.PIPE,
            stderr=output,
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n", reader.read_text()
        findings = [finding for finding in case.wrong() if "is read by" in finding[2]]
        assert [(severity, what.split(" (")[0]) for severity, _, what in findings] == [
            (Severity.ERROR, "is read by intruder")
        ]
    finally:
        process.kill()
        process.communicate()


_OTHER_READER = """
import sys, time, psycopg
connection = psycopg.connect(sys.argv[1], autocommit=True, replication="database", application_name="intruder")
connection.execute("create publication p")
command = f"START_REPLICATION SLOT {sys.argv[2]} LOGICAL 0/0 (proto_version '1', publication_names 'p')"
connection.pgconn.send_query(command.encode())
connection.pgconn.flush()
assert connection.pgconn.get_result().status == psycopg.pq.ExecStatus.COPY_BOTH
print("started", flush=True)
time.sleep(300)
"""


def test_events_are_nobody_elses(endpoints: Endpoints) -> None:
    # Behind a partition's newest event come markers of transactions that wrote only to other partitions.
    shape = table()
    log = Log(kafka_settings(endpoints.kafka_bootstrap, partitions=2), f"d{uuid.uuid4().hex[:12]}", [shape])
    for number in range(30):
        log.commit([Put(shape, {"id": number % 3})])
    log.close()
    with pytest.raises(Unavailable, match="don't list topic no-such-topic"):
        newest_records(log.kafka.client(), [log.topic(shape), "no-such-topic"])
    records = newest_records(log.kafka.client(), [log.topic(shape)])
    assert {record.topic for record in records} == {log.topic(shape)}
    assert all(record.value is not None and record.value.startswith(b'{"op":"u"') for record in records)


def test_the_command_fails_when_something_would(case: Case) -> None:
    case.database.execute("alter table t drop constraint t_pkey")
    done = subprocess.run(
        [sys.executable, "-m", "lockstep", "doctor", "--config", str(case.path), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    findings = [Finding(**fields) for fields in json.loads(done.stdout)]
    (error,) = [finding for finding in findings if finding.severity == "error"]
    assert (done.returncode, error.subject, error.what) == (1, "table public.t", "has no primary key")
    assert error.fix.startswith('alter table "public"."t" add primary key (id);')


def test_doctor_writes_nothing(case: Case) -> None:
    case.create_topics()
    slots = case.database.value("select count(*) from pg_replication_slots where database = current_database()")
    examine(case.config)
    assert case.database.value("select count(*) from pg_replication_slots where database = current_database()") == slots
    assert case.database.value("select count(*) from pg_publication") == 0
    assert read_compacted(case.client, control_topic(case.name, STATE)) == {}
