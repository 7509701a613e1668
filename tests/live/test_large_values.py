"""Updates that leave large values out: every event on the topic is a full row, whatever happens in between."""

import shutil

import pytest

from cdc.capture.batch_size import BatchSize
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.table import ReplicaIdentity
from tests.captured import Captured, StartCapture
from tests.databases import Database, until
from tests.dying_publisher import Commit, Killed, dying
from tests.topics import compact_soon

pytestmark = pytest.mark.live

_NOISE = (
    "create function noise(length int, seed int) returns text language sql immutable return"
    " (select left(string_agg(md5(seed::text || n), ''), length) from generate_series(0, length / 32) n)"
)
_TABLE = (
    "create table t (id int primary key, n int, words text, list text[], doc jsonb, raw bytea, small text)",
    "insert into t select n, 0, noise(9000, n), array[noise(4000, n), null, 'x,\"y\"', noise(3000, -n)],"
    " jsonb_build_object('a', noise(5000, n), 'b', array[1.10, 2]), decode(noise(8000, n), 'hex'), 'small'"
    " from generate_series(1, 12) n",
)


@pytest.fixture
def captured(database: Database, capture: StartCapture) -> Captured:
    database.execute(_NOISE, *_TABLE)
    return capture("public.t", start=False)


CHANGES = {
    "another column": ("update t set n = n + 1",),
    "one large value of several": ("update t set words = noise(9500, 77) where id < 6", "update t set n = 2"),
    "the key": ("update t set id = id + 100", "update t set n = 3", "update t set id = id - 100 where id > 105"),
    "the key and back": ("begin; update t set id = 200 where id = 1; update t set id = 1 where id = 200; commit",
        "update t set n = 1"),
    "delete and insert": (
        "begin; delete from t where id = 1; insert into t (id, words) values (1, noise(9000, 5)); update t set n = 1;"
        " commit",
        "update t set n = 2",
    ),
    "several updates of one transaction": (
        "begin; update t set words = noise(9100, 1); update t set n = 5; update t set words = noise(9200, 2), n = 6;"
        " update t set small = 'other'; update t set list = array[noise(9300, 3)]; update t set n = 7; commit",
    ),
    "to null, to small and back": (
        "update t set words = null", "update t set n = 1", "update t set words = 'short'", "update t set n = 2",
        "update t set words = noise(9000, 4)", "update t set n = 3",
    ),
    "one large value shrinks, another stays out of line": ("update t set words = null, list = null, raw = null",
        "update t set n = 4"),
    "a new column": ("alter table t add more text default 'm'", "update t set n = 1",
        "update t set more = noise(9000, 8)", "update t set n = 2"),
    "a renamed column": ("alter table t rename words to sayings", "update t set n = 1", "update t set n = 2"),
    "full identity and back": (
        "alter table t replica identity full", "update t set n = 1", "insert into t (id, words)"
        " values (50, noise(9000, 9))",
        "alter table t replica identity default", "update t set n = 2",
    ),
    "large values change under full identity": (
        "alter table t replica identity full", "update t set words = noise(9000, 77), doc = null where id < 9",
        "begin; delete from t where id = 12; insert into t (id, words) values (12, noise(9000, 8)); commit",
        "alter table t replica identity default", "update t set n = 2",
    ),
    "full identity within one transaction": (
        "begin; alter table t replica identity full; update t set words = noise(9000, 78);"
        " alter table t replica identity default; update t set n = 2; commit", "update t set n = 3",
    ),
    "a truncate": ("truncate t", "insert into t (id, words) values (1, noise(9000, 1))", "update t set n = 3"),
    "everything may be out of line": (
        "alter table t set (toast_tuple_target = 128)", "update t set small = noise(60, 1),"
        " words = words || '!'", "update t set n = 1",
    ),
    "upsert": ("insert into t (id, n, words) select id, 9, 'unused' from t"
    " on conflict (id) do update set n = excluded.n",),
}  # fmt: skip


_SELDOM = (
    "another column", "one large value of several", "the key and back",
    "one large value shrinks, another stays out of line", "a new column",
    "a truncate", "everything may be out of line", "full identity and back",
    "delete and insert", "a renamed column", "full identity within one transaction", "upsert",
)  # fmt: skip
_EVERYWHERE = {
    "several updates of one transaction": "cold", "the key": "lost", "a renamed column": "stale",
    "large values change under full identity": "cold",
}  # fmt: skip
"""In every state of the store; at each change in this one."""


