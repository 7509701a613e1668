"""lockstep.generations: which tables a sink has by now."""

from pathlib import Path

import pytest

from cdc.model.table import TableName
from jobs.query.captured_tables import Captured
from lockstep import generations
from lockstep.generations import sink_tables_now
from tests.configurations import CACHE, configured

ORDERS, ITEMS, LATE, LOG = (TableName("public", name) for name in ("orders", "items", "late", "log"))


@pytest.mark.parametrize(
    ("tables", "named", "expected"),
    [
        (["public.orders", "public.items"], "", [ORDERS, LATE]),
        (["public.orders", "public.*"], "", [ORDERS, LATE]),
        (["public.orders", "public.items"], 'tables = ["public.orders", "public.items"]', [ORDERS]),
    ],
)
def test_a_table_that_only_a_newer_configuration_names_is_one_of_the_sink(
    tables: list[str], named: str, expected: list[TableName], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has taken it up: a switch must not lose its rows, nor a rebuild in place remove them.

    A table that capture was started without is none of its tables, whatever this configuration names.
    """
    config = configured(tmp_path, CACHE, named, tables=tables)
    monkeypatch.setattr(generations, "captured_now", lambda _: Captured([ORDERS, LATE], [LOG], "s"))
    assert sink_tables_now(config, config.sinks["cache"]) == expected
