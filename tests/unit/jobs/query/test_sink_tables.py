"""jobs.query.sink_tables, preparation and log_start: what a query reads, and what it is prepared for."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import SecretStr

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from cdc.protocol.control_records import ProgressRecord
from jobs.generations.held_tables import HeldState, HeldTable, Order, Orders, Wish, load_held_tables
from jobs.generations.lease import GenerationLease
from jobs.query.captured_tables import Captured
from jobs.query.held_tables import NewlyHeld, Noted
from jobs.query.preparation import Preparation
from jobs.query.sink_plan import SinkPlan
from jobs.query.sink_tables import SinkTables
from sinks.contract import OpenedSink, Progress, TablesRefused
from sinks.memory import MemorySink, MemoryStore, open_memory
from sinks.redis.settings import RedisSettings
from tests.generations import hold_tables, prepared_store

_NOTHING = cast("Any", None)
_A, _B = TableName("public", "a"), TableName("public", "b")


def tables_of(
    opened: OpenedSink, held_tables: dict[TableName, HeldTable], *, tables: Sequence[TableName] = (_A, _B)
) -> tuple[SinkTables, GenerationLease]:
    """A sink's tables of which these are held, and the lease of its job."""
    settings = RedisSettings(type="redis", url=SecretStr("redis://cache"))
    plan = SinkPlan("s", settings, 1, "p", _NOTHING, tables, _NOTHING, once=False)
    found = SinkTables(plan, report=lambda _: None)
    return found, hold_tables(found, opened, held_tables)


def refuse(
    store: MemoryStore,
    refused: Sequence[TableName],
    *,
    has_progress: bool = True,
    held_tables: dict[TableName, HeldTable] | None = None,
    obeyed: Orders | None = None,
) -> None:
    """The next query learns that the destination has refused these tables."""
    opened = open_memory(store)
    if has_progress:
        opened.generations.save_progress(Progress({}, 0, 0, 0, {}))
    tables, lease = tables_of(opened, held_tables or {})
    errors = {name: LockstepError(f"no room in {name}", hint="make some") for name in refused}
    preparation = Preparation(tables, opened, lease, obeyed or {}, report=lambda _: None)
    preparation.hold_refused(TablesRefused(errors))


def test_a_table_that_the_destination_refuses_is_held_with_its_reason() -> None:
    store = prepared_store(1)
    with pytest.raises(NewlyHeld):
        refuse(store, [_B], obeyed={_B: Order(Wish.APPLY, 3)})
    held = load_held_tables(MemorySink(store), 1)[_B]
    assert (held.state, held.reason, held.hint) == (HeldState.FAILED, "no room in public.b", "make some")
    assert held.order == 3, "an order that came meanwhile is a newer one, and has it tried again"


@pytest.mark.parametrize("state", [HeldState.RETRYING, HeldState.RESUMING])
def test_a_table_that_fails_again_while_no_other_is_read_ends_no_job(state: HeldState) -> None:
    """Its neighbours may be paused, and go on without it."""
    store = prepared_store(1)
    before = {_A: HeldTable(HeldState.PAUSED, 5), _B: HeldTable(state, 5, tries=3)}
    with pytest.raises(NewlyHeld):
        refuse(store, [_B], held_tables=before)
    held_tables = load_held_tables(MemorySink(store), 1)
    assert (held_tables[_A].state, held_tables[_B].state) == (HeldState.PAUSED, HeldState.FAILED)
    assert held_tables[_B].tries == (4 if state is HeldState.RETRYING else 0)


@pytest.mark.parametrize(("refused", "has_progress"), [([_A, _B], True), ([_B], False)])
def test_where_no_table_is_left_or_nothing_was_ever_applied_the_error_is_that_of_the_sink(
    refused: list[TableName], has_progress: bool
) -> None:
    store = prepared_store(1)
    with pytest.raises(LockstepError, match=f"no room in {refused[0]}") as caught:
        refuse(store, refused, has_progress=has_progress)
    assert not isinstance(caught.value, TablesRefused)
    assert load_held_tables(MemorySink(store), 1) == {}


