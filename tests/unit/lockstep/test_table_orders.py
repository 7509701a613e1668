"""What can't be asked of a sink's tables, and what can't be done with a generation while one of them is held."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.table import TableName
from jobs.generations.held_tables import HeldState, HeldTable, Wish, dump_held_tables, give_order, held_tables_name
from lockstep.generations import check_none_held
from lockstep.table_orders import order_tables
from sinks.contract import CoordinationRecords
from sinks.memory import MemorySink, MemoryStore
from tests.configurations import CACHE, configured

T = TableName("public", "t")


def _records(states: Mapping[int, HeldState]) -> CoordinationRecords:
    records = MemorySink(MemoryStore())
    for number, state in states.items():
        records.save(held_tables_name(number), dump_held_tables({T: HeldTable(state, 5, reason="no room")}))
    return records


@pytest.mark.parametrize("state", list(HeldState))
def test_readers_are_not_switched_to_a_generation_that_lacks_changes_of_a_table(state: HeldState) -> None:
    records = _records({1: state})
    with pytest.raises(
        LockstepError, match=r"generation 1 of sink 'search' can't be switched to: public\.t "
    ) as raised:
        check_none_held(records, "search", 1, [T], live=2)
    assert "lockstep resume search public.t" in (raised.value.hint or "")
    check_none_held(records, "search", 2, [T], live=1)


def test_nor_to_one_whose_job_has_not_obeyed_yet() -> None:
    records = MemorySink(MemoryStore())
    give_order(records, 1, [T], Wish.PAUSE, now_ms=5)
    with pytest.raises(LockstepError, match=r"public\.t is to be held"):
        check_none_held(records, "search", 1, [T], live=2)
    give_order(records, 1, [T], Wish.APPLY, now_ms=6)
    check_none_held(records, "search", 1, [T], live=2)


def test_a_table_that_was_taken_out_of_both_is_no_matter() -> None:
    records = _records({1: HeldState.OUT, 2: HeldState.OUT})
    check_none_held(records, "search", 1, [T], live=2)


def test_what_was_asked_of_a_table_that_the_sink_is_not_to_have_is_no_matter() -> None:
    records = _records({1: HeldState.FAILED})
    give_order(records, 1, [T], Wish.PAUSE, now_ms=5)
    check_none_held(records, "search", 1, [TableName("public", "other")], live=None)


@pytest.mark.parametrize(
    ("sink", "table", "words"),
    [
        ("cache", "orders", "not a table name: 'orders'"),
        ("totals", "public.orders", "'totals' is a view"),
        ("totals", "orders", "'totals' is a view"),
        ("cach", "public.orders", "no such sink: cach"),
    ],
)
def test_what_cannot_be_asked_is_said_before_any_server_is(tmp_path: Path, sink: str, table: str, words: str) -> None:
    config = configured(
        tmp_path, CACHE, "[views.totals]\nsink = 'cache'\nkey = ['id']\nsql = 'select id from orders'\n"
    )
    with pytest.raises(ConfigurationError, match=words):
        order_tables(config, sink, [table], Wish.PAUSE, say=lambda _: None)
