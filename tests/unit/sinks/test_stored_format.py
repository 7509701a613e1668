"""sinks.stored_format"""

import pytest

from cdc.model.errors import LockstepError
from sinks.stored_format import check_stored_format


@pytest.mark.parametrize(
    ("stored", "message", "hint"),
    [
        (4, "written by a newer Lockstep: its stored format is 4", "upgrade"),
        (2, "an earlier Lockstep", "lockstep apply"),
    ],
)
def test_another_format_is_refused_with_the_way_out(stored: int, message: str, hint: str) -> None:
    with pytest.raises(LockstepError, match=message) as raised:
        check_stored_format("cache", stored, known=3, elsewhere="prefix")
    assert hint in (raised.value.hint or "")
    assert "another prefix" in (raised.value.hint or "")
