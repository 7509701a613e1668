"""lockstep.rebuild.display"""

import io
import logging

import pytest
from rich.console import Console

from cdc.model.table import TableName
from lockstep.rebuild.display import Bars
from lockstep.rebuild.outcome import BuildProgress
from lockstep.verify.options import SOURCE
from lockstep.verify.progress import Step

ORDERS = TableName("public", "orders")


def _terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=160, color_system=None)


def _shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _last(console: Console) -> str:
    """The last picture: what stays on the screen."""
    return _shown(console).rpartition("compare")[2]


def test_a_comparison_shows_how_many_rows_of_how_many() -> None:
    console = _terminal()
    bars = Bars(console)
    bars.compared(Step(ORDERS, SOURCE, 5000))
    bars.compared(Step(ORDERS, SOURCE, 8000))
    bars.compared(Step(ORDERS, "sink", 2000))
    bars.finish()
    assert "compare public.orders" in _shown(console)
    assert "25%" in _last(console)
    assert "sink: 2,000 of 8,000" in _last(console)


def test_the_first_pass_has_no_known_end() -> None:
    console = _terminal()
    bars = Bars(console)
    bars.compared(Step(ORDERS, SOURCE, 5000))
    bars.finish()
    assert "source: 5,000" in _last(console)
    assert " of " not in _last(console)
    assert "100%" not in _last(console)


def test_a_sink_with_more_rows_is_not_beyond_its_end() -> None:
    console = _terminal()
    bars = Bars(console)
    bars.compared(Step(ORDERS, SOURCE, 100))
    bars.compared(Step(ORDERS, "sink", 120))
    bars.compared(Step(ORDERS, "keys that may differ", 3))
    bars.finish()
    assert "100%" in _last(console)
    assert "keys that may differ: 3" in _last(console)


def test_what_is_said_in_between_does_not_end_the_bars() -> None:
    console = _terminal()
    bars = Bars(console)
    bars.built(BuildProgress(2, 50, 100, 50, finished=False))
    bars.finish()
    bars.built(BuildProgress(2, 75, 100, 75, finished=False))
    bars.compared(Step(ORDERS, SOURCE, 10))
    bars.finish()
    assert "75%" in _shown(console)
    assert "compare public.orders" in _shown(console)


def test_elsewhere_there_is_a_line_now_and_then_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    now = 100.0
    bars = Bars(console, monotonic=lambda: now)
    with caplog.at_level(logging.INFO, "lockstep.rebuild"):
        bars.compared(Step(ORDERS, SOURCE, 8000))
        bars.compared(Step(ORDERS, "sink", 1000))
        now += 60
        bars.compared(Step(ORDERS, "sink", 2000))
        bars.finish()
    assert caplog.messages == [
        "comparing table=public.orders (source: 8,000)",
        "comparing table=public.orders (sink: 2,000 of 8,000)",
    ]
    assert _shown(console) == ""
