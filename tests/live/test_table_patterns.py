"""Tables that patterns of ``source.tables`` take in: at the first start, while capture runs, and while it is down."""

import os
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from cdc.kafka.control_topics import read_progress, read_state
from cdc.kafka.publisher import TransactionalPublisher
from cdc.kafka.topic_admin import TopicAdmin, table_topic_plan
from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.table import TableName
from cdc.postgres.preflight.finding import Finding, Severity
from cdc.protocol.control_records import selection_of
from lockstep.capture import run as run_module
from lockstep.capture.run import Observer
from lockstep.capture.run import capture as run_capture
from lockstep.config import load, read
from lockstep.doctor.examine import examine
from lockstep.doctor.patterns import choose_tables
from stack.ports import pick
from stack.stack import Endpoints
from tests.captured import Captured, StartCapture
from tests.databases import Database, until
from tests.pipeline import Process

pytestmark = pytest.mark.live


def _names(captured: Captured) -> list[str]:
    """The captured tables as a process that reads the file by now has them."""
    captured.config = load(captured.path)
    return [str(name) for name in captured.config.source.table_names]


def _recorded(captured: Captured) -> list[str]:
    state = read_state(captured.client, captured.name, captured.config.slot)
    return [] if state is None else [str(name) for name in state.captured]


def _about(captured: Captured, subject: str) -> list[Finding]:
    return [finding for finding in examine(read(captured.path)) if finding.subject == subject]


def _publication(captured: Captured) -> str:
    return captured.config.publication


def _publish(database: Database, captured: Captured, table: str) -> None:
    database.execute(f'alter publication "{captured.config.publication}" add table {table}')


@pytest.mark.soak
def test_a_first_start_takes_what_matches_and_nothing_that_can_not_be_captured(
    database: Database, capture: StartCapture
) -> None:
    database.execute(
        "create schema sales",
        "create table sales.order_a (id int primary key)",
        'create table sales."order_B.c" (id int primary key)',
        "create table sales.other (id int primary key)",
        "create table t (id int primary key)",
        "create table t_old (id int primary key)",
        "create table parts (id int primary key) partition by range (id)",
        "create table parts_1 partition of parts for values from (0) to (9)",
        "create unlogged table volatile (id int primary key)",
        "create view seen as select * from t",
        "create schema shop_g1",
        "create table shop_g1.t (id int primary key, _tag text)",
        "insert into t values (1)",
        "insert into sales.order_a values (2)",
        "insert into parts values (3)",
    )
    # One is named as well, which makes no difference; it comes first.
    captured = capture("public.t", "*.*", source="exclude_tables = ['public.*_old', 'sales.oth*', 'public.volatile']")
    expected = ["public.t", "public.parts", "sales.order_a", 'sales."order_B.c"']
    assert sorted(_names(captured)) == sorted(expected)
    captured.assert_equal(*expected)
    database.execute('insert into sales."order_B.c" values (1)', "update parts set id = 4")
    captured.assert_equal(*expected)


def test_a_table_that_comes_while_capture_runs_is_told_of_and_joins_once_it_is_published(
    database: Database, capture: StartCapture
) -> None:
    database.execute("create table t (id int primary key)", "insert into t values (1)")
    captured = capture("public.*")
    captured.settle()
    database.execute("create table late (id int primary key, v text)", "insert into late values (1, 'before')")
    captured.wait_for(
        f"public.late matches source.tables and isn't captured: publication {_publication(captured)} lacks"
    )
    errors = [finding for finding in _about(captured, "source.tables") if finding.severity is Severity.ERROR]
    assert ["public.late" in finding.what for finding in errors] == [True]
    assert _names(captured) == ["public.t"]

    _publish(database, captured, "late")
    captured.wait_for("public.late: matches source.tables, and is captured from now on")
    until(lambda: _recorded(captured) == ["public.late", "public.t"])
    database.execute("insert into late values (2, 'after')", "insert into t values (2)")
    assert _names(captured) == ["public.late", "public.t"]
    captured.assert_equal("public.late", "public.t")
    assert not [finding for finding in _about(captured, "source.tables") if finding.severity is Severity.ERROR]


