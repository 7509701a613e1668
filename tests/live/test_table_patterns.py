"""Tables that patterns of ``source.tables`` take in: at the first start, while capture runs, and while it is down."""

import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc.kafka.control_topics import read_state
from cdc.model.errors import ConfigurationError
from cdc.postgres.preflight.finding import Finding, Severity
from lockstep.config import load, read
from lockstep.doctor.examine import examine
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


def _publish(database: Database, captured: Captured, table: str) -> None:
    database.execute(f'alter publication "{captured.config.publication}" add table {table}')


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
    captured.wait_for("public.late matches source.tables and isn't captured: it isn't in publication")
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

            until(is_said, seconds=90)

        of_topic = "lockstep_capture_records_published_total{topic="
        says(f'{of_topic}"{captured.name}.public.t"}}', 1)
        database.execute("create table late (id int primary key)", "insert into late values (1), (2)")
        _publish(database, captured, "late")
        says('lockstep_capture_copied_rows_total{table="public.late"}', 2)
        database.execute("insert into late values (3)")
        says(f'{of_topic}"{captured.name}.public.late"}}', 3)
        assert _figures(address).get("lockstep_capture_restarts_total", 0) == 0
