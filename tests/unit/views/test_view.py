"""A view's steps: whole or not at all, with output that stays pending until it is acknowledged."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cdc.model.errors import LockstepError
from cdc.model.event import Position, RowEvent
from cdc.model.table import Table, TableName
from cdc.model.tag import Tag
from tests.view_queries import TABLES, KeptView, Question, RowWrite, column, events, shape
from views.counters import Counters
from views.failures import FanOutExceeded
from views.sql.reader import TopRows, read_view
from views.state.contract import State, Step
from views.state.file import FileState
from views.state.memory import MemoryState
from views.view import View, ViewChange, ViewPosition, identity

COUNTS = Question("select coalesce(g, 0) as g, count(*) as n from a group by coalesce(g, 0)", ("g",))
NEWEST = Question(
    "select b.id as author, a.id, a.t, count(c.v) as n from b join a on a.b_id = b.id left join c on c.k = b.c_k"
    " group by b.id, a.id, a.t",
    ("author", "id"),
    TopRows(("author",), "n desc, id", 2),
)


def a(number: int, **values: Any) -> RowWrite:
    names = [described.name for described in TABLES[TableName("public", "a")].columns]
    return "a", {"id": number}, {**dict.fromkeys(names), "id": number, **values}


def b(number: int, c_k: int | None) -> RowWrite:
    return "b", {"id": number}, {"id": number, "c_k": c_k, "y": None, "t": "", "n": None}


def c(k: int, l: str) -> RowWrite:  # noqa: E741  the column's name
    return "c", {"k": k, "l": l}, {"k": k, "l": l, "v": 1, "f": None}


def without(write: RowWrite) -> RowWrite:
    return write[0], write[1], None


HISTORY = [
    [b(1, 7), b(2, 8), *(a(number, b_id=number % 2 + 1, t="x") for number in range(1, 7))],
    [c(7, "x"), c(8, "x"), c(8, "y")],
    [without(a(1)), a(2, b_id=2, t="moved"), b(1, 8)],
    [without(c(8, "x")), without(b(2, 8))],
]


def opened(question: Question, state: State, **settings: Any) -> View:
    return View(read_view(question.sql, TABLES, key=question.key, top=question.top), TABLES, state, **settings)


def step(view: View, writes: list[RowWrite], lsn: int) -> Counters:
    return view.step(events(writes, lsn), epoch=1, lsn=lsn, offsets={("a", 0): lsn})


# --- what comes out ---


def test_an_event_that_isnt_newer_changes_nothing() -> None:
    view = KeptView(COUNTS, MemoryState())
    view.step([a(1, g=1)])
    old = [replace(event, tag=str(Tag(0, 999, 9))) for event in events([a(1, g=5)], 1)]
    view.view.step(old, epoch=1, lsn=16, offsets={})
    view.deliver()
    assert list(view.rows) == [(1,)]


def test_the_newest_event_of_a_key_counts_whatever_the_order() -> None:
    view = opened(COUNTS, MemoryState())
    first, last = events([a(1, g=1), a(1, g=2)], 8)
    view.step([last, first], epoch=1, lsn=8, offsets={})
    assert [change.row for change in view.pending().changes] == [{"g": 2, "n": 1}]


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(("of", "before", "after"), [("numeric", "1.0", "1.00"), ("character(3)", "a  ", "a    ")])
def test_a_row_whose_key_a_copy_writes_differently_stays(
    of: str, before: str, after: str, *, is_reversed: bool
) -> None:
    """A copy publishes the row and deletes the former text of its key, both at one tag."""
    keyed = shape("keyed", ["k"], column("k", of, "bpchar" if of != "numeric" else None), column("g", "text"))
    plan = read_view(
        "select g, count(*) as n from keyed where g is not null group by g", {keyed.name: keyed}, key=["g"]
    )

    def event(key: str, lsn: int, *, is_row: bool = True) -> RowEvent:
        row = {"k": key, "g": "x"} if is_row else None
        return RowEvent(keyed.name, {"k": key}, str(Tag(1, lsn, 0)), row, Position("keyed", 0, 0))

    old, copied = event(before, 8), [event(after, 16), event(before, 16, is_row=False)]
    if is_reversed:
        copied.reverse()
    view = View(plan, {keyed.name: keyed}, MemoryState())
    view.step([old], epoch=1, lsn=8, offsets={})
    view.step(copied, epoch=1, lsn=16, offsets={})
    anew = View(plan, {keyed.name: keyed}, MemoryState())
    built(anew, [[old], *([each] for each in copied)], 16)
    for each in (view, anew):
        assert [change.row for change in each.pending().changes] == [{"g": "x", "n": 1}]


def test_a_view_counts_the_rows_of_its_result_and_the_transactions_of_its_steps() -> None:
    view = KeptView(NEWEST, MemoryState())
    for number, writes in enumerate(HISTORY, 1):
        view.view.step(events(writes, 8 * number), epoch=1, lsn=8 * number, offsets={}, transactions=number)
        view.deliver()
        counters = view.view.position().counters
        assert counters.rows == len(view.rows)
    assert (counters.steps, counters.transactions) == (len(HISTORY), sum(range(1, len(HISTORY) + 1)))


# --- pending output ---


def test_output_stays_until_it_is_acknowledged(tmp_path: Path) -> None:
    state = FileState(tmp_path, identity="v")
    view = opened(COUNTS, state)
    step(view, [a(1, g=1)], 8)
    output = view.pending()
    state.close()
    state = FileState(tmp_path, identity="v")
    view = opened(COUNTS, state)
    assert view.pending() == output
    view.acknowledge(output)
    assert view.pending() is None
    state.close()


@pytest.mark.parametrize("is_built", [False, True])
def test_output_that_is_acknowledged_twice_takes_no_other_row_with_it(*, is_built: bool) -> None:
    view = opened(COUNTS, MemoryState())
    rows = events([a(1, g=1), a(2, g=2)], 8)
    if is_built:
        built(view, [rows], 8)
    else:
        view.step(rows, epoch=1, lsn=8, offsets={})
    output = view.pending(1)
    for _ in range(2):
        view.acknowledge(output)
    assert [change.row for change in view.pending().changes] == [{"g": 2, "n": 1}]


def test_what_a_later_step_changes_is_pending_once_with_its_newest_row() -> None:
    view = opened(COUNTS, MemoryState())
    step(view, [a(1, g=1)], 8)
    stale = view.pending()
    step(view, [a(2, g=1)], 16)
    output = view.pending()
    assert (output.tag, [change.row for change in output.changes]) == (Tag(1, 16, 0), [{"g": 1, "n": 2}])
    with pytest.raises(LockstepError, match="read it again"):
        view.acknowledge(stale)


# --- position and counters ---


def test_a_view_doesnt_go_back() -> None:
    view = opened(COUNTS, MemoryState())
    step(view, [a(1, g=1)], 16)
    with pytest.raises(LockstepError, match="can't go back"):
        step(view, [a(1, g=2)], 8)
    assert view.position().lsn == 16


def test_counters_say_what_was_done() -> None:
    view = opened(COUNTS, MemoryState())
    step(view, [a(1, g=1), a(2, g=2)], 8)
    step(view, [a(2, g=1)], 16)
    counters = view.position().counters
    assert (counters.steps, counters.changes_in, counters.changes_out) == (2, 3, 4)
    assert counters.amplification == pytest.approx(4 / 3)


def test_a_fan_out_beyond_the_limit_stops_with_nothing_kept() -> None:
    state = MemoryState()
    view = opened(NEWEST, state, changes_max=10)
    step(view, HISTORY[0][:2], 8)
    before = everything(state)
    with pytest.raises(FanOutExceeded, match="more than 10 rows"):
        step(view, HISTORY[0], 16)
    assert everything(state) == before


A = TABLES[TableName("public", "a")]


def identified(question: Question, **tables: Table) -> str:
    known = {**TABLES, **{table.name: table for table in tables.values()}}
    return identity(read_view(question.sql, known, key=question.key, top=question.top), known)


def changed_column(name: str, **values: Any) -> Table:
    columns = (replace(of, **values) if of.name == name else of for of in A.columns)
    return replace(A, columns=tuple(columns))


def test_a_state_belongs_to_a_query_and_to_the_columns_that_it_reads() -> None:
    kept = identified(NEWEST)
    assert identified(NEWEST) == kept
    assert identified(replace(NEWEST, top=None)) != kept
    assert identified(NEWEST, a=changed_column("t", type_name="varchar(5)", value_type="varchar")) != kept
    assert identified(NEWEST, a=changed_column("t", number=9)) != kept
    assert identified(NEWEST, c=replace(TABLES[TableName("public", "c")], key=("l", "k"))) != kept


def test_columns_that_a_query_doesnt_read_are_free_to_change() -> None:
    kept = identified(NEWEST)
    assert identified(NEWEST, a=replace(A, columns=(column("first", "int4"), *A.columns))) == kept
    assert identified(NEWEST, a=changed_column("f", type_name="int4", value_type="int4")) == kept
    assert identified(NEWEST, a=replace(A, columns=tuple(of for of in A.columns if of.name != "f"))) == kept


# --- a step that is killed ---


class Killed(BaseException):
    """The process ends here."""


class KillingState:
    """A state whose process is killed at one of the accesses of a step."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.accesses_left = -1

    def update(self, work: Callable[[Step], Any]) -> Any:
        def killed(real: Step) -> Any:
            result = work(_KillingStep(real, self))
            self.access()  # all is done, and not committed
            return result

        return self.state.update(killed)

    def access(self) -> None:
        if self.accesses_left == 0:
            raise Killed
        self.accesses_left -= 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)