@pytest.mark.soak
def test_a_table_that_the_stream_shows_joins_before_its_first_transaction_is_published(
    database: Database, capture: StartCapture
) -> None:
    """Nobody looks at the catalogue in this hour. Who waits for that transaction isn't told that sinks have it."""
    database.execute("create table t (id int primary key)")
    database.execute("create publication whole for tables in schema public with (publish_via_partition_root = true)")
    captured = capture("public.*", source="publication = 'whole'")
    captured.stop()
    captured.configure(heartbeat_interval_s=3600.0)
    captured.start()
    database.execute("insert into t values (1)")
    captured.settle()
    with database.connection.transaction():
        database.execute(
            "create table late (id int primary key, v text)",
            "create table keyless (v text)",
            "insert into keyless values ('of no use')",
            "insert into t values (2)",
            "insert into late values (1, 'first')",
        )
    before = {selection_of([TableName("public", "t")])}
    captured.wait_for("public.late: matches source.tables, and is captured from now on")
    until(lambda: _recorded(captured) == ["public.late", "public.t"])
    assert _names(captured) == ["public.late", "public.t"]
    captured.assert_equal("public.late", "public.t")
    committed = min(int(event.tag[4:20], 16) for event in captured.events("public.t") if event.after["id"] == 2)
    told = {record.selection for record in read_progress(captured.client, captured.name) if record.lsn > committed}
    assert told == {selection_of([TableName("public", "late"), TableName("public", "t")])}
    assert not told & before


@pytest.mark.soak
def test_a_new_table_that_a_lock_keeps_from_being_judged_is_waited_for_and_one_that_can_not_join_is_not(
    database: Database, capture: StartCapture
) -> None:
    """PostgreSQL says how it publishes a table only when it has the locks of all tables of the publication."""
    database.execute(
        "create table locked (id int primary key)",
        "create table t (id int primary key)",
        "create publication whole for tables in schema public with (publish_via_partition_root = true)",
    )
    captured = capture("public.*", source="publication = 'whole'")
    captured.stop()
    captured.configure(heartbeat_interval_s=3600.0)
    captured.start()
    captured.settle()
    with psycopg.connect(database.dsn) as altering:
        altering.execute("lock table locked in access exclusive mode")
        database.execute(
            "create table keyless (v text)", "insert into keyless values ('x')", "insert into t values (1)"
        )
        until(lambda: len(captured.events("public.t")) == 1)
        with database.connection.transaction():
            database.execute(
                "create table late (id int primary key)", "insert into t values (2)", "insert into late values (1)"
            )
        captured.wait_for(
            "public.late matches source.tables, and nobody knows yet whether it can be captured: a table is locked"
        )
        assert len(captured.events("public.t")) == 1
    captured.wait_for("public.late is copied: 1 rows")
    assert _names(captured) == ["public.late", "public.locked", "public.t"]
    captured.assert_equal("public.late", "public.t")
    committed = min(int(event.tag[4:20], 16) for event in captured.events("public.t") if event.after["id"] == 2)
    told = {record.selection for record in read_progress(captured.client, captured.name) if record.lsn > committed}
    assert told == {selection_of([TableName("public", name) for name in ("late", "locked", "t")])}


@pytest.mark.soak
def test_a_table_that_comes_while_capture_is_down_joins_at_its_next_start(
    database: Database, capture: StartCapture
) -> None:
    database.execute("create table t (id int primary key)")
    captured = capture("public.*", source="exclude_tables = ['public.ignored*']")
    captured.settle()
    captured.stop()
    database.execute(
        "create table late (id int primary key)",
        "insert into late values (1)",
        "create table ignored_1 (id int primary key)",
    )
    _publish(database, captured, "late, ignored_1")
    captured.start()
    assert _names(captured) == ["public.late", "public.t"]
    captured.assert_equal("public.late", "public.t")


