"""sinks.delta.names"""

from cdc.model.table import TableName
from sinks.delta.names import delta_name


def test_a_table_has_a_directory_of_its_own() -> None:
    names = {
        TableName("public", "orders"): "orders",
        TableName("sales", "orders"): "sales__orders",
        TableName("public", "Orders"): "Orders",
        TableName("public", "a-1"): "a.2d1",
        TableName("public", "a.2d1"): "a.2e2d1",
        TableName("My Schema", "ü/%"): "My.20Schema__.c3.bc.2f.25",
    }
    assert {name: delta_name(name) for name in names} == names