class _KillingStep:
    def __init__(self, real: Step, owner: KillingState) -> None:
        self._real = real
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        def access(*arguments: Any, **named: Any) -> Any:
            self._owner.access()
            return getattr(self._real, name)(*arguments, **named)

        return access


def everything(state: State) -> list[tuple[bytes, bytes]]:
    return state.read(lambda reading: list(reading.scan(b"")))


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_step_that_is_killed_anywhere_is_done_again_with_the_same_end(kind: str, tmp_path: Path) -> None:
    plain = KeptView(NEWEST, MemoryState())
    state: State = MemoryState() if kind == "memory" else FileState(tmp_path, identity="v")
    killing = KillingState(state)
    view = KeptView(NEWEST, killing)
    killed = 0
    for number, writes in enumerate(HISTORY, start=1):
        plain.step(writes)
        before = everything(state)
        for point in count():
            killing.accesses_left = point
            try:
                step(View(view.plan, TABLES, killing), writes, number * 8)
            except Killed:
                killed += 1
                assert everything(state) == before
            else:
                break
        # The output too is read and delivered anew by whoever comes after.
        killing.accesses_left = 0
        with pytest.raises(Killed):
            view.deliver()
        killing.accesses_left = -1
        view.deliver()
        assert view.rows == plain.rows
    assert killed > 100
    assert everything(state) == everything(plain.state)
    state.close()


