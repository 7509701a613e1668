"""Updates that leave out large values which the topic doesn't hold: the table waits for a copy, and nothing stops."""

import pytest

from cdc.capture.batch_size import BatchSize
from tests.captured import Captured, StartCapture
from tests.databases import Database
from tests.dying_publisher import Commit, Killed, dying

pytestmark = pytest.mark.live

_LEAVES, _JOINS = "alter publication {0} drop table u", "alter publication {0} add table u"
_CREATED = "create table u (id int primary key, n int, code int not null, big text)"
_FILLED = "insert into u select n, 0, n + 100, repeat('{0}' || n, 9000) from generate_series(1, {1}) n"
_PARTITION = (
    "create table more (id int primary key, n int, code int not null, big text)",
    "alter table more alter big set storage external",
    "insert into more values (1000, 0, 5, repeat('p', 9000))",
    "alter table parts attach partition more for values from (1000) to (2000)",
)

_AT_EACH_CHANGE = ("rows of an attached partition",)
_UNSEEN = {
    "rows of an attached partition": (*_PARTITION, "update parts set n = n + 1"),
    "a row from when the table wasn't published": (
        _LEAVES, "insert into u values (50, 0, 5, repeat('n', 9000))", _JOINS, "update u set n = 1 where id = 50",
    ),
    "a value from when the table wasn't published": (
        _LEAVES, "update u set big = repeat('n', 9000) where id = 1", _JOINS, "update u set n = 1 where id = 1",
    ),
    "another key": ("alter table u drop constraint u_pkey, add primary key (code)", "update u set n = n + 1"),
    "a key of another name": ("alter table u rename id to ident", "update u set n = n + 1"),
    "another table": (
        "drop table u", _CREATED, "alter table u alter big set storage external", _FILLED.format("new", 3), _JOINS,
        "update u set n = n + 1",
    ),
    "other keys by a new type": ("alter table u alter id type int using 5 - id", "update u set n = n + 1"),
    "another key, and the old one again": (
        "alter table u drop constraint u_pkey, add primary key (code)", "update u set n = n + 1",
        "alter table u drop constraint u_pkey, add primary key (id)", "update u set n = n + 1, id = id + 1000",
    ),
}  # fmt: skip


@pytest.fixture
def captured(database: Database, capture: StartCapture) -> Captured:
    database.execute(
        "create table t (id int primary key, n int)",
        "insert into t select n, 0 from generate_series(1, 12) n",
        _CREATED,
        "alter table u alter big set storage external",
        _FILLED.format("old", 4),
        "create table parts (id int primary key, n int, code int not null, big text) partition by range (id)",
        "create table part partition of parts for values from (0) to (1000)",
        "insert into parts values (1, 0, 1, 'x')",
    )
    return capture("public.t", "public.u", "public.parts", start=False)


def _execute(captured: Captured, *statements: str) -> None:
    captured.database.execute(*(statement.format(captured.config.publication) for statement in statements))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _AT_EACH_CHANGE else pytest.mark.soak) for name in _UNSEEN]
)
def test_an_update_of_a_row_that_the_topic_lacks(captured: Captured, name: str) -> None:
    captured.start()
    captured.database.execute("update u set n = n - 1")  # the store is warm
    captured.settle()
    captured.stop()
    _execute(captured, *_UNSEEN[name])
    captured.start()
    captured.wait_quiet()
    captured.assert_equal()
    # No row was completed from values that it no longer had, not even for a moment.
    values = {(row["code"], row["big"]) for row in captured.source_rows("public.u").values()}
    assert {
        (e.after["code"], e.after["big"]) for e in captured.events("public.u") if e.op in "cu" and e.after["n"] >= 0
    } <= values
    captured.database.execute("update u set n = n + 1", "update t set n = n + 1")
    captured.assert_equal()
    said = len(captured.said)
    captured.wait_quiet()
    assert captured.said[said:] == []


_IN_ONE_TRANSACTION = (
    "begin; insert into u values (200, 1, 7, 'x'); update t set n = 1; update u set id = 201 where id = 200;"
    " update u set n = 1 where id = 50; update t set n = 2; update u set id = 51 where id = 50; truncate u;"
    " insert into u values (60, 1, 8, repeat('y', 9000)); update t set n = 3; commit"
)


@pytest.mark.parametrize("before", [True, False], ids=["before the commit", "after it"])
@pytest.mark.parametrize(
    "at", [pytest.param(at, marks=() if at in (4, 5) else pytest.mark.soak) for at in range(2, 11)]
)
@pytest.mark.soak
def test_a_crash_in_a_transaction_that_ends_the_following_of_a_table(captured: Captured, at: int, before: bool) -> None:
    captured.batch = BatchSize(5, 1 << 20)
    captured.start()
    captured.settle()
    captured.stop()
    _execute(captured, _LEAVES, "insert into u values (50, 0, 5, repeat('n', 9000))", _JOINS, _IN_ONE_TRANSACTION)
    captured.begin(wrap_publisher=dying(lambda commit: commit.number == at, before=before))
    assert isinstance(captured.wait_error(), Killed)
    captured.start()
    captured.wait_quiet()
    captured.assert_equal()
    changes = [(event.after["id"], event.after["n"]) for event in captured.events("public.t") if event.op == "u"]
    assert sorted(changes) == [(key, n) for key in range(1, 13) for n in (1, 2, 3)]


def test_a_crash_between_the_end_of_following_and_the_copy(captured: Captured) -> None:
    captured.start()
    captured.stop()
    _execute(captured, *_UNSEEN["a row from when the table wasn't published"])
    topic = captured.topic("public.u")

    def is_copying(commit: Commit) -> bool:
        return topic in commit.topics

    for _ in range(2):
        captured.begin(wrap_publisher=dying(is_copying, before=True))
        assert isinstance(captured.wait_error(), Killed)
        captured.database.execute("update u set n = n + 1")
    captured.start()
    captured.wait_quiet()
    captured.assert_equal()
