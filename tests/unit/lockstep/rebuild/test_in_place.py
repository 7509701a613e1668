"""lockstep.rebuild.in_place: what can't be done in place."""

import pytest
from pydantic import TypeAdapter

from cdc.model.errors import ConfigurationError
from lockstep.rebuild.in_place import check_in_place
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