# --- building ---


def built(view: View, pieces: list[list[RowEvent]], lsn: int) -> None:
    view.begin_building()
    for piece in pieces:
        view.build(piece)
    view.end_building(epoch=1, lsn=lsn, offsets={("a", 0): lsn})


def all_events() -> list[RowEvent]:
    return [event for number, writes in enumerate(HISTORY, start=1) for event in events(writes, number * 8)]


def as_of_the_end() -> list[RowEvent]:
    """The rows of the tables after all of the history, table by table."""
    newest = {(event.table, *event.key.values()): event for event in all_events()}
    return sorted((event for event in newest.values() if event.row is not None), key=lambda event: str(event.table))


@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_state_that_was_built_goes_on_as_one_that_was_stepped(size: int) -> None:
    stepped, view = KeptView(NEWEST, MemoryState()), KeptView(NEWEST, MemoryState())
    for writes in HISTORY:
        stepped.step(writes)
    rows = as_of_the_end()
    built(view.view, [rows[at : at + size] for at in range(0, len(rows), size)], 8 * len(HISTORY))
    assert view.view.position() == ViewPosition(1, 32, {("a", 0): 32}, view.view.position().counters)
    view.deliver()
    assert view.rows == stepped.rows
    further = [a(9, b_id=1, t="z"), without(a(4)), c(8, "z")]
    for kept in (stepped, view):
        kept.view.step(events(further, 40), epoch=1, lsn=40, offsets={})
        kept.deliver()
    assert view.rows == stepped.rows
    states = [[entry for entry in everything(kept.state) if entry[0] > b"\1"] for kept in (stepped, view)]
    assert states[0] == states[1]


def test_nothing_is_pending_before_all_rows_are_in_and_then_the_whole_result_is() -> None:
    view = opened(COUNTS, MemoryState())
    view.begin_building()
    view.build(events([a(1, g=1), a(2, g=2)], 8))
    assert (view.pending(), view.position()) == (None, ViewPosition(is_building=True))
    with pytest.raises(LockstepError, match="takes no step"):
        step(view, [a(3, g=1)], 16)
    view.build(events([without(a(2)), a(3, g=1)], 16))
    view.end_building(epoch=1, lsn=16, offsets={})
    output = view.pending()
    assert (output.tag, list(output.changes)) == (Tag(1, 16, 0), [ViewChange({"g": 1}, {"g": 1, "n": 2})])
    assert view.position().counters == Counters(rows=1)


