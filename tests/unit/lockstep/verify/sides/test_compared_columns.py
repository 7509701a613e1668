"""Which columns are compared, and what is said of the others."""

from cdc.model.table import TableName
from lockstep.verify.sides.compared_columns import compared_columns, differently_made, has_all_columns
from sinks.redis.settings import RedisSettings
from tests.builders import column, table

NOTHING = frozenset()


def test_a_column_that_one_side_leaves_out_is_named_with_the_side():
    shape = table(column("id", "int8"), column("a"), column("b"))
    columns, reasons = compared_columns(shape, shape, frozenset("a"), frozenset("b"), against="generation 2")

    assert columns == ["id"]
    assert [(name, reason.split(" was")[0]) for name, reason in reasons] == [("a", "the sink"), ("b", "generation 2")]


def test_a_column_that_no_event_has_yet_is_not_compared():
    logged = table(column("id", "int8"))
    columns, reasons = compared_columns(
        table(column("id", "int8"), column("new")), logged, NOTHING, NOTHING, against="source"
    )

    assert columns == ["id"]
    assert [name for name, _ in reasons] == ["new"]


def test_a_table_lacks_a_column_that_the_log_knows() -> None:
    logged = table(column("id", "int8"), column("a"))
    assert has_all_columns(table(column("id", "int8"), column("a"), column("b")), logged)
    assert not has_all_columns(table(column("id", "int8"), column("b")), logged)
    assert not has_all_columns(table(column("id", "int8"), column("a", "int4")), logged)


def test_columns_that_two_sinks_make_in_another_way() -> None:
    plain = RedisSettings.model_validate({"computed": {"public.orders.c": {"sql": "id"}}})
    other = RedisSettings.model_validate(
        {
            "computed": {"public.orders.c": {"sql": "id"}},
            "mask": {"public.orders.c": {"truncate": 1}, "public.items.d": {"truncate": 1}},
        }
    )
    assert differently_made(plain, other, TableName("public", "orders")) == ["c"]
    assert differently_made(plain, plain, TableName("public", "orders")) == []
