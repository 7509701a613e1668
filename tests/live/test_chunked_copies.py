"""Copies in the middle of the stream that don't stop it: concurrent writes, kills, locks, long transactions."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import psycopg
import pytest

from cdc.capture.settings import SnapshotSettings
from cdc.model.table import TableName
from cdc.postgres.copy_orders import COPIES_PREFIX, CopyAction, CopyOrder, send_order
from cdc.postgres.repair_messages import request_repair
from cdc.postgres.slot import emit_messages
from cdc.protocol.control_records import CaptureState, TableCopy
from cdc.stream.topics import order_secret
from lockstep.cli.main import exit_code
from monitor.collector import LagCollector
from tests.captured import Captured, StartCapture
from tests.databases import Database, until
from tests.dying_publisher import Commit, Killed, dying
from tests.threads import beside

pytestmark = pytest.mark.live

_BIG = TableName("public", "big")
_TABLE = (
    "create table big (region text, id int, n int not null default 0, big text, primary key (region, id))",
    "alter table big alter big set storage external",
    "insert into big select (array['a', 'B', 'é', 'Z z', 'ß'])[n % 5 + 1], n, 0,"
    " case when n % 50 = 0 then repeat('x' || n, 3000) end from generate_series(1, 3000) n",
)


class Copying:
    """A capture of a table that is asked to copy it again, in small chunks."""

    def __init__(self, captured: Captured, database: Database) -> None:
        self.captured = captured
        self.database = database

    def ask(self, name: TableName = _BIG) -> None:
        request_repair(self.database.connection, name, None, slot=self.captured.config.slot)

    def copy(self, name: TableName = _BIG) -> TableCopy | None:
        return self.captured.state().copying.get(name)

    def wait(self, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            if self.captured.error is not None:
                raise self.captured.error
            return condition()

        until(holds, every_s=0.1)

    def ask_and(self, act: Callable[[], None], name: TableName = _BIG) -> None:
        """Ask for a copy, and act in the middle of it."""
        acted = self.act_after(0, act, name)
        self.ask(name)
        self.wait(acted.is_set)

    def act_after(self, rows: int, act: Callable[[], None], name: TableName = _BIG) -> threading.Event:
        """Act in capture's own thread, as soon as a copy has more rows than these: a look from here may be too late.
        What this writes to the log comes before the end of the next chunk."""
        acted = threading.Event()

        def committed(state: CaptureState) -> None:
            if not acted.is_set() and (copy := state.copying.get(name)) is not None and copy.rows > rows:
                act()
                acted.set()

        self.captured.after_commit = committed
        return acted

    def wait_paused(self, name: TableName = _BIG) -> None:
        self.wait(lambda: (copy := self.copy(name)) is not None and copy.paused)

    def wait_whole(self, name: TableName = _BIG) -> None:
        self.wait(lambda: name in self.captured.state().copied and name not in self.captured.state().copying)


@pytest.fixture
def copying(database: Database, capture: StartCapture) -> Copying:
    database.execute("create table other (id int primary key, n int)", *_TABLE)
    return Copying(capture("public.other", "public.big", start=False), database)


class Writers:
    """Change rows of the table all the time, in every way."""

    _STATEMENTS = (
        "update big set n = n + 1 where id % 97 = {0} % 97",
        "delete from big where id = {0}",
        "insert into big values ('new', {0} + 10000, 1, repeat('y', 3000)) on conflict do nothing",
        "update big set id = id + 100000 where id = {0} + 7",
        "update big set big = repeat('z', 4000) where id = {0} + 11",
        "insert into big select region, id, 5 from big where id % 501 = {0} % 501 on conflict do nothing",
        "insert into big values ('B', {0}) on conflict (region, id) do update set n = big.n + 1",
    )

    def __init__(self, database: Database) -> None:
        self._dsn = database.dsn
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(2)]

    def _write(self, number: int) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            at = number
            while not self._stop.is_set():
                statement = self._STATEMENTS[at % len(self._STATEMENTS)].format(at * 13 % 3000)
                with contextlib.suppress(psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                    connection.execute(statement)
                at += 2
                self._stop.wait(0.01)  # a pause, so that the copy ends on slow machines as well

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def assert_tags_grow(captured: Captured, table: str = "public.big") -> None:
    newest: dict[bytes, str] = {}
    for event in captured.events(table):
        if event.value is not None:
            assert event.tag >= newest.get(event.key, ""), event.key
            newest[event.key] = event.tag


@pytest.mark.alone
def test_a_commit_that_nobody_sees_so_far_holds_up_chunks_alone(
    copying: Copying, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a synchronous standby that isn't there: its events are published before it is visible."""
    monkeypatch.setattr("snapshot.waits.SAID_AFTER_S", 0.2)
    captured = copying.captured.start()
    captured.settle()
    server = database.value("select current_setting('synchronous_standby_names')")
    assert server == ""
    database.execute("alter system set synchronous_standby_names = 'nobody'", "select pg_reload_conf()")
    database.connection.execute("set synchronous_commit = local")
    try:
        hanging = threading.Thread(target=_commit_unseen, args=(database.dsn,))
        hanging.start()
        until(lambda: database.value("select count(*) from pg_stat_activity where wait_event = 'SyncRep'") > 0)
        pid = database.value("select pid from pg_stat_activity where wait_event = 'SyncRep' limit 1")
        copying.wait(lambda: any(event.op == "u" and event.after["n"] == 77 for event in captured.events("public.big")))
        copying.ask()
        copying.wait(lambda: copying.copy() is not None)
        database.execute("insert into other values (1, 1)")
        copying.wait(lambda: bool(captured.events("public.other")))
        copy = copying.copy()
        assert copy is not None
        assert copy.rows == 0
        assert database.value("select n from big where id = 5") == 0
        captured.wait_for(
            f"process {pid} (no name) has committed and waits for a standby: see synchronous_standby_names"
        )
        # Even for the next process, which hasn't published it.
        captured.stop()
        captured.start()
        database.execute("insert into other values (2, 2)")
        copying.wait(lambda: len(captured.events("public.other")) == 2)
        copy = copying.copy()
        assert copy is not None
        assert copy.rows == 0
        database.execute(f"select pg_cancel_backend({pid})")
        copying.wait_whole()
        hanging.join()
    finally:
        database.execute("alter system reset synchronous_standby_names", "select pg_reload_conf()")
        database.connection.execute("reset synchronous_commit")
    captured.assert_equal()
    assert_tags_grow(captured)