def _looks(store: MemoryStore, held: HeldTable) -> tuple[SinkTables, Callable[..., bool]]:
    """A sink that has set table b held, and what looks beside its query."""
    tables, lease = tables_of(open_memory(store), {_B: held})
    noted = Noted(tables.held.now)

    def looks(*, advanced: Sequence[str] = (), has_caught_up: bool = False) -> bool:
        resuming = frozenset() if has_caught_up else frozenset({"p.public.b"})
        keeper: Any = SimpleNamespace(resuming=resuming, has_caught_up=has_caught_up, advanced=frozenset(advanced))
        return tables.have_orders(lease, {}, noted, keeper)

    return tables, looks


def test_a_query_ends_when_a_table_that_has_failed_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_000_000]
    monkeypatch.setattr("jobs.query.held_tables.now_ms", lambda: clock[0])
    _, looks = _looks(prepared_store(1), HeldTable(HeldState.FAILED, 5, retry_at_ms=clock[0] + 60_000))
    assert not looks()
    clock[0] += 60_000
    assert looks()


def test_a_table_that_is_tried_again_is_resumed_by_its_first_batch_and_then_has_caught_up() -> None:
    store = prepared_store(1)
    tables, looks = _looks(store, HeldTable(HeldState.RETRYING, 5, reason="no room", tries=2, begun=True))
    records = MemorySink(store)
    looks(advanced=["p.public.a"])
    assert load_held_tables(records, 1)[_B].state is HeldState.RETRYING
    looks(advanced=["p.public.a", "p.public.b"])
    assert load_held_tables(records, 1) == tables.held.now == {_B: HeldTable(HeldState.RESUMING, 5, begun=True)}
    looks(advanced=["p.public.b"], has_caught_up=True)
    assert load_held_tables(records, 1) == tables.held.now == {}


def test_what_looks_beside_a_query_that_has_ended_changes_nothing_any_more() -> None:
    store = prepared_store(1)
    opened = open_memory(store)
    tables, looks = _looks(store, HeldTable(HeldState.RETRYING, 5, reason="no room"))
    lease = GenerationLease(opened, 1)
    lease.claim(opened.sink.claim)
    with pytest.raises(NewlyHeld):
        tables.held.fail(lease, {_B: LockstepError("no room")}, {})
    looks(advanced=["p.public.b"], has_caught_up=True)
    assert load_held_tables(MemorySink(store), 1)[_B].state is HeldState.FAILED


def test_a_job_that_has_applied_all_there_is_has_no_table_left_that_it_tries_again() -> None:
    store = prepared_store(1)
    paused, tried = HeldTable(HeldState.PAUSED, 5), HeldTable(HeldState.RETRYING, 5, reason="no room", tries=2)
    tables, lease = tables_of(open_memory(store), {_A: paused, _B: tried})
    tables.held.note_all_applied(lease)
    assert load_held_tables(MemorySink(store), 1) == tables.held.now
    assert tables.held.now[_B] == HeldTable(HeldState.RESUMING, 5)


def test_a_running_view_learns_that_a_table_left_and_waits_until_it_is_back() -> None:
    orders, items = TableName("public", "orders"), TableName("public", "items")
    before = Captured([orders], selection="before")
    found = [before]
    settings = cast("Any", SimpleNamespace(view=object(), tables=["public.orders"]))
    plan = SinkPlan("v", settings, 1, "p", _NOTHING, (), _NOTHING, once=False, captured=lambda: found[-1])
    tables = SinkTables(plan, report=lambda _: None)
    tables.look()
    watch = tables.watch()
    assert watch is not None
    found.append(Captured([orders, items], selection="more"))
    assert not watch.has_changed([ProgressRecord(1, 0, {}, selection="more")]), "it doesn't read that one"
    found.append(Captured([items], selection="others"))
    assert watch.has_changed([ProgressRecord(2, 0, {}, selection="others")])
    with pytest.raises(Unavailable, match=r"the view reads public\.orders, which isn't captured"):
        tables.look()
    found.append(before)
    tables.look()
    assert tables.all == [orders]