@pytest.mark.soak
def test_a_table_without_a_key_is_refused_by_name_and_stops_nothing_that_runs(
    database: Database, capture: StartCapture
) -> None:
    database.execute("create table t (id int primary key)")
    captured = capture("public.*")
    captured.settle()
    database.execute("create table keyless (v int)")
    _publish(database, captured, "keyless")
    captured.wait_for("public.keyless matches source.tables and isn't captured: it has no")
    assert any(finding.severity is Severity.ERROR for finding in _about(captured, "table public.keyless"))
    captured.stop()
    captured.start()
    database.execute("insert into t values (1)")
    captured.assert_equal("public.t")

    database.execute("alter table keyless add id int primary key", "insert into keyless values (1, 1)")
    until(lambda: "public.keyless" in _recorded(captured))
    assert _names(captured) == ["public.keyless", "public.t"]
    captured.assert_equal("public.keyless", "public.t")


def test_a_matching_table_that_is_renamed_keeps_its_topic_and_one_that_is_dropped_its_place(
    database: Database, capture: StartCapture
) -> None:
    database.execute("create table a (id int primary key)", "create table b (id int primary key)")
    captured = capture("public.*")
    captured.settle()
    database.execute("alter table a rename to c", "insert into c values (1)", "drop table b")
    captured.wait_for("public.a is named public.c now")
    captured.wait_for("public.b")
    captured.stop()
    captured.start()
    database.execute("insert into c values (2)")
    until(lambda: len(captured.rows("public.a")) == 2)
    assert _names(captured) == ["public.a", "public.b"]


@pytest.mark.soak
def test_a_pattern_that_matches_nothing_stops_the_first_start_and_is_a_finding(
    database: Database, endpoints: Endpoints, tmp_path: Path
) -> None:
    database.execute("create table t (id int primary key)")
    captured = Captured(database, endpoints.kafka_bootstrap, tmp_path, ["public.t"])
    captured.path.write_text(captured.path.read_text().replace("'public.t'", "'public.t', 'sales.*'"))
    with pytest.raises(ConfigurationError, match=r"no table matches 'sales\.\*'"):
        load(captured.path)
    assert [finding.severity for finding in _about(captured, "source.tables")] == [Severity.ERROR]
    captured.config = read(captured.path)
    captured.begin()
    assert isinstance(captured.wait_error(), ConfigurationError)


