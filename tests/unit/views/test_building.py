"""A large state, which is computed once from all rows of the tables."""

import gc
import random
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import orjson
import pytest

from cdc.model.errors import LockstepError
from cdc.model.event import RowEvent
from tests.unit.views.test_view import NEWEST, Killed, KillingState, a, as_of_the_end, c, everything, opened
from tests.view_queries import TABLES, Question, RowWrite, events
from views.failures import FanOutExceeded
from views.operators import building, join
from views.operators.building import Building, Item, Sorter
from views.result_rows import rows_of
from views.shard import Shard, Sharding
from views.state.contract import State
from views.state.file import FileState
from views.state.memory import MemoryState
from views.view import View

PAIRS = Question("select a.id, c.k, c.l from a join c on c.k = a.g", ("id", "k", "l"))
LONG = Question("select a.id, b.id as b_id, a.t, b.t as u from a join b on b.c_k = a.g", ("id", "b_id"))
MIB = 1 << 20


@contextmanager
def in_memory_at_most(size: int) -> Iterator[None]:
    """So many bytes more than before, of all that Python has."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


def items(*numbers: int) -> list[Item]:
    return [(bytes([number]), b"own", b"row" * number) for number in numbers]


def build(state: State, rows: list[RowEvent], *, changes_max: int = 1_000) -> View:
    view = View(opened(NEWEST, MemoryState()).plan, TABLES, state, changes_max=changes_max)
    view.begin_building()
    view.build(rows)
    return view


# --- sorting ---


@pytest.mark.parametrize("in_memory", [1, 7, 100])
def test_what_memory_does_not_hold_comes_in_order_all_the_same(
    in_memory: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(building, "ITEMS_MAX", in_memory)
    monkeypatch.setattr(building, "SPILLED_AT_ONCE", 2)
    numbers = random.Random(1).sample(range(100), 60)
    sorter = Sorter(tmp_path)
    for at in range(0, len(numbers), 7):
        sorter.add(items(*numbers[at : at + 7]))
    assert not list(tmp_path.iterdir()), "a file without a name goes with its process"
    assert [item for portion in sorter.sorted() for item in portion] == items(*sorted(numbers))


def test_long_rows_are_not_all_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(building, "BYTES_MAX", 100)
    sorter = Sorter(tmp_path / "not there")
    sorter.add(items(1, 2))
    with pytest.raises(LockstepError, match="can't be sorted in") as raised:
        sorter.add(items(90))
    assert "full disk" in str(raised.value.hint)


def test_a_disk_that_is_full_is_named_though_the_last_rows_were_few(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(building, "ITEMS_MAX", 2)
    full = Path("/dev/full").open("w+b")  # noqa: SIM115  the sorter closes it
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full)
    with pytest.raises(LockstepError, match="No space left on device"):
        Sorter(tmp_path).add(items(1, 2))
    assert full.closed


def test_long_rows_are_not_all_in_memory_while_they_are_merged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of each sorted part memory has few bytes, however few rows those are."""
    monkeypatch.setattr(building, "BYTES_MAX", MIB // 2)
    sorter = Sorter(tmp_path)
    for number in range(4_000):
        sorter.add([(number.to_bytes(2, "big"), b"", bytes(4_096))])
    with in_memory_at_most(5 * MIB):
        assert sum(map(len, sorter.sorted())) == 4_000


def test_a_few_long_rows_among_short_ones_are_in_no_long_piece(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By what rows have on average, all of these would be in one piece."""
    monkeypatch.setattr(building, "SPILLED_BYTES", 1_000)
    rows: list[Item] = [(number.to_bytes(2, "big"), b"", b"") for number in range(1_000)]
    rows[100:102] = [(key, own, bytes(10_000)) for key, own, _ in rows[100:102]]
    sorter = Sorter(tmp_path)
    sorter.add(rows)
    sorter.spill()
    pieces = list(sorter.sorted())
    assert [item for piece in pieces for item in piece] == rows
    assert max(len(piece) for piece in pieces if len(piece[0][2])) == 1
    assert all(len(piece) == 1 or sum(len(row) for _, _, row in piece) < 1_000 for piece in pieces)


def test_of_all_that_is_handed_on_at_a_time_memory_has_as_much_as_of_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Inner joins that follow each other on the same values are all at work at once."""
    monkeypatch.setattr(building, "ITEMS_MAX", 20)
    builder = Building(MemoryState(), scratch=tmp_path, changes_max=1, meanwhile=lambda _: None)

    def begun(count: int) -> tuple[Iterator[list[Item]], int]:
        sorter = builder.sorter()
        sorter.add(items(*reversed(range(count))))
        handed_on = builder.handed_on(sorter)
        return handed_on, sorter.held[0]

    first, of_first = begun(15)
    second, of_second = begun(15)
    small, of_small = begun(1)
    assert (of_first, of_second, of_small) == (15, 0, 1), "few rows alone are no file"
    for handed_on, size in ((first, 15), (second, 15), (small, 1)):
        assert [item for portion in handed_on for item in portion] == items(*range(size))
    assert begun(15)[1] == 15, "the others are over"


# --- computing ---


def test_it_is_told_how_many_rows_of_tables_were_read() -> None:
    rows, told = as_of_the_end(), list[int]()
    view = build(MemoryState(), rows)
    assert view.position().counters.rows == 0
    view.compute(told.append)
    assert sum(told) == len(rows)
    assert view.position().counters.rows > 0
    assert view.position().is_building
    view.compute(told.append)
    assert sum(told) == len(rows), "all was computed"
    view.end_building(epoch=1, lsn=8, offsets={})
    assert view.pending() is not None


@pytest.mark.parametrize("in_memory", [7, 1_000])
def test_rows_of_one_group_come_in_several_portions(
    in_memory: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are alike in all that rows are in order by."""
    monkeypatch.setattr(building, "PORTION", 5)
    monkeypatch.setattr(building, "ITEMS_MAX", in_memory)
    view = opened(
        Question("select g, count(*) as n from a where g is not null group by g", ("g",)),
        MemoryState(),
        scratch=tmp_path,
    )
    view.begin_building()
    view.build(events([a(number, g=number % 2) for number in range(50)], 8))
    view.end_building(epoch=1, lsn=8, offsets={})
    output = view.pending()
    assert output is not None
    assert [orjson.loads(row or b"") for row in output.rows] == [{"g": 0, "n": 25}, {"g": 1, "n": 25}]


def test_rows_that_are_written_while_others_are_computed_are_not_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "PORTION", 4)
    states = MemoryState(), MemoryState()
    plain, ahead = (opened(Question("select id, g from a", ("id",)), state) for state in states)
    for view in (plain, ahead):
        view.begin_building()
        view.build(events([a(number) for number in range(20)], 8))
    plain.end_building(epoch=1, lsn=8, offsets={})
    whole = plain.pending()
    assert whole is not None
    written, newest = list[Item](), list[Item]()

    def take(items: list[Item]) -> list[Item]:
        """The first row of each portion is refused."""
        nonlocal newest
        if not items:
            return newest
        written.extend(newest[1:])
        stays, newest = newest[:1], items
        return stays

    ahead.compute(ahead=take)
    ahead.end_building(epoch=1, lsn=8, offsets={})
    rest = ahead.pending()
    assert rest is not None
    assert len(rest.keys) == 20 - len(written) == 8
    assert not ahead.is_whole, "nobody looks for what the sink had before"
    assert (ahead.is_new, ahead.is_arranged) == (True, True)
    rows = dict(zip(*rows_of(written), strict=True)) | dict(zip(rest.keys, rest.rows, strict=True))
    assert rows == dict(zip(whole.keys, whole.rows, strict=True))
    assert (ahead.position(), rest.tag) == (plain.position(), whole.tag)
    for view, output in ((plain, whole), (ahead, rest)):
        view.acknowledge(output)
    assert everything(states[1]) == everything(states[0])


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_as_before_however_it_ends(*, collects: bool) -> None:
    collected: list[bool] = []

    def ended(_: int) -> None:
        collected.append(gc.isenabled())
        raise Killed

    view = build(MemoryState(), as_of_the_end())
    (gc.enable if collects else gc.disable)()
    try:
        for work in (lambda: view.build(as_of_the_end(), ended), lambda: view.compute(ended)):
            with pytest.raises(Killed):
                work()
            assert gc.isenabled() is collects
    finally:
        gc.enable()
    assert collected == [False, False], "it rests meanwhile"


def test_who_waits_is_told_of_each_portion_that_a_join_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows of tables make so many that a driver which heard of the tables alone would take the task for stuck."""
    for module in (building, join):
        monkeypatch.setattr(module, "PORTION", 1_000)
    view = opened(PAIRS, MemoryState())
    view.begin_building()
    view.build(events([*(a(number, g=1) for number in range(300)), *(c(1, f"{number}") for number in range(300))], 8))
    since_reported, most = 0, 0
    add = Sorter.add

    def counted(sorter: Sorter, items: list[Item]) -> None:
        nonlocal since_reported, most
        since_reported += len(items)
        most = max(most, since_reported)
        add(sorter, items)

    def told(_: int) -> None:
        nonlocal since_reported
        since_reported = 0

    monkeypatch.setattr(Sorter, "add", counted)
    view.compute(told)
    assert most < 2_000
    view.end_building(epoch=1, lsn=8, offsets={})
    assert view.position().counters.rows == 300 * 300


def many(table: str, numbers: range, text: str) -> Iterator[RowWrite]:
    """Rows of ``a`` or ``b`` that have all rows of the other as partners."""
    for number in numbers:
        one = a(number, g=1, t=text)[2] if table == "a" else {"id": number, "c_k": 1, "y": 0, "t": text, "n": None}
        yield table, {"id": number}, one


@pytest.mark.parametrize(("of_a", "of_b"), [(4_000, 0), (0, 4_000), (4_000, 1)])
def test_rows_that_share_a_joins_key_are_not_all_in_memory_where_the_other_side_has_one_or_none(
    of_a: int, of_b: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(building, "BYTES_MAX", MIB)
    for module in (building, join):
        monkeypatch.setattr(module, "PORTION_BYTES", MIB)
    with closing(FileState(tmp_path / "state", identity="v")) as state:
        view = opened(LONG, state, scratch=tmp_path)
        view.begin_building()
        for table, rows in (("a", of_a), ("b", of_b)):
            for start in range(0, rows, 500):
                numbers = range(start, min(start + 500, rows))
                view.build(events(list(many(table, numbers, "x" * 4_096)), 8))
        with in_memory_at_most(9 * MIB):
            view.compute()
        view.end_building(epoch=1, lsn=8, offsets={})
        assert view.position().counters.rows == of_a * of_b


def test_no_row_of_another_shard_is_written() -> None:
    """As where what divides the rows of a table isn't what divides those of the result."""
    question = Question("select id, g from a", ("id",))
    plan = opened(question, MemoryState()).plan
    view = View(plan, TABLES, MemoryState(), shard=Shard(Sharding("id", (None,)), 0, 2))
    view.begin_building()
    view.build(events([a(number) for number in range(20)], 8))
    with pytest.raises(AssertionError, match="another shard's"):
        view.compute()


def test_a_row_with_too_many_partners_ends_it() -> None:
    view = build(MemoryState(), as_of_the_end(), changes_max=1)
    with pytest.raises(FanOutExceeded, match="more than 1 partners"):
        view.end_building(epoch=1, lsn=8, offsets={})
    assert view.position().is_building


def test_a_computing_that_is_killed_anywhere_leaves_no_usable_state(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(building, "KEPT_AT_ONCE", 3)
    killing = KillingState(FileState(tmp_path, identity="v"))
    for point in count():
        killing.accesses_left = point
        try:
            build(killing, as_of_the_end()).end_building(epoch=1, lsn=8, offsets={})
        except Killed:
            killing.accesses_left = -1
            position = opened(NEWEST, killing).position()
            assert position.is_building or not position.lsn
        else:
            break
    assert point > 10
    killing.close()
