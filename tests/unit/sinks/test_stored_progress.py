"""sinks.stored_progress: what lies below a watermark"""

from typing import Any

import pytest

from cdc.model.tag import Tag
from sinks.stored_progress import applied_below
from tests.builders import progress


def test_all_of_a_transaction_before_the_watermark_is_below_the_bound_and_nothing_from_there_on() -> None:
    bound = applied_below(progress(0x500, epoch=2))
    assert bound is not None
    assert str(Tag(2, 0x4FF, 7_000_000)) < bound
    assert str(Tag(1, 0x900, 1)) < bound
    assert not str(Tag(2, 0x500, 0)) < bound


@pytest.mark.parametrize("left", [{"watermark_lsn": 0}, {"skipped": {("t", 0): 5}}, {"left_at_ms": {"t": 5}}])
def test_there_is_none_where_something_may_not_have_been_applied(left: dict[str, Any]) -> None:
    assert applied_below(progress(**{"epoch": 2, **left})) is None
