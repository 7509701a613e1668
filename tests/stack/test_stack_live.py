"""The servers themselves: up, up again, killed, frozen, down. One stack of its own, which these tests may hurt."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

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


def test_a_failed_start_shows_the_end_of_its_log(directory: Path) -> None:
    stack = Stack(directory, kafka_overrides={"num.io.threads": "many"}, light=True)
    with pytest.raises(StackError) as caught:
        stack.up(["kafka"])
    message = str(caught.value)
    assert "num.io.threads" in message
    assert stack.status()[2].state == "stopped"


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
