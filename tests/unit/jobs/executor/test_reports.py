"""jobs.executor.reports: what is counted, and when it is told."""

from typing import Any

from jobs.executor.driver_line import ALIVE_S, REPORT_S, TaskReport
from jobs.executor.reports import Reports
from jobs.executor.result import Result

P0 = ("t", 0)
_LINE: Any = object()


def test_what_is_not_applied_yet_is_counted_with_what_is() -> None:
    came = 0
    result = Result(rows=3, next_offsets={P0: 1})
    reports = Reports(_LINE, result, lambda: came)
    assert reports.take(0.0) == TaskReport(rows=3, next_offsets={P0: 1})
    came, result.rows = 1, 4
    assert reports.take(0.0) == TaskReport(has_got_on=True)
    result.rows, result.next_offsets = 5, {P0: 6}
    assert reports.take(0.0) == TaskReport(rows=5, next_offsets={P0: 6})
    assert result.rows == 0


def test_news_are_told_soon_and_that_the_task_is_alive_every_now_and_then() -> None:
    result = Result()
    reports = Reports(_LINE, result)
    reports.take(100.0)
    assert not reports.has_moved
    assert not reports.is_due(100.0 + REPORT_S, has_news=False)
    assert reports.is_due(100.0 + ALIVE_S, has_news=False)
    result.next_offsets = {P0: 1}
    assert reports.has_moved
    assert reports.is_due(100.0 + REPORT_S, has_news=True)
    reports.sign_of_life(100.0 + REPORT_S, has_got_on=True)
    assert not reports.is_due(100.0 + REPORT_S, has_news=True)
    assert not Reports(None, result).is_due(1e9, has_news=True), "nobody listens"
