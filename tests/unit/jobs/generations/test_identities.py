"""By what a generation's tables are known, in the record, and what is said of those that are lost."""

from cdc.model.table import TableName
from jobs.generations.identities import dump_identities, identities_name, known_of, load_identities, lost_rows
from sinks.memory import MemorySink, MemoryStore

ORDERS, ITEMS = TableName("public", "orders"), TableName("public", "items")


def test_what_is_known_is_read_again() -> None:
    records = MemorySink(MemoryStore())
    assert load_identities(records, 1) == {}, "an earlier version has noted nothing"
    known = {ORDERS: "1 a", ITEMS: '{"of": "the destination"}'}
    records.save(identities_name(1), dump_identities(known))
    assert load_identities(records, 1) == known
    assert known_of(known, [ITEMS, TableName("public", "new")]) == {
        ITEMS: known[ITEMS],
        TableName("public", "new"): "",
    }


def test_a_table_that_is_lost_has_its_reason_and_the_command_that_builds_it_again() -> None:
    (error,) = lost_rows("search", {ITEMS: "index 'search.public.items_g1' was removed"}).values()
    assert error.message == (
        "the sink has lost rows of table public.items: its data was removed"
        " (index 'search.public.items_g1' was removed)"
    )
    assert error.hint == "build the sink again from the log: lockstep rebuild search --switch"
