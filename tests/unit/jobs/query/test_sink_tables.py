"""jobs.query.sink_tables, preparation and log_start: what a query reads, and what it is prepared for."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import SecretStr

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from cdc.protocol.control_records import ProgressRecord
from jobs.generations.lease import GenerationLease
from jobs.generations.set_aside import Aside, AsideState, Order, Orders, Wish, load_asides
from jobs.query.captured_tables import Captured
from jobs.query.preparation import Preparation
from jobs.query.set_aside_tables import Noted, SetAside
from jobs.query.sink_plan import SinkPlan
from jobs.query.sink_tables import SinkTables
from sinks.contract import OpenedSink, Progress, TablesRefused
from sinks.memory import MemorySink, MemoryStore, open_memory
from sinks.redis.settings import RedisSettings
from tests.generations import prepared_store, set_aside

_NOTHING = cast("Any", None)
_A, _B = TableName("public", "a"), TableName("public", "b")


def tables_of(
    opened: OpenedSink, asides: dict[TableName, Aside], *, tables: Sequence[TableName] = (_A, _B)
) -> tuple[SinkTables, GenerationLease]:
    """A sink's tables of which these are set aside, and the lease of its job."""
    settings = RedisSettings(type="redis", url=SecretStr("redis://cache"))
    plan = SinkPlan("s", settings, 1, "p", _NOTHING, tables, _NOTHING, once=False)
    found = SinkTables(plan, report=lambda _: None)
    return found, set_aside(found, opened, asides)


def refuse(
    store: MemoryStore,
    refused: Sequence[TableName],
    *,
    has_progress: bool = True,
    asides: dict[TableName, Aside] | None = None,
    obeyed: Orders | None = None,
) -> None:
    """The next query learns that the destination has refused these tables."""
    opened = open_memory(store)
    if has_progress:
        opened.generations.save_progress(Progress({}, 0, 0, 0, {}))
    tables, lease = tables_of(opened, asides or {})
    errors = {name: LockstepError(f"no room in {name}", hint="make some") for name in refused}
    preparation = Preparation(tables, opened, lease, obeyed or {}, report=lambda _: None)
    preparation.set_refused_aside(TablesRefused(errors))


def test_a_table_that_the_destination_refuses_is_set_aside_with_its_reason() -> None:
    store = prepared_store(1)
    with pytest.raises(SetAside):
        refuse(store, [_B], obeyed={_B: Order(Wish.APPLY, 3)})
    aside = load_asides(MemorySink(store), 1)[_B]
    assert (aside.state, aside.reason, aside.hint) == (AsideState.FAILED, "no room in public.b", "make some")
    assert aside.order == 3, "an order that came meanwhile is a newer one, and has it tried again"


@pytest.mark.parametrize("state", [AsideState.RETRYING, AsideState.RESUMING])
def test_a_table_that_fails_again_while_no_other_is_read_ends_no_job(state: AsideState) -> None:
    """Its neighbours may be paused, and go on without it."""
    store = prepared_store(1)
    before = {_A: Aside(AsideState.PAUSED, 5), _B: Aside(state, 5, tries=3)}
    with pytest.raises(SetAside):
        refuse(store, [_B], asides=before)
    asides = load_asides(MemorySink(store), 1)
    assert (asides[_A].state, asides[_B].state) == (AsideState.PAUSED, AsideState.FAILED)
    assert asides[_B].tries == (4 if state is AsideState.RETRYING else 0)


@pytest.mark.parametrize(("refused", "has_progress"), [([_A, _B], True), ([_B], False)])
def test_where_no_table_is_left_or_nothing_was_ever_applied_the_error_is_that_of_the_sink(
    refused: list[TableName], has_progress: bool
) -> None:
    store = prepared_store(1)
    with pytest.raises(LockstepError, match=f"no room in {refused[0]}") as caught:
        refuse(store, refused, has_progress=has_progress)
    assert not isinstance(caught.value, TablesRefused)
    assert load_asides(MemorySink(store), 1) == {}


def _looks(store: MemoryStore, aside: Aside) -> tuple[SinkTables, Callable[..., bool]]:
    """A sink that has set table b aside, and what looks beside its query."""
    tables, lease = tables_of(open_memory(store), {_B: aside})
    noted = Noted(tables.aside.now)

    def looks(*, advanced: Sequence[str] = (), has_caught_up: bool = False) -> bool:
        resuming = frozenset() if has_caught_up else frozenset({"p.public.b"})
        keeper: Any = SimpleNamespace(resuming=resuming, has_caught_up=has_caught_up, advanced=frozenset(advanced))
        return tables.have_orders(lease, {}, noted, keeper)

    return tables, looks


def test_a_query_ends_when_a_table_that_has_failed_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_000_000]
    monkeypatch.setattr("jobs.query.set_aside_tables.now_ms", lambda: clock[0])
    _, looks = _looks(prepared_store(1), Aside(AsideState.FAILED, 5, retry_at_ms=clock[0] + 60_000))
    assert not looks()
    clock[0] += 60_000
    assert looks()


def test_a_table_that_is_tried_again_is_resumed_by_its_first_batch_and_then_has_caught_up() -> None:
    store = prepared_store(1)
    tables, looks = _looks(store, Aside(AsideState.RETRYING, 5, reason="no room", tries=2, begun=True))
    records = MemorySink(store)
    looks(advanced=["p.public.a"])
    assert load_asides(records, 1)[_B].state is AsideState.RETRYING
    looks(advanced=["p.public.a", "p.public.b"])
    assert load_asides(records, 1) == tables.aside.now == {_B: Aside(AsideState.RESUMING, 5, begun=True)}
    looks(advanced=["p.public.b"], has_caught_up=True)
    assert load_asides(records, 1) == tables.aside.now == {}


def test_what_looks_beside_a_query_that_has_ended_changes_nothing_any_more() -> None:
    store = prepared_store(1)
    opened = open_memory(store)
    tables, looks = _looks(store, Aside(AsideState.RETRYING, 5, reason="no room"))
    lease = GenerationLease(opened, 1)
    lease.claim(opened.sink.claim)
    with pytest.raises(SetAside):
        tables.aside.fail(lease, {_B: LockstepError("no room")}, {})
    looks(advanced=["p.public.b"], has_caught_up=True)
    assert load_asides(MemorySink(store), 1)[_B].state is AsideState.FAILED


def test_a_job_that_has_applied_all_there_is_has_no_table_left_that_it_tries_again() -> None:
    store = prepared_store(1)
    paused, tried = Aside(AsideState.PAUSED, 5), Aside(AsideState.RETRYING, 5, reason="no room", tries=2)
    tables, lease = tables_of(open_memory(store), {_A: paused, _B: tried})
    tables.aside.note_all_applied(lease)
    assert load_asides(MemorySink(store), 1) == tables.aside.now
    assert tables.aside.now[_B] == Aside(AsideState.RESUMING, 5)


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