def _commit_unseen(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("update big set n = 77 where id = 5")


@pytest.mark.soak
@pytest.mark.parametrize("before", [True, False], ids=["before the commit", "after it"])
def test_kill_9_in_the_middle_of_a_copy_goes_on_behind_its_last_chunk(copying: Copying, before: bool) -> None:
    captured = copying.captured.start()
    captured.settle()
    with Writers(copying.database):
        copying.ask_and(captured.stopping.set)
        captured.stop()
        rows = [copy.rows if (copy := copying.copy()) is not None else 0]
        for chunks in (1, 2, 3):
            seen: set[int] = set()

            def dies(commit: Commit, chunks: int = chunks, seen: set[int] = seen) -> bool:
                seen.add(commit.state.copying[_BIG].rows)
                return len(seen) > chunks

            captured.begin(wrap_publisher=dying(dies, before=before))
            assert isinstance(captured.wait_error(), Killed)
            copy = copying.copy()
            assert copy is not None
            rows.append(copy.rows)
        assert rows == sorted(rows)
        assert rows[-1] > rows[0]
        captured.start()
        copying.wait_whole()
    captured.wait_quiet()
    captured.assert_equal()
    assert_tags_grow(captured)


_AT_EACH_CHANGE = ("another column",)
_IN_BETWEEN = {
    "truncate": ("truncate big", "insert into big values ('a', 1, 1)"),
    "another column": ("alter table big add more int default 5", "update big set n = 3 where id = 2900"),
    "a column less": ("alter table big drop n",),
    "another type": ("alter table big alter n type bigint",),
    "another key": ("alter table big drop constraint big_pkey", "alter table big add primary key (id)"),
    "another table": (
        "drop table big", "create table big (region text, id int, n int not null default 0, big text,"
        " primary key (region, id))", "insert into big values ('a', 1, 1)", "alter publication {0} add table big",
    ),
    "out of the publication and in": (
        "alter publication {0} drop table big", "update big set n = n + 1 where id % 3 = 0",
        "delete from big where id % 7 = 0", "alter publication {0} add table big",
    ),
    "moved rows": ("vacuum full big", "update big set n = 4 where id = 2800"),
}  # fmt: skip


@pytest.mark.parametrize(
    "change", [pytest.param(name, marks=() if name in _AT_EACH_CHANGE else pytest.mark.soak) for name in _IN_BETWEEN]
)
def test_a_table_that_changes_in_the_middle_of_its_copy(copying: Copying, change: str) -> None:
    captured = copying.captured.start()
    captured.settle()
    with _held_in_the_middle(copying):
        statements = [statement.format(captured.config.publication) for statement in _IN_BETWEEN[change]]
        copying.database.execute(*statements)
    copying.wait(lambda: copying.copy() is None)
    captured.wait_quiet()
    captured.assert_equal()


@contextlib.contextmanager
def _held_in_the_middle(copying: Copying, *, name: TableName = _BIG) -> Iterator[None]:
    """A copy that has rows and is paused. It goes on after this."""
    copying.ask_and(lambda: order(copying, CopyAction.PAUSE), name)
    copying.wait_paused(name)
    yield
    order(copying, CopyAction.RESUME)


def order(copying: Copying, action: CopyAction, name: TableName | None = None) -> None:
    secret = order_secret(copying.captured.config.as_pipeline())
    _send(copying, action, name, secret)


def _send(copying: Copying, action: CopyAction, name: TableName | None, secret: bytes) -> None:
    with psycopg.connect(copying.database.dsn) as connection:  # of its own: this runs in any thread
        send_order(connection, CopyOrder(copying.captured.config.slot, action, name), secret)


@pytest.mark.parametrize("secret", [pytest.param(b"", marks=pytest.mark.soak), b"another's"])
def test_an_order_that_nobody_signed_who_sees_the_topics_is_ignored(copying: Copying, secret: bytes) -> None:
    """Any role may write messages, and a paused copy holds up every sink's watermark."""
    captured = copying.captured.start()
    captured.settle()

    def send_unsigned() -> None:
        for action in (CopyAction.PAUSE, CopyAction.CANCEL):
            _send(copying, action, None, secret)

    copying.ask_and(send_unsigned)
    captured.wait_for("cancel of copies is ignored: any role may write such orders")
    # Any role can hear notifications.
    heard = CopyOrder(captured.config.slot, CopyAction.PAUSE, None, "ann", 4711)
    told = heard.signed(order_secret(captured.config.as_pipeline())).to_bytes()
    emit_messages(copying.database.connection, COPIES_PREFIX, [told])
    copying.wait(lambda: sum("pause of copies is ignored" in line for line in captured.said) == 2)
    copying.wait_whole()
    assert any("public.big is copied" in line for line in captured.said)
    user = copying.database.connection.info.user
    order(copying, CopyAction.PAUSE)
    captured.wait_for(f"no copy waits or runs (ordered by role {user})")


def _paused(captured: Captured) -> tuple[str, ...]:
    """The tables whose copies are paused, according to ``lag``."""
    with LagCollector(captured.config.as_pipeline(), {}) as collector:
        return collector.collect().paused_copies


def test_a_paused_copy_survives_a_restart_and_goes_on_where_it_was(copying: Copying) -> None:
    captured = copying.captured.start()
    captured.settle()
    with _held_in_the_middle(copying):
        captured.stop()  # until then the chunk that was being read at the pause may still come
        copy = copying.copy()
        assert copy is not None
        captured.start()
        copying.database.execute("insert into other values (1, 1)", "update big set n = 9 where id in (5, 2995)")
        copying.wait(lambda: bool(captured.events("public.other")))
        assert copying.copy() == copy
        assert _paused(captured) == ("public.big",)
    copying.wait_whole()
    assert any(f"after {copy.rows} rows" in line for line in captured.said)
    captured.assert_equal()
    assert _paused(captured) == ()


@pytest.mark.soak
def test_a_cancelled_copy_leaves_the_table_as_complete_as_it_was(copying: Copying) -> None:
    captured = copying.captured.start()
    captured.settle()
    membership = copying.captured.state().memberships[_BIG]
    copying.ask_and(lambda: order(copying, CopyAction.CANCEL, _BIG))
    copying.wait_whole()
    assert copying.captured.state().memberships[_BIG] == membership
    assert not any("is copied" in line for line in captured.said)
    copying.database.execute("update big set n = n + 1 where big is not null")
    captured.assert_equal()


@pytest.mark.soak
def test_a_table_that_leaves_in_the_middle_of_its_copy_is_copied_when_it_is_back(copying: Copying) -> None:
    captured = copying.captured.start()
    captured.settle()
    publication = captured.config.publication
    with _held_in_the_middle(copying):
        copying.database.execute("alter table big rename to elsewhere")

    def warnings() -> int:
        """Which warning comes depends on whether a look at the source came before the copy went on."""
        return sum("not in publication" in line or "its copy waits until" in line for line in captured.said)

    copying.wait(lambda: warnings() == 1)
    copying.database.execute("insert into other values (1, 1)")
    copying.wait(lambda: bool(captured.events("public.other")))  # the others go on
    copying.database.execute(
        "alter table elsewhere rename to big",
        f"alter publication {publication} drop table big",
        "update big set n = 11 where id < 100",
        f"alter publication {publication} add table big",
    )
    copying.wait_whole()
    captured.wait_quiet()
    captured.assert_equal()
    assert warnings() == 1


@pytest.mark.soak
def test_a_copy_takes_no_more_rows_a_second_than_it_may(copying: Copying) -> None:
    """Not its speed, but how much a chunk takes, and that no other begins before its time has come."""
    captured = copying.captured
    captured.config = captured.config.model_copy(update={"snapshot": SnapshotSettings(rows_per_s=5000)})
    captured.start()
    captured.settle()
    before = len(captured.events("public.big"))
    began_s = time.monotonic()
    copying.ask_and(lambda: None)
    copying.wait_whole()
    assert time.monotonic() - began_s > (3000 - 500) / 5000
    events = captured.events("public.big")[before:]
    copied = [event for event in captured.events("public.big") if event.op == "r"]
    assert len(events) == 3000
    assert max(Counter(event.tag for event in copied if event.tag > copied[0].tag).values()) <= 500


@pytest.mark.soak
def test_a_copy_ends_beside_writers_at_full_speed_on_the_same_rows(copying: Copying) -> None:
    """Each row is written again and again without its large value, which its update doesn't send."""
    captured = copying.captured
    database = copying.database
    database.execute("delete from big where id > 300", "update big set big = repeat('old' || id, 2000)")
    captured.start()
    captured.settle()

    def write(number: int, over: threading.Event) -> None:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            at = number
            while not over.is_set():
                connection.execute("update big set n = n + 1 where id = %s", (at % 300 + 1,))
                at += 3

    with beside(*(partial(write, number) for number in range(3))):
        copying.ask_and(lambda: None)
        copying.wait_whole()
    captured.assert_equal()
    assert_tags_grow(captured)
    assert all(event.after["big"] for event in captured.events("public.big") if event.op in "cru")


def test_updates_without_large_values_of_rows_that_werent_copied(copying: Copying) -> None:
    """They are read again, more of them than are held, and no event ever has a value that the row didn't have."""
    captured = copying.captured
    database = copying.database
    database.execute("update big set big = repeat('old' || id, 700)")
    captured.start()
    captured.settle()
    with _held_in_the_middle(copying):
        database.execute(
            "update big set n = n + 1 where id = 2", "update big set n = 5, id = id + 50000 where id = 2900"
        )
        copying.wait(lambda: bool((copy := copying.copy()) and copy.keys))
        database.execute("update big set n = n + 1")
        copying.wait(lambda: bool((copy := copying.copy()) and copy.is_incomplete))
        captured.stop()
        captured.start()
    copying.wait_whole()
    captured.assert_equal()
    assert_tags_grow(captured)
    assert all(event.after["big"] for event in captured.events("public.big") if event.op in "cru")


def test_what_the_topic_has_and_the_source_hasnt_is_deleted(copying: Copying) -> None:
    captured = copying.captured.start()
    captured.settle()
    captured.stop()
    publication = captured.config.publication
    copying.database.execute(
        f"alter publication {publication} drop table big",
        "delete from big where id % 2 = 0",
        "insert into big values ('unseen', 1, 1)",
        f"alter publication {publication} add table big",
    )
    captured.start()
    captured.wait_quiet()
    captured.assert_equal()
    assert sum(event.op == "d" for event in captured.events("public.big")) == 1500
    assert any("in chunks beside the stream" in line for line in captured.said)


def test_a_table_whose_keys_can_swap_stops_the_stream_for_its_copy(database: Database, capture: StartCapture) -> None:
    database.execute("create table odd (id int primary key deferrable initially deferred, n int)")
    database.execute("alter table odd replica identity full", "insert into odd values (1, 1), (2, 2)")
    options = "options = { 'public.odd' = { key = ['id'] } }"
    captured = capture("public.odd", source=options, start=False)
    copying = Copying(captured, database)
    _copied_as_one(copying)


def _copied_as_one(copying: Copying) -> None:
    captured = copying.captured
    captured.start()
    captured.settle()
    name = TableName("public", "odd")
    copying.ask(name)
    copying.wait(lambda: any("copying public.odd at" in line for line in captured.said))
    copying.wait_whole(name)
    captured.assert_equal()
    assert not any("chunks" in line for line in captured.said)
    assert captured.copied_rows("public.odd") == 4


@pytest.mark.soak
def test_a_partitioned_table_in_the_order_of_its_key(copying: Copying) -> None:
    captured = copying.captured
    copying.database.execute(
        "create table parts (id int, at int, n int, primary key (id, at)) partition by range (at)",
        "create table low partition of parts for values from (0) to (10)",
        "create table high partition of parts for values from (10) to (20)",
        "insert into parts select n, n % 20, 0 from generate_series(1, 1000) n",
    )
    captured.configure(tables=(*captured.config.source.tables, "public.parts"))
    captured.start()
    captured.settle()
    name = TableName("public", "parts")
    with _held_in_the_middle(copying, name=name):
        copying.database.execute(
            "update parts set at = (at + 11) % 20 where id % 3 = 0", "delete from parts where id % 5 = 0"
        )
    copying.wait_whole(name)
    captured.assert_equal()


_PASSES = {
    "dropped": ("drop table middle",),
    "emptied": ("truncate middle",),
    "attached again": (
        "alter table parts detach partition middle",
        "delete from middle where id < 1003",
        "alter table parts attach partition middle for values from (1000) to (2000)",
    ),
}


@pytest.mark.parametrize(
    "passes", [pytest.param(name, marks=() if name == "dropped" else pytest.mark.soak) for name in _PASSES]
)
def test_a_partition_that_comes_to_a_copy_and_goes_before_its_end_leaves_no_row(
    database: Database, capture: StartCapture, passes: str
) -> None:
    database.execute(
        "create table parts (id int primary key, v text) partition by range (id)",
        "create table low partition of parts for values from (0) to (1000)",
        "create table high partition of parts for values from (2000) to (9000)",
        "insert into parts select n, 'x' from generate_series(1, 800) n",
        "insert into parts select n, 'x' from generate_series(2001, 5000) n",
    )
    copying = Copying(capture("public.parts"), database)
    name = TableName("public", "parts")
    with _held_in_the_middle(copying, name=name):
        database.execute(
            "create table middle (id int primary key, v text)",
            "insert into middle select n, 'before' from generate_series(1001, 1004) n",
            "alter table parts attach partition middle for values from (1000) to (2000)",
        )
        paused = copying.act_after(804, lambda: order(copying, CopyAction.PAUSE), name)
    copying.wait(paused.is_set)
    copying.wait_paused(name)
    assert copying.captured.rows("public.parts")[b'{"id":1001}'] == {"id": 1001, "v": "before"}
    database.execute(*_PASSES[passes])
    order(copying, CopyAction.RESUME)
    copying.wait_whole(name)
    copying.captured.wait_quiet()
    copying.captured.assert_equal()


def test_rows_of_a_condition_are_published_again(copying: Copying, capsys: pytest.CaptureFixture[str]) -> None:
    captured = copying.captured.start()
    captured.settle()
    before = len(captured.events("public.big"))
    config = ["--config", str(captured.path)]
    assert exit_code(["snapshot", "table", "public.big", "--where", "id <= 20 and region <> 'a'", *config]) == 0
    assert "asked capture to publish 16 rows of public.big again" in capsys.readouterr().err
    copying.wait(lambda: any("published 16 rows and 0 deletes again" in line for line in captured.said))
    events = captured.events("public.big")
    assert len(events) == before + 16
    assert copying.copy() is None
    assert exit_code(["snapshot", "table", "public.big", "--where", "nonsense", *config]) == 1
    assert 'column "nonsense" does not exist' in capsys.readouterr().err
    captured.assert_equal()
