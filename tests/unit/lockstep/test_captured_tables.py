"""lockstep.captured_tables: Kafka says what is captured, whatever this process was configured with."""

from dataclasses import replace
from pathlib import Path

import pytest

from cdc.model.table import TableName
from cdc.pipeline_settings import Pipeline
from cdc.protocol.control_records import CaptureState, SnapshotPhase, selection_of
from jobs.query.captured_tables import Captured
from lockstep import captured_tables
from lockstep.captured_tables import captured_now
from tests.configurations import configured
from tests.history import state

ORDERS, ITEMS, LATE, LOG = (TableName("public", name) for name in ("orders", "items", "late", "log"))


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """Its configuration names two tables, and has no patterns."""
    return configured(tmp_path, tables=["public.orders", "public.items"]).as_pipeline()


def _now(pipeline: Pipeline, recorded: CaptureState | None, monkeypatch: pytest.MonkeyPatch) -> Captured:
    monkeypatch.setattr(captured_tables, "recorded_state", lambda _: recorded)
    return captured_now(pipeline)


def test_what_capture_says_counts_and_not_what_this_configuration_names(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capture alone was started again, with a newer file."""
    captured = (ORDERS, LATE, LOG)
    recorded = replace(state(), phase=SnapshotPhase.DONE, captured=captured, append_only=(LOG,))
    now = _now(pipeline, recorded, monkeypatch)
    assert (list(now.keyed), list(now.append_only)) == ([ORDERS, LATE], [LOG])
    assert (now.selection, now.join_singly) == (selection_of(captured), True)
    assert now.lacks(["public.items"]) == [ITEMS]


@pytest.mark.parametrize("recorded", [None, replace(state(), phase=SnapshotPhase.CREATING, captured=(LATE,))])
def test_before_capture_has_told_it_is_what_the_configuration_names(
    pipeline: Pipeline, recorded: CaptureState | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = _now(pipeline, recorded, monkeypatch)
    assert (list(now.keyed), list(now.append_only), now.selection) == ([ORDERS, ITEMS], [], "")
