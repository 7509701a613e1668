"""sinks.warehouse.names"""

from cdc.model.table import TableName
from sinks.warehouse.names import WarehouseNames, listed, qualified

ORDERS, SALES = TableName("public", "orders"), TableName("sales", "orders")


def test_a_name_that_postgresql_would_cut_is_refused_with_all_others() -> None:
    names = [TableName("s" * 40, "t" * 40), TableName("public", "x" * 60), TableName("public", "short")]
    problems = WarehouseNames(history=True).problems(names)
    assert [problem.partition(": ")[0] for problem in problems] == [
        f"the history of public.{'x' * 60}",
        f"table {names[0]}",
        f"the history of {names[0]}",
    ]
    assert all("longer than 63 bytes" in problem for problem in problems)


def test_a_name_is_for_one_thing() -> None:
    taken = WarehouseNames({SALES: "orders"}, history=[ORDERS])
    assert taken.problems([ORDERS, SALES]) == [
        "table public.orders and table sales.orders would both have the name 'orders'"
    ]
    clash = taken.problems([ORDERS, TableName("public", "orders_history")])
    assert clash == [
        "the history of public.orders and table public.orders_history would both have the name 'orders_history'"
    ]
    assert WarehouseNames({SALES: "Orders"}).problems([ORDERS, SALES]) == [], "case counts"


def test_names_are_quoted() -> None:
    assert (qualified("s", 'a"b'), listed(["a", "B c"])) == ('"s"."a""b"', '"a", "B c"')
