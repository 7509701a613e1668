"""lockstep.rebuild.in_place: what can't be done in place, and what is removed there."""

import pytest
from pydantic import TypeAdapter

from cdc.model.errors import ConfigurationError
from cdc.model.table import TableName
from lockstep.rebuild.in_place import check_in_place, deletes_of_extra_rows
from lockstep.verify.report import Difference, Kind, TableReport, VerifyReport
from sinks.registry import SinkSettings


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        ({"type": "redis"}, {"type": "redis", "keys": {"public.orders": "order:{id}"}}, ["keys"]),
        ({"type": "redis", "ttl_s": {"public.orders": 9}}, {"type": "redis", "values": "fields"}, ["ttl_s", "values"]),
        ({"type": "opensearch"}, {"type": "opensearch", "routing": {"public.orders": ["id"]}}, ["routing"]),
        (
            {"type": "warehouse", "url": "postgresql://w", "history": True},
            {"type": "warehouse", "url": "postgresql://w", "history": True, "exclude": ["public.orders.note"]},
            ["exclude"],
        ),
    ],
)
def test_what_would_leave_rows_behind_is_refused_in_place(
    before: dict[str, object], now: dict[str, object], named: list[str]
) -> None:
    adapter: TypeAdapter[SinkSettings] = TypeAdapter(SinkSettings)
    with pytest.raises(ConfigurationError) as raised:
        check_in_place(adapter.validate_python(now), adapter.validate_python(before))
    assert [problem.partition(":")[0] for problem in raised.value.problems] == named
    check_in_place(adapter.validate_python(now), adapter.validate_python(now))


ORDERS, LOG = TableName("public", "orders"), TableName("public", "log")


def test_rows_that_are_too_many_are_removed_but_for_those_that_a_retention_took_from_the_log() -> None:
    stray, twice = (
        Difference(Kind.EXTRA, b'{"id":1}', sink_tag="0" * 27 + "7"),
        Difference(Kind.EXTRA, b'{"id":2}', sink_tag="0" * 27 + "8", note="a second copy"),
    )
    missing = Difference(Kind.MISSING, b'{"id":3}', topic_tag="0" * 27 + "9")
    tables = (
        TableReport(ORDERS, differences=(stray, twice, missing)),
        TableReport(LOG, differences=(Difference(Kind.EXTRA, b'{"_tag":"1"}', sink_tag="0" * 27 + "1"),)),
    )
    deletes = deletes_of_extra_rows(VerifyReport("dwh", 1, "source", None, tables), append_only={LOG})
    assert [(delete.table, delete.key, delete.row, delete.tag) for delete in deletes] == [
        (ORDERS, {"id": 1}, None, "0" * 27 + "7")
    ]


def test_a_view_is_not_written_again_in_place() -> None:
    adapter: TypeAdapter[SinkSettings] = TypeAdapter(SinkSettings)
    view = {"name": "open", "sql": "select id from orders", "key": ["id"]}
    settings = adapter.validate_python({"type": "redis", "url": "redis://cache", "view": view})
    with pytest.raises(ConfigurationError, match="rows of a view"):
        check_in_place(settings, settings)


def test_a_consistent_sink_is_not_written_again_in_place() -> None:
    adapter: TypeAdapter[SinkSettings] = TypeAdapter(SinkSettings)
    settings = adapter.validate_python({"type": "warehouse", "url": "postgresql://w", "consistent": True})
    with pytest.raises(ConfigurationError, match="side by side"):
        check_in_place(settings, settings)