@contextmanager
def _process(captured: Captured, directory: Path) -> Iterator[Process]:
    """Capture as a process of its own, which begins again by itself and by nothing else."""
    process = Process(directory / "capture.log", "lockstep", "capture", "--config", str(captured.path))
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _figures(address: str) -> dict[str, float]:
    """The metrics of an endpoint; none as long as nobody answers."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    except OSError:
        return {}
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@pytest.mark.soak
def test_a_table_that_joins_is_counted_and_is_no_restart_of_capture(
    database: Database, endpoints: Endpoints, tmp_path: Path
) -> None:
    database.execute("create table t (id int primary key)", "insert into t values (1)")
    address = f"127.0.0.1:{pick(None, taken=())}"
    captured = Captured(
        database, endpoints.kafka_bootstrap, tmp_path, ["public.t"], sections=f"[metrics]\ncapture = '{address}'"
    )
    captured.path.write_text(captured.path.read_text().replace("'public.t'", "'public.*'"))
    with _process(captured, tmp_path) as process:

        def says(figure: str, value: float) -> None:
            def is_said() -> bool:
                assert process.poll() is None, process.told()
                return _figures(address).get(figure) == value

            until(is_said)

        of_topic = "lockstep_capture_records_published_total{topic="
        says(f'{of_topic}"{captured.name}.public.t"}}', 1)
        database.execute("create table late (id int primary key)", "insert into late values (1), (2)")
        _publish(database, captured, "late")
        says('lockstep_capture_copied_rows_total{table="public.late"}', 2)
        database.execute("insert into late values (3)")
        says(f'{of_topic}"{captured.name}.public.late"}}', 3)
        assert _figures(address).get("lockstep_capture_restarts_total", 0) == 0


def test_a_table_that_can_not_be_captured_waits_by_itself_with_what_to_do(
    database: Database, capture: StartCapture
) -> None:
    long = "ü" * 31  # each takes six characters in the name of a topic
    database.execute("create table t_x (id int primary key)")
    captured = capture("*.*")
    publication = f'"{captured.config.publication}"'
    foreign = f"{captured.name}.public.foreign_events"
    TopicAdmin(captured.client).create([table_topic_plan(foreign, captured.config.kafka.topics)])
    producer = Producer(dict(captured.client))
    producer.produce(foreign, key=b"k", value=b"v")
    assert producer.flush(30) == 0
    database.execute(
        "create table listed (id int primary key, v text)",
        f"alter publication {publication} add table listed (v)",
        f'create schema "{long}"',
        f'create table "{long}"."{long}" (id int primary key)',
        "create schema public_t",
        "create table public_t.x (id int primary key)",
        "create table foreign_events (id int primary key)",
        f'alter publication {publication} add table "{long}"."{long}", public_t.x, foreign_events',
    )
    waits = "matches source.tables and isn't captured: "
    for name, words in (
        (
            "public.listed",
            f"{waits}publication {captured.config.publication} leaves out key columns of public.listed: id",
        ),
        (str(TableName(long, long)), f"{waits}the topic name for"),
        ("public_t.x", f"{waits}its topic {captured.name}.public_t.x can't be beside {captured.name}.public.t_x"),
        ("public.foreign_events", f"{waits}slot {captured.config.slot} has published nothing to topic {foreign}"),
    ):
        captured.wait_for(f"warning: {name} {words}")
    assert any('exclude_tables = ["public_t.x"]' in line for line in captured.said)
    database.execute("insert into t_x values (1)")
    captured.assert_equal("public.t_x")
    captured.stop()
    captured.start()
    database.execute("insert into t_x values (2)")
    captured.assert_equal("public.t_x")
    assert _names(captured) == ["public.t_x"]

    admin = AdminClient(dict(captured.client))
    admin.delete_topics([foreign], operation_timeout=30)[foreign].result(300)
    database.execute(
        f"alter publication {publication} drop table listed",
        f"alter publication {publication} add table listed",
        f'alter schema "{long}" rename to short',
        "alter table public_t.x rename to y",
    )
    expected = ["public.foreign_events", "public.listed", "public.t_x", "public_t.y", str(TableName("short", long))]
    until(lambda: _recorded(captured) == expected)
    assert _names(captured) == expected
    captured.assert_equal(*expected)


@pytest.mark.soak
def test_a_table_that_our_role_can_not_read_waits_by_itself(database: Database, capture: StartCapture) -> None:
    role = database.role()
    database.execute("create table t (id int primary key)", f"grant select on t to {role}")
    captured = capture("public.t")
    captured.stop()
    captured.path.write_text(
        captured.path.read_text()
        .replace(f"dsn = '{database.dsn}'", f"dsn = '{database.dsn} user={role}'")
        .replace("'public.t'", "'public.*'")
    )
    captured.config = load(captured.path)
    captured.start()
    database.execute(
        "create table secret (id int primary key)",
        "create table hiding (id int primary key)",
        "alter table hiding enable row level security",
        f"grant select on hiding to {role}",
        "insert into secret values (1)",
        "insert into hiding values (1)",
    )
    _publish(database, captured, "secret, hiding")
    captured.wait_for(f"public.secret matches source.tables and isn't captured: role {role} can't read it")
    captured.wait_for("public.hiding matches source.tables and isn't captured: row level security hides rows of it")
    assert any(f'grant select on "public"."secret" to "{role}"' in line for line in captured.said)
    captured.stop()
    captured.start()
    database.execute("insert into t values (1)")
    captured.assert_equal("public.t")

    database.execute(f"grant select on secret to {role}", "alter table hiding disable row level security")
    until(lambda: _recorded(captured) == ["public.hiding", "public.secret", "public.t"])
    assert len(_names(captured)) == 3
    captured.assert_equal("public.hiding", "public.secret", "public.t")


@pytest.mark.soak
def test_a_partitioned_table_waits_for_the_setting_that_it_needs(database: Database, capture: StartCapture) -> None:
    database.execute("create table t (id int primary key)")
    captured = capture("public.*")
    publication = f'"{captured.config.publication}"'
    captured.stop()
    database.execute(f"alter publication {publication} set (publish_via_partition_root = false)")
    captured.start()
    database.execute(
        "create table parts (id int primary key) partition by range (id)",
        "create table parts_1 partition of parts for values from (0) to (9)",
        "insert into parts values (1)",
        f"alter publication {publication} add table parts",
    )
    captured.wait_for("public.parts matches source.tables and isn't captured")
    (told,) = [line for line in captured.said if "public.parts matches" in line]
    assert f"alter publication {publication} set (publish_via_partition_root = true);" in told
    assert 'exclude_tables = ["public.parts"]' in told
    assert "add table" not in told
    database.execute(f"alter publication {publication} set (publish_via_partition_root = true)")
    until(lambda: _recorded(captured) == ["public.parts", "public.t"])
    assert len(_names(captured)) == 2
    captured.assert_equal()


def _joined_and_not_copied(database: Database, capture: StartCapture) -> Captured:
    """Ended after ``public.late`` had joined, and before anything of it was published."""
    database.execute("create table t (id int primary key)")
    captured = capture("public.*")
    captured.settle()
    captured.stop()
    database.execute("create table late (id int primary key)", "insert into late values (1)")
    _publish(database, captured, "late")

    def end_here(_: TransactionalPublisher) -> Any:
        raise LockstepError("ended by the test")

    captured.begin(wrap_publisher=end_here)
    assert "ended by the test" in str(captured.wait_error())
    assert _recorded(captured) == ["public.late", "public.t"]
    return captured


@pytest.mark.parametrize(
    ("left", "back", "told"),
    [
        ('alter publication "{}" drop table late', 'alter publication "{}" add table late', "publication"),
        (
            "alter table late drop constraint late_pkey",
            "alter table late add primary key (id)",
            "it has no primary key",
        ),
    ],
    ids=["publication", "key"],
)
@pytest.mark.soak
def test_a_table_that_joined_and_was_not_copied_waits_again(
    database: Database, capture: StartCapture, left: str, back: str, told: str
) -> None:
    captured = _joined_and_not_copied(database, capture)
    database.execute(left.format(captured.config.publication))
    captured.start()
    captured.wait_for("public.late: isn't captured any more")
    captured.wait_for(f"public.late matches source.tables and isn't captured: {told}")
    database.execute("insert into t values (1)")
    assert _names(captured) == ["public.t"]
    captured.assert_equal("public.t")
    database.execute(back.format(captured.config.publication), "insert into late values (2)")
    until(lambda: _recorded(captured) == ["public.late", "public.t"])
    assert len(_names(captured)) == 2
    captured.assert_equal("public.late", "public.t")


@pytest.mark.soak
def test_a_table_that_joined_and_is_dropped_before_its_copy_is_told_of_and_stops_nothing(
    database: Database, capture: StartCapture
) -> None:
    captured = _joined_and_not_copied(database, capture)
    database.execute("drop table late")
    captured.start()
    captured.wait_for("public.late: isn't captured any more; there is no table of its name any more")
    database.execute("insert into t values (1)")
    assert _names(captured) == ["public.t"]
    captured.assert_equal("public.t")


def _in_its_first_copy(database: Database, capture: StartCapture) -> Captured:
    """Capture in the middle of the first copy of ``public.late``, in chunks."""
    database.execute("create table t (id int primary key)")
    captured = capture("public.*", sections="[snapshot]\nrows_per_s = 20")
    captured.settle()
    database.execute("create table late (id int primary key)", "insert into late select generate_series(1, 2000)")
    _publish(database, captured, "late")
    late = TableName("public", "late")

    def has_rows() -> bool:
        state = read_state(captured.client, captured.name, captured.config.slot)
        return state is not None and late in state.copying and state.copying[late].rows > 0

    until(has_rows)
    return captured


@pytest.mark.parametrize("while_down", [True, False], ids=["down", "running"])
@pytest.mark.soak
def test_a_table_that_is_renamed_in_its_first_copy_stays_and_is_told_of(
    database: Database, capture: StartCapture, while_down: bool
) -> None:
    captured = _in_its_first_copy(database, capture)
    if while_down:
        captured.stop()
    database.execute("alter table late rename to renamed")
    if while_down:
        captured.start()
    captured.wait_for("public.late is named public.renamed now")
    if not while_down:
        captured.stop()
        captured.start()
    database.execute("insert into t values (1)")
    assert _names(captured) == ["public.late", "public.t"]
    until(lambda: len(captured.rows("public.t")) == 1)


@pytest.mark.soak
def test_a_table_that_is_dropped_in_its_first_copy_is_told_of(database: Database, capture: StartCapture) -> None:
    captured = _in_its_first_copy(database, capture)
    captured.stop()
    database.execute("drop table late")
    captured.start()
    captured.wait_for("warning: public.late: not in publication")
    assert _names(captured) == ["public.late", "public.t"]


@pytest.mark.soak
def test_a_capture_that_takes_over_goes_on_with_what_the_one_before_took_in_meanwhile(
    database: Database, capture: StartCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("create table t (id int primary key)")
    captured = capture("public.*")
    captured.settle()
    database.execute("create table late (id int primary key)", "insert into late values (1)")

    late = TableName("public", "late")

    def is_copied() -> bool:
        state = read_state(captured.client, captured.name, captured.config.slot)
        return state is not None and late in state.copied

    def copied_by_the_one_before() -> None:
        _publish(database, captured, "late")
        until(is_copied)
        database.execute("drop table late")  # a new look at the catalogue alone wouldn't find it any more

    def late_publisher(*arguments: Any, **options: Any) -> TransactionalPublisher:
        publisher = capture_publisher(*arguments, **options)
        if threading.current_thread() is not newer:
            return publisher
        start = publisher.start

        def fence() -> None:
            copied_by_the_one_before()
            start()

        monkeypatch.setattr(publisher, "start", fence)
        return publisher

    capture_publisher = run_module.capture_publisher
    monkeypatch.setattr(run_module, "capture_publisher", late_publisher)
    said: list[str] = []
    stop = threading.Event()
    newer = threading.Thread(
        target=run_capture,
        args=(read(captured.path).as_pipeline(),),
        kwargs={"stopping": stop.is_set, "observer": Observer(say=said.append)},
        daemon=True,
    )
    newer.start()
    try:
        until(lambda: any("streaming from" in line for line in said))
        assert _recorded(captured) == ["public.late", "public.t"]
    finally:
        stop.set()
        newer.join()


@pytest.mark.soak
def test_doctor_does_not_know_what_is_captured_where_kafka_does_not_answer(
    database: Database, endpoints: Endpoints, tmp_path: Path
) -> None:
    database.execute("create table t (id int primary key)")
    captured = Captured(database, endpoints.kafka_bootstrap, tmp_path, ["public.t"])
    nobody = f"127.0.0.1:{pick(None, taken=())}"
    text = captured.path.read_text().replace(endpoints.kafka_bootstrap, nobody).replace("'public.t'", "'public.*'")
    captured.path.write_text(f"{text}\n[sinks.cache]\ntype = 'redis'\nurl = 'redis://nobody'\ntables = ['public.t']\n")
    chosen = choose_tables(read(captured.path))
    assert [(finding.severity, finding.what) for finding in chosen.findings] == [
        (Severity.WARNING, "what 'public.*' takes in isn't known")
    ]
    assert "public.t" in chosen.findings[0].why
    assert "Kafka, which doesn't answer" in chosen.findings[0].why
