"""Staging tables are emptied in the cheapest way that doesn't let them grow."""

from sinks.warehouse.postgres.staging import Staging


def test_few_rows_are_deleted_and_what_lies_there_dead_is_truncated_in_the_end() -> None:
    staging = Staging("s", "g1.orders")
    statements = [staging.emptying(500_000) for _ in range(20)]
    kinds = ["truncate" if number in (8, 17) else "delete from" for number in range(20)]
    assert statements == [f'{kind} pg_temp."s"' for kind in kinds]
    assert Staging("s", "g1.orders").emptying(50_000_000) == 'truncate pg_temp."s"'
