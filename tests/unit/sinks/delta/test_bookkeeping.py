"""sinks.delta.bookkeeping"""

from cdc.model.table import TableName
from sinks.delta.bookkeeping import Build, Ledger

ITEMS, OTHERS = TableName("public", "items"), TableName("My Schema", "o.t-h")


def test_a_ledger_makes_the_round_trip_through_json() -> None:
    builds = {
        1: Build(),
        7: Build(fence=3, is_bulk=True, tables={ITEMS: "shop_g7/items", OTHERS: "shop_g7/x-1"}, progress='{"a":1}'),
    }
    ledger = Ledger(builds, {"g1.a": 'odd "text"\n', "b": ""}, {"shop_g7/x": 1}, {"shop_g7/x": (7, OTHERS)})
    assert Ledger.from_json(ledger.to_json()) == ledger
    assert Ledger.from_json(Ledger().to_json()) == Ledger()


def test_a_directory_is_never_used_again() -> None:
    ledger = Ledger().with_build(1, Build())
    seen = []
    for _ in range(12):
        path = ledger.path_for("shop_g1/items")
        seen.append(path)
        ledger = ledger.with_build(1, Build(tables={ITEMS: path, OTHERS: "shop_g1/others"})).without(1, [ITEMS])
        assert dict(ledger.builds[1].tables) == {OTHERS: "shop_g1/others"}
        assert ledger.doomed[path] == (1, ITEMS)
    assert seen == ["shop_g1/items", *(f"shop_g1/items-{number}" for number in range(1, 12))]