@pytest.mark.parametrize(
    ("name", "store"),
    [pytest.param(name, "warm", marks=pytest.mark.soak if name in _SELDOM else ()) for name in CHANGES]
    + [
        pytest.param(name, store, marks=() if _EVERYWHERE[name] == store else pytest.mark.soak)
        for name in _EVERYWHERE
        for store in ("cold", "lost", "stale")
    ],
)
def test_every_event_is_a_full_row(captured: Captured, name: str, store: str) -> None:
    """``warm``: the store saw all; ``cold``: it starts empty; ``lost``, ``stale``: a restart finds none, or an old."""
    captured.start()
    database = captured.database
    file = captured.config.as_pipeline().values_directory / captured.config.slot
    if store != "cold":
        database.execute("update t set n = n - 1")
        captured.settle()
    if store in ("lost", "stale"):
        captured.stop()
        backup = file.parent / "backup"
        shutil.copytree(file, backup)
        captured.start()
        database.execute("update t set words = noise(7000, id), n = n - 1")
        captured.settle()
        captured.stop()
        shutil.rmtree(file)
        if store == "stale":
            backup.rename(file)
        captured.start()
    for statement in CHANGES[name]:
        database.execute(statement)
    captured.assert_equal()
    for event in captured.events("public.t"):
        if event.op in ("r", "c", "u"):
            assert None not in (event.parsed["source"]["schema_id"], event.after.get("id"))


def test_values_of_a_megabyte(captured: Captured) -> None:
    database = captured.database
    captured.start()
    database.execute(
        "update t set words = noise(1000000, 1), list = array[noise(500000, 2), noise(500000, 3)],"
        " doc = jsonb_build_object('a', noise(1000000, 4)), raw = decode(noise(1000000, 5), 'hex') where id = 1",
        "update t set n = 8 where id = 1",
        "update t set id = 99 where id = 1",
        "update t set small = 'x' where id = 99",
    )
    captured.assert_equal()


def test_a_compacted_topic_has_every_column_of_every_row(captured: Captured) -> None:
    database = captured.database
    captured.start()
    compact_soon(captured.client, captured.topic("public.t"))
    for name in ("another column", "one large value of several", "the key", "several updates of one transaction"):
        database.execute(*CHANGES[name])
    database.execute("delete from t where id = 6", "update t set n = n + 1")
    live = len(captured.source_rows("public.t"))

    def compacted() -> bool:
        database.execute("update t set n = n + 1")  # a segment is only rolled by another record, in each partition
        captured.settle()
        return len(captured.events("public.t")) < 3 * live

    until(compacted)
    topic = captured.topic("public.t")
    ends = TopicAdmin(captured.client).end_offsets([(topic, partition) for partition in range(3)])
    assert sum(ends.values()) > 5 * live  # so many were written
    captured.assert_equal()


def _begins_full_identity(commit: Commit) -> bool:
    return any(record.table.replica_identity is ReplicaIdentity.FULL for record in commit.schemas)


@pytest.mark.parametrize("restarted", ["running", "stopped", "crashed"])
@pytest.mark.soak
def test_full_identity_for_a_while_whatever_happens_to_the_process(captured: Captured, restarted: str) -> None:
    """``crashed``: Kafka has the first batch under FULL, and the store doesn't."""

    database = captured.database
    captured.start()
    database.execute("update t set words = noise(8500, id)")
    captured.settle()
    if restarted != "running":
        captured.stop()
    database.execute("alter table t replica identity full", "update t set words = noise(9000, -id) where id < 7")
    if restarted == "crashed":
        captured.start(wrap_publisher=dying(_begins_full_identity))
        assert isinstance(captured.wait_error(), Killed)
    if restarted != "running":
        captured.start()
    captured.settle()
    database.execute("alter table t replica identity default")
    if restarted != "running":
        captured.settle()
        captured.stop()
        captured.start()
    database.execute("update t set n = n + 1")
    captured.assert_equal()


@pytest.mark.parametrize(
    "before", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["before the commit", "after it"]
)
@pytest.mark.parametrize("at", [pytest.param(at, marks=() if at == 4 else pytest.mark.soak) for at in range(1, 7)])
def test_a_crash_between_any_two_steps(captured: Captured, at: int, before: bool) -> None:
    """After the commit, Kafka has what the store lacks."""
    database = captured.database
    captured.start()
    captured.stop()
    for number in range(6):
        database.execute(
            f"update t set words = noise(8000 + {number}, id) where id % 2 = 0",
            "update t set n = n + 1",
            f"update t set id = id + 1000 where id = {number}",
        )
    captured.batch = BatchSize(11, 1 << 20)
    captured.start(wrap_publisher=dying(lambda commit: commit.number == at, before=before))
    assert isinstance(captured.wait_error(), Killed)
    captured.start()
    database.execute("update t set n = n + 1")
    captured.assert_equal()
