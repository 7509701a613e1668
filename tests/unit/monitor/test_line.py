"""monitor.line: whose tables the LSNs of sinks are of."""

from dataclasses import replace
from pathlib import Path

import pytest

from cdc.model.errors import Unavailable
from cdc.model.table import TableName
from cdc.protocol.control_records import CaptureState, selection_of
from monitor import line as module
from monitor.line import Captures, Line
from tests.configurations import configured
from tests.history import state

ORDERS, LATE = TableName("public", "orders"), TableName("public", "late")


class _Line(Line):
    """A source that is the one that was captured. ``looks`` counts those at the state."""

    looks = 0

    def _connected(self) -> None:  # type: ignore[override]  # nothing is asked of it
        self._identity = None, state().database


@pytest.fixture
def line(tmp_path: Path) -> _Line:
    return _Line(configured(tmp_path, tables=["public.orders", "public.late"]).as_pipeline())


def _check(line: _Line, captures: Captures, recorded: CaptureState, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_state(*_: object) -> CaptureState:
        line.looks += 1
        return recorded

    monkeypatch.setattr(module, "read_state", read_state)
    assert line._elsewhere(captures) == ()
    line._require_named(captures)


def test_nobody_is_let_go_while_capture_lacks_a_table_that_the_configuration_names(
    line: _Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic of it may be there, of a time when it was captured."""
    without, whole = (ORDERS,), (ORDERS, LATE)
    captures = Captures(state().epoch, selection_of(without))
    with pytest.raises(Unavailable, match=r"without public\.late, which source\.tables names"):
        _check(line, captures, replace(state(), captured=without), monkeypatch)
    with pytest.raises(Unavailable, match="has just begun with other tables"):
        _check(line, replace(captures, selection="newer"), replace(state(), captured=without), monkeypatch)
    looks = line.looks
    now = replace(captures, selection=selection_of(whole))
    for _ in range(3):
        _check(line, now, replace(state(), captured=whole), monkeypatch)
    assert line.looks == looks + 1, "what is known of a selection isn't asked again"


def test_a_capture_without_a_named_table_that_has_no_topic_is_told_and_not_that_nothing_is_published(
    line: _Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.TopicAdmin, "partition_counts", lambda *_, **__: {"shop.public.orders": 1})
    monkeypatch.setattr(line, "_recorded", lambda: replace(state(), captured=(ORDERS,)))
    with pytest.raises(Unavailable, match=r"without public\.late.*start `lockstep capture`"):
        line.check()
    monkeypatch.setattr(line, "_recorded", lambda: None)
    with pytest.raises(Unavailable, match="hasn't published anything yet"):
        line.check()


def test_a_capture_of_an_earlier_version_says_nothing_of_tables(line: _Line, monkeypatch: pytest.MonkeyPatch) -> None:
    _check(line, Captures(state().epoch), state(), monkeypatch)
