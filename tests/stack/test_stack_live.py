"""The servers themselves: up, up again, killed, frozen, down. One stack of its own, which these tests may hurt."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL

import psutil
import psycopg
import pytest
import redis
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from opensearchpy import OpenSearch
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stack.errors import StackError
from stack.postgres import home_of
from stack.process import Launch, ProcessId, Tail, is_alive
from stack.process import family as family_of
from stack.server import Ports
from stack.stack import NAMES, Endpoints, ServerStatus, Stack
from stack.valkey import Valkey
from tests.services import KAFKA_OVERRIDES, temporary_directory

# Each starts and stops servers of its own, for ten seconds and more: only a change of stack/ can break it.
pytestmark = [pytest.mark.live, pytest.mark.soak]


@pytest.fixture(scope="module")
def mine() -> Iterator[Stack]:
    with temporary_directory() as directory:
        stack = Stack(directory, durable=False, light=True, kafka_overrides=KAFKA_OVERRIDES)
        try:
            stack.up()
            yield stack
        finally:
            stack.down()


@pytest.fixture
def directory() -> Iterator[Path]:
    """For one stack more. Not pytest's own: as root, PostgreSQL's user couldn't go there."""
    with temporary_directory() as path:
        yield path


@pytest.fixture
def up(mine: Stack) -> Endpoints:
    """All servers up, whatever the test before did to them."""
    return mine.up()


def status(stack: Stack) -> dict[str, ServerStatus]:
    return {server.name: server for server in stack.status()}


def pids(stack: Stack) -> dict[str, int | None]:
    return {server.name: server.pid for server in stack.status()}


def members(numbers: Iterable[int | None]) -> list[ProcessId]:
    """The processes with these numbers and all that they started."""
    named = [ProcessId.of(number) for number in numbers if number is not None]
    return [member for server in named if server is not None for member in family_of(server)]


def write_row(endpoints: Endpoints) -> None:
    with psycopg.connect(endpoints.source_dsn) as connection:
        connection.execute("create table if not exists kept (id bigserial primary key)")
        connection.execute("insert into kept default values")


def rows(endpoints: Endpoints) -> int:
    with psycopg.connect(endpoints.source_dsn) as connection:
        row = connection.execute("select count(*) from kept").fetchone()
    assert row is not None
    return int(row[0])


def write_message(endpoints: Endpoints, topic: str) -> None:
    settings: dict[str, str | int | float | bool] = {"bootstrap.servers": endpoints.kafka_bootstrap, "log_level": 0}
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(300)
    producer = Producer(settings)
    producer.produce(topic, value=b"kept", key=b"1")
    assert producer.flush(30) == 0


def messages(endpoints: Endpoints, topic: str) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": endpoints.kafka_bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe([topic])
        polled = consumer.consume(1, timeout=30)
        return [message.value() for message in polled]
    finally:
        consumer.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_every_server_runs_and_says_where(mine: Stack, up: Endpoints) -> None:
    assert [server.state for server in mine.status()] == ["running"] * len(NAMES)
    for server in mine.status():
        assert "127.0.0.1" in server.address
        assert server.rss_bytes > 0
        assert server.started_at is not None
    assert mine.endpoints() == up


def test_the_source_can_be_decoded_and_the_warehouse_is_another_server(up: Endpoints) -> None:
    with psycopg.connect(up.source_dsn) as source, psycopg.connect(up.warehouse_dsn) as warehouse:
        assert source.execute("show wal_level").fetchone() == ("logical",)
        assert source.execute("select current_database()").fetchone() == ("app",)
        assert warehouse.execute("select current_database()").fetchone() == ("warehouse",)
        identity = "select system_identifier from pg_control_system()"
        assert source.execute(identity).fetchone() != warehouse.execute(identity).fetchone()


def test_others_on_this_machine_need_the_password(up: Endpoints) -> None:
    for dsn in (up.source_dsn, up.warehouse_dsn):
        passfile = Path(str(conninfo_to_dict(dsn)["passfile"]))
        assert passfile.stat().st_mode & 0o777 == 0o600
        for who in ({"dbname": "postgres"}, {"replication": "database"}):
            with pytest.raises(psycopg.OperationalError, match="no password supplied"):
                psycopg.connect(make_conninfo(dsn, passfile=os.devnull, **who))


def test_a_lost_passfile_is_replaced_at_the_next_start(mine: Stack, up: Endpoints) -> None:
    write_row(up)
    counted = rows(up)
    mine.kill("postgres")
    Path(str(conninfo_to_dict(up.source_dsn)["passfile"])).unlink()
    assert mine.up() == up
    assert rows(up) == counted


