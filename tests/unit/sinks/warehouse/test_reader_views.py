"""sinks.warehouse.reader_views: the views' queries; their behaviour is in tests/contract"""

from cdc.model.append_only import stored_table
from cdc.model.table import TableName
from sinks.columns.shape import Shape
from sinks.warehouse.reader_views import history_view, live_condition
from tests.builders import column, table


def test_the_view_has_new_columns_at_its_end() -> None:
    assert history_view("s", Shape.of(table())).columns == (
        "_tag",
        "valid_from",
        "valid_to",
        "_operation",
        "id",
        "note",
    )


def test_of_an_append_only_table_readers_see_what_came_since_it_was_emptied_last() -> None:
    log = stored_table(table(column("note"), name=TableName("public", "log"), key=()))
    assert live_condition('"g1"."log"', log, of="held.") == (
        'not held."_deleted" and held."_operation" <> \'truncate\' and held."_tag" >= '
        '(select coalesce(max("_tag"), \'\') from "g1"."log" where "_operation" = \'truncate\')'
    )
    assert live_condition('"g1"."orders"', table()) == 'not "_deleted"'
