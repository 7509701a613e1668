"""lockstep.views.status"""

import pytest

from cdc.model.table import TableName
from lockstep.views.status import ViewState, ViewStatus, waiting_for
from sinks.view_settings import ViewSettings

_VIEW = ViewSettings(name="totals", sql="select id from late", key=("id",))
_LATE = TableName("public", "late")


@pytest.mark.parametrize("state", [ViewState.READY, ViewState.BUILDING, ViewState.ABSENT])
def test_a_view_that_reads_a_table_which_is_not_captured_waits(state: ViewState) -> None:
    status = waiting_for(ViewStatus(_VIEW, "cache", 1, True, state, since_ms=5), [_LATE])
    assert (status.to_json()["state"], status.needs_somebody) == ("waiting", False)
    assert "totals: waiting: it reads public.late, which isn't captured" in (status.sentence or "")


@pytest.mark.parametrize("state", [ViewState.STOPPED, ViewState.SILENT, ViewState.UNKNOWN])
def test_what_needs_somebody_is_told_first(state: ViewState) -> None:
    status = ViewStatus(_VIEW, "cache", 1, True, state, reason="no room")
    assert waiting_for(status, [_LATE]) == status


def test_a_view_whose_tables_are_all_captured_is_as_it_was() -> None:
    status = ViewStatus(_VIEW, "cache", 1, True, ViewState.READY)
    assert waiting_for(status, ()) == status