def test_topics_and_indices_never_appear_by_themselves(up: Endpoints) -> None:
    admin = AdminClient({"bootstrap.servers": up.kafka_bootstrap, "log_level": 0})
    producer = Producer({"bootstrap.servers": up.kafka_bootstrap, "log_level": 0, "message.timeout.ms": 2000})
    producer.produce("mistyped", value=b"")
    producer.flush(5)
    assert "mistyped" not in admin.list_topics(timeout=10).topics
    with OpenSearch(up.opensearch_url) as client:
        refused = client.index(index="mistyped", body={}, params={"ignore": 404})
        assert refused["status"] == 404


def test_nothing_listens_beyond_this_machine(mine: Stack, up: Endpoints) -> None:
    for server in mine.status():
        assert server.pid is not None
        listening = [
            connection.laddr.ip
            for connection in psutil.Process(server.pid).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert listening
        assert {address.removeprefix("::ffff:") for address in listening} <= {"127.0.0.1", "::1"}, server.name


def test_up_twice_is_harmless(mine: Stack, up: Endpoints) -> None:
    before = pids(mine)
    assert mine.up() == up
    assert pids(mine) == before


def test_a_killed_server_comes_back_with_its_data_and_the_others_stay(mine: Stack, up: Endpoints) -> None:
    write_row(up)
    counted = rows(up)
    before = pids(mine)
    mine.kill("postgres")
    assert status(mine)["postgres"].state == "dead"
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(up.source_dsn)
    assert mine.up() == up
    assert rows(up) == counted
    assert {name for name, pid in pids(mine).items() if pid != before[name]} == {"postgres"}


def test_a_killed_kafka_keeps_what_it_acknowledged(mine: Stack, up: Endpoints) -> None:
    write_message(up, "kept-by-kill")
    mine.kill("kafka")
    mine.start("kafka")
    assert messages(up, "kept-by-kill") == [b"kept"]


def test_a_stopped_server_keeps_its_port_and_data(mine: Stack, up: Endpoints) -> None:
    with redis.Redis.from_url(up.redis_url) as client:
        client.set("kept", "yes")
    with OpenSearch(up.opensearch_url) as search:
        search.indices.create(index="kept", params={"ignore": 400})
        search.index(index="kept", id="1", body={"a": 1}, params={"refresh": "true"})
    for name in ("valkey", "opensearch"):
        mine.stop(name)
        assert status(mine)[name].state == "stopped"
    assert mine.up() == up
    with redis.Redis.from_url(up.redis_url) as client:
        assert client.get("kept") == b"yes"
    with OpenSearch(up.opensearch_url) as search:
        assert search.count(index="kept")["count"] == 1


def test_a_frozen_server_answers_nobody_until_it_thaws(mine: Stack, up: Endpoints) -> None:
    with psycopg.connect(up.source_dsn, autocommit=True) as connection:
        mine.freeze("postgres")
        wait_for(lambda: status(mine)["postgres"].state == "frozen")
        connection.pgconn.send_query(b"select 1")
        time.sleep(0.3)
        connection.pgconn.consume_input()
        assert connection.pgconn.is_busy()
        mine.thaw("postgres")
        assert connection.pgconn.get_result() is not None
        assert connection.pgconn.get_result() is None
    assert status(mine)["postgres"].state == "running"


def test_up_thaws(mine: Stack, up: Endpoints) -> None:
    before = pids(mine)
    mine.freeze("valkey")
    assert mine.up() == up
    assert pids(mine) == before
    assert status(mine)["valkey"].state == "running"


def test_a_server_that_runs_nowhere_can_not_be_killed(directory: Path) -> None:
    with pytest.raises(StackError, match="doesn't run"):
        Stack(directory).kill("kafka")


def test_servers_that_nobody_asked_for_stay_down(directory: Path) -> None:
    stack = Stack(directory)
    try:
        endpoints = stack.up(["valkey"])
        assert {server.name for server in stack.status() if server.state == "running"} == {"valkey"}
        # Their addresses are settled all the same, and are those that they will have.
        assert endpoints.source_dsn.startswith("host=127.0.0.1 port=")
    finally:
        stack.down()


def test_a_failed_start_shows_the_end_of_its_log(directory: Path) -> None:
    stack = Stack(directory, kafka_overrides={"num.io.threads": "many"}, light=True)
    with pytest.raises(StackError) as caught:
        stack.up(["kafka"])
    message = str(caught.value)
    assert "num.io.threads" in message
    assert stack.status()[2].state == "stopped"


def test_a_failed_server_does_not_take_the_others_with_it(directory: Path) -> None:
    stack = Stack(directory)
    try:
        stack.up(["valkey"])
        stack.stop("valkey")
        (appendonly,) = directory.glob("valkey-*/appendonlydir")
        for file in appendonly.iterdir():
            file.write_bytes(b"not valkey's")
        with pytest.raises(StackError) as caught:
            stack.up(["valkey", "warehouse"])
        assert "valkey 9" in str(caught.value)
        assert "logs/valkey.log" in str(caught.value)
        assert {server.name for server in stack.status() if server.state == "running"} == {"warehouse"}
    finally:
        stack.down()


def test_a_port_that_is_taken_at_the_last_moment_is_given_up(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = Valkey.ports
    with socket.create_server(("127.0.0.1", 0)) as faster:
        busy = int(faster.getsockname()[1])
        choices = iter([{"main": busy}])
        monkeypatch.setattr(Valkey, "ports", lambda *arguments: next(choices, None) or choose(*arguments))
        stack = Stack(directory)
        try:
            endpoints = stack.up(["valkey"])
            assert str(busy) not in endpoints.redis_url
        finally:
            stack.down()


def test_a_start_that_does_nothing_is_given_up(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _begin_with(monkeypatch, "import time; time.sleep(3600)")
    stack = Stack(directory, quiet_seconds=0.5)
    with pytest.raises(StackError, match=r"valkey .* has done nothing for 0 s"):
        stack.up(["valkey"])
    assert not [server for server in stack.status() if server.pid is not None]


def test_a_start_that_gets_on_is_waited_for(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes three times as long as one that does nothing may take."""
    go = directory / "go"
    _begin_with(
        monkeypatch,
        f"import os, sys, time\nwhile not os.path.exists({str(go)!r}): print('loading', flush=True); time.sleep(0.1)\n"
        "os.execvp(sys.argv[1], sys.argv[1:])",
    )
    is_ready, began, quiet_seconds = Valkey.is_ready, time.monotonic(), 3.0

    def look(valkey: Valkey, ports: Ports, tail: Tail) -> bool:
        if time.monotonic() - began > 3 * quiet_seconds:
            go.touch()
        return is_ready(valkey, ports, tail)

    monkeypatch.setattr(Valkey, "is_ready", look)
    stack = Stack(directory, quiet_seconds=quiet_seconds)
    try:
        stack.up(["valkey"])
    finally:
        stack.down()


def _begin_with(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Valkey's process is a Python program first, with Valkey's command as its arguments."""
    prepare = Valkey.prepare

    def prepared(valkey: Valkey, ports: Ports, directory: Path) -> Launch:
        launch = prepare(valkey, ports, directory)
        return replace(launch, command=[sys.executable, "-c", program, *launch.command])

    monkeypatch.setattr(Valkey, "prepare", prepared)


def test_an_unknown_server_is_an_error(directory: Path) -> None:
    with pytest.raises(StackError, match="there is no server 'redis'"):
        Stack(directory).up(["redis"])


def test_two_stacks_do_not_meet(mine: Stack, up: Endpoints, directory: Path) -> None:
    other = Stack(directory)
    try:
        endpoints = other.up(["valkey", "warehouse"])
        assert endpoints.redis_url != up.redis_url
        other.down()
        assert mine.up() == up
    finally:
        other.down()


def test_servers_outlive_the_command_and_the_next_one_stops_them(directory: Path) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "stack", *arguments, "--directory", str(directory), "--json"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    endpoints = json.loads(run("up", "valkey", "warehouse"))
    try:
        with redis.Redis.from_url(endpoints["redis_url"]) as client:
            assert client.ping()
        running = [server["pid"] for server in json.loads(run("status")) if server["pid"]]
        assert len(running) == 2
        family = members(running)
        assert len(family) > len(running)
    finally:
        run("down")
    assert not any(is_alive(member) for member in family)


def test_somebody_with_a_database_starts_only_what_they_lack(directory: Path) -> None:
    def lockstep(*arguments: str) -> str:
        command = [sys.executable, "-m", "lockstep", *arguments, "--directory", str(directory)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    printed = lockstep("up", "valkey")
    try:
        assert [line.split(" = ")[0] for line in printed.splitlines()] == ["redis_url"]
        running = [server["name"] for server in json.loads(lockstep("status", "--json")) if server["pid"]]
        assert running == ["valkey"]
    finally:
        lockstep("down")


def test_a_server_that_died_unseen_is_started_again(mine: Stack, up: Endpoints) -> None:
    pid = pids(mine)["valkey"]
    assert pid is not None
    psutil.Process(pid).send_signal(SIGKILL)
    wait_for(lambda: status(mine)["valkey"].state == "dead")
    assert mine.up() == up


def test_down_leaves_no_process(mine: Stack, up: Endpoints) -> None:
    family = members(pids(mine).values())
    assert len(family) > len(NAMES)
    mine.down()
    assert not any(is_alive(member) for member in family)
    assert [server.state for server in mine.status()] == ["stopped"] * len(NAMES)
    mine.down()


def test_remove_leaves_nothing_of_ours_and_everything_else(directory: Path) -> None:
    private = directory / "private"
    private.mkdir(mode=0o700)
    stack = Stack(private)
    (private / "mine.txt").touch()
    stack.up(["warehouse", "valkey"])
    elsewhere = home_of(private)
    stack.remove()
    assert [path.name for path in private.iterdir()] == ["mine.txt"]
    assert elsewhere == private or not elsewhere.exists()