def test_what_isnt_being_built_takes_no_rows() -> None:
    view = opened(COUNTS, MemoryState())
    with pytest.raises(LockstepError, match="isn't being built"):
        view.build(events([a(1, g=1)], 8))
    with pytest.raises(LockstepError, match="isn't being built"):
        view.end_building(epoch=1, lsn=8, offsets={})


def test_a_building_that_is_killed_anywhere_is_no_usable_state(tmp_path: Path) -> None:
    plain = KeptView(NEWEST, MemoryState())
    rows = as_of_the_end()
    built(plain.view, [rows[:4], rows[4:]], 32)
    killing = KillingState(FileState(tmp_path, identity="v"))
    killed = 0
    for point in count():
        view = opened(NEWEST, killing)
        killing.accesses_left = point
        try:
            built(view, [rows[:4], rows[4:]], 32)
        except Killed:
            killed += 1
            killing.accesses_left = -1
            position = opened(NEWEST, killing).position()
            assert position.is_building or position == ViewPosition()
        else:
            break
    assert killed > 10
    assert everything(killing) == everything(plain.state)
    killing.close()


def test_what_a_sink_has_of_before_goes_first_where_it_differs_and_last_where_it_does_not() -> None:
    view = opened(COUNTS, MemoryState())
    built(view, [events([a(1, g=1), a(2, g=2), a(3, g=3)], 8)], 8)
    assert view.is_whole
    for _ in range(2):  # a task that is killed meanwhile looks again
        view.arrange([({"g": 1}, {"g": 1, "n": 1}), ({"g": 2}, {"g": 2, "n": 9})])
        view.arrange([({"g": 7}, {"g": 7, "n": 1})])
    view.end_arranging()
    assert not view.is_whole
    changed = [
        ViewChange({"g": 2}, {"g": 2, "n": 1}),
        ViewChange({"g": 3}, {"g": 3, "n": 1}),
        ViewChange({"g": 7}, None),
    ]
    output = view.pending(3)
    assert (list(output.changes), output.is_last) == (changed, False)
    view.acknowledge(output)
    output = view.pending()
    assert (list(output.changes), output.is_last) == ([ViewChange({"g": 1}, {"g": 1, "n": 1})], True)
    view.acknowledge(output)
    assert view.pending() is None
    with pytest.raises(LockstepError, match="no longer has"):
        view.arrange([({"g": 1}, {"g": 1, "n": 1})])


def test_a_row_that_changes_is_pending_once_though_the_sink_had_it() -> None:
    view = opened(COUNTS, MemoryState())
    built(view, [events([a(1, g=1), a(2, g=2)], 8)], 8)
    view.arrange([({"g": 1}, {"g": 1, "n": 1}), ({"g": 2}, {"g": 2, "n": 1})])
    view.end_arranging()
    step(view, [a(3, g=1)], 16)
    assert list(view.pending().changes) == [
        ViewChange({"g": 1}, {"g": 1, "n": 2}),
        ViewChange({"g": 2}, {"g": 2, "n": 1}),
    ]


# --- what the sink's progress may not have ---


def delivered(view: View, writes: list[RowWrite], lsn: int) -> None:
    step(view, writes, lsn)
    view.acknowledge(view.pending())


def test_another_run_writes_again_what_the_sinks_progress_may_not_have() -> None:
    view = opened(COUNTS, MemoryState())
    view.adopt("first")
    for number in range(1, 5):
        delivered(view, [a(number, g=number % 2)], 8 * number)
    delivered(view, [without(a(2)), without(a(4))], 40)
    view.confirm({("a", 0): 16})
    assert view.forgotten() == {("a", 0): 16}
    assert view.is_of("first")
    view.adopt("second")
    output = view.pending()
    assert output.tag == Tag(1, 40, 0)
    # Each row as it was written last.
    assert list(output.changes) == [ViewChange({"g": 0}, None), ViewChange({"g": 1}, {"g": 1, "n": 2})]
    view.acknowledge(output)
    assert view.forgotten() == {("a", 0): 16}


def test_what_is_pending_is_newer_than_what_was_written() -> None:
    view = opened(COUNTS, MemoryState())
    delivered(view, [a(1, g=1)], 8)
    step(view, [a(2, g=1)], 16)
    view.adopt("second")
    assert list(view.pending().changes) == [ViewChange({"g": 1}, {"g": 1, "n": 2})]


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_row_from_before_one_that_was_refused_is_not_written_again(*, is_kept: bool) -> None:
    view = opened(COUNTS, MemoryState())
    delivered(view, [a(1, g=1)], 8)
    step(view, [a(2, g=1)], 16)
    view.acknowledge(view.pending(), refused=[{"g": 1}])
    if not is_kept:
        view.adopt("second")
    assert view.pending() is None
    view.settle(lambda _: str(Tag(1, 16, 0)) if is_kept else "")
    view.adopt("third")
    newest = [ViewChange({"g": 1}, {"g": 1, "n": 2})]
    assert (view.pending() is None) if is_kept else (list(view.pending().changes) == newest)


