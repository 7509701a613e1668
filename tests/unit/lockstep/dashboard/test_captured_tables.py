from pathlib import Path

import pytest

from cdc.model.errors import Unavailable
from cdc.model.table import TableName
from lockstep.config import read
from lockstep.dashboard.captured_tables import CapturedTables

TEXT = (
    "[pipeline]\nname = 'shop'\n[source]\ndsn = 'dbname=d'\ntables = ['public.*']\n"
    "[kafka]\nbootstrap_servers = 'k:9092'\n"
)
ORDERS, ITEMS = TableName("public", "orders"), TableName("public", "items")


def test_tables_of_patterns_are_those_of_the_last_look(tmp_path: Path) -> None:
    path = tmp_path / "lockstep.toml"
    path.write_text(TEXT)
    configured = read(path)
    tables = CapturedTables(configured)
    assert tables.known is None
    with pytest.raises(Unavailable):
        tables.config()
    for names in ((ORDERS,), (ORDERS, ITEMS)):
        tables.found(configured.as_pipeline().capturing(names))
        assert tables.config().source.table_names == names
    same = tables.config()
    tables.found(configured.as_pipeline().capturing((ORDERS, ITEMS)))
    assert tables.config() is same, "nothing has to be made anew"


def test_tables_that_are_named_are_known_from_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "lockstep.toml"
    path.write_text(TEXT.replace("*", "orders"))
    assert CapturedTables(read(path)).config().source.table_names == (ORDERS,)
