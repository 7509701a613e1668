"""sinks.warehouse.reader_views: the views' queries; their behaviour is in tests/contract"""

from sinks.columns.shape import Shape
from sinks.warehouse.reader_views import history_view
from tests.builders import table


def test_the_view_has_new_columns_at_its_end() -> None:
    assert history_view("s", Shape.of(table())).columns == (
        "_tag",
        "valid_from",
        "valid_to",
        "_operation",
        "id",
        "note",
    )