def test_what_the_sinks_progress_has_is_forgotten_with_the_next_output() -> None:
    state = MemoryState()
    view = opened(COUNTS, state)
    empty = len(everything(state))
    for number in range(1, 50):
        step(view, [a(1, g=number)], 8 * number)
        view.acknowledge(view.pending(), reached={("a", 0): 8 * number})
    assert view.forgotten() == {("a", 0): 8 * 49}
    assert len(everything(state)) <= empty + 5


def test_a_whole_result_is_not_kept_twice_so_only_a_sink_that_was_told_of_it_has_it() -> None:
    view = opened(COUNTS, MemoryState())
    built(view, [events([a(1, g=1), a(2, g=2)], 8)], 8)
    view.end_arranging()
    assert view.forgotten() == {}
    view.acknowledge(view.pending(1))
    assert view.forgotten() == {("a", 0): 8}
    view.acknowledge(view.pending())
    view.adopt("second")
    assert view.pending() is None
    delivered(view, [a(3, g=3)], 16)
    view.adopt("third")
    assert list(view.pending().changes) == [ViewChange({"g": 3}, {"g": 3, "n": 1})]


# --- rows that a sink refuses ---


def test_a_refused_row_whose_refusal_nobody_has_kept_is_pending_again() -> None:
    view = opened(COUNTS, MemoryState())
    step(view, [a(1, g=1), a(2, g=2), a(3, g=3)], 8)
    view.acknowledge(view.pending(), refused=[{"g": 2}, {"g": 3}])
    assert view.pending() is None
    step(view, [a(4, g=1)], 16)
    view.acknowledge(view.pending())
    refused_at = str(Tag(1, 8, 0))
    assert view.settle(lambda key: refused_at if key == {"g": 3} else "") == []
    output = view.pending()
    assert (output.tag, list(output.changes)) == (Tag(1, 16, 0), [ViewChange({"g": 2}, {"g": 2, "n": 1})])
    view.acknowledge(output)
    assert view.settle(lambda key: pytest.fail(f"{key} isn't held any more")) == []


@pytest.mark.parametrize("is_built", [True, False])
def test_a_row_that_is_held_stays_pending_with_those_that_follow(*, is_built: bool) -> None:
    view = opened(COUNTS, MemoryState())
    rows = [a(number, g=number) for number in (1, 2, 3)]
    if is_built:
        built(view, [events(rows, 8)], 8)
        view.end_arranging()
    else:
        step(view, rows, 8)
    view.acknowledge(view.pending(2), refused=[{"g": 1}], held=[{"g": 2}])
    left = view.pending()
    assert [change.key for change in left.changes] == [{"g": 2}, {"g": 3}]
    view.acknowledge(left, held=[{"g": 3}])
    assert view.is_new == is_built
    left = view.pending()
    assert [change.key for change in left.changes] == [{"g": 3}]
    view.acknowledge(left)
    assert (view.pending(), view.is_new) == (None, False)


def test_a_refusal_that_is_void_is_told_until_nobody_keeps_it() -> None:
    view = opened(COUNTS, MemoryState())
    step(view, [a(1, g=1), a(2, g=2)], 8)
    view.acknowledge(view.pending(), void=[{"g": 1}, {"g": 9}])
    refused_at = str(Tag(1, 0, 0))
    for _ in range(2):
        assert view.settle(lambda _: refused_at) == [{"g": 1}, {"g": 9}]
    assert view.settle(lambda key: refused_at if key == {"g": 9} else "") == [{"g": 9}]
    assert view.settle(lambda _: str(Tag(1, 8, 0))) == []  # refused again since
    assert view.settle(lambda _: refused_at) == []
    assert view.pending() is None


@pytest.mark.parametrize("change", [a(3, g=2), without(a(2))])
def test_a_refused_row_that_changes_is_pending_by_itself_and_only_as_it_is_now(change: RowWrite) -> None:
    view = opened(COUNTS, MemoryState())
    step(view, [a(2, g=2)], 8)
    view.acknowledge(view.pending(), refused=[{"g": 2}])
    step(view, [change], 16)
    newest = view.pending()
    assert len(newest.changes) == 1
    assert view.settle(lambda _: "") == []
    assert view.pending() == newest
