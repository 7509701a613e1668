"""sinks.delta.bookkeeping"""

from cdc.model.table import TableName
from sinks.delta.bookkeeping import CatalogueState, GenerationState

ITEMS, OTHERS = TableName("public", "items"), TableName("My Schema", "o.t-h")


def test_a_state_makes_the_round_trip_through_json() -> None:
    builds = {
        1: GenerationState(),
        7: GenerationState(
            fence=3, is_bulk=True, tables={ITEMS: "shop_g7/items", OTHERS: "shop_g7/x-1"}, progress='{"a":1}'
        ),
    }
    state = CatalogueState(builds, {"g1.a": 'odd "text"\n', "b": ""}, {"shop_g7/x": 1}, {"shop_g7/x": (7, OTHERS)})
    assert CatalogueState.from_json(state.to_json(), sink="s") == state
    assert CatalogueState.from_json(CatalogueState().to_json(), sink="s") == CatalogueState()


def test_a_directory_is_never_used_again() -> None:
    state = CatalogueState().with_build(1, GenerationState())
    seen = []
    for _ in range(12):
        path = state.path_for("shop_g1/items")
        seen.append(path)
        state = state.with_build(1, GenerationState(tables={ITEMS: path, OTHERS: "shop_g1/others"})).without(1, [ITEMS])
        assert dict(state.builds[1].tables) == {OTHERS: "shop_g1/others"}
        assert state.doomed[path] == (1, ITEMS)
    assert seen == ["shop_g1/items", *(f"shop_g1/items-{number}" for number in range(1, 12))]
