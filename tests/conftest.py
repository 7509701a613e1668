"""Fixtures of every test folder, and which tests may run beside each other.

``make test`` first runs what is not ``busy``, in two processes with servers of their own. Then the ``busy`` ones - whole pipelines with
Spark and traffic, which keep all cores at work - one after the other, with new servers: beside anything else each of these takes several
times as long, and servers that have seen thousands of topics and indexes are no base for what a few rows may take.
"""

from typing import Any

import pytest

pytest_plugins = ["tests.services", "tests.databases", "tests.captured", "tests.spark_session"]

_BUSY_LIVE = (
    "cluster",
    "faults",
    "jobs",
    "lake",
    "projection",
    "rebuild",
    "rejections",
    "run.",
    "schema_change_in_sinks",
    "verify.",
    "warehouse_file",
)
_BUSY = ("tests/crash/", "tests/e2e/", *(f"tests/live/test_{name}" for name in _BUSY_LIVE))
"""Beginnings of the busy ones' names."""


# Before the one that leaves out what the command line's -m doesn't name.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(_BUSY):
            item.add_marker("busy")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Tell failures when they happen: whoever has to end a run that takes too long still learns what was wrong."""
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None:
        config.pluginmanager.register(_Failures(terminal))


class _Failures:
    def __init__(self, terminal: Any) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.ensure_newline()
            self._terminal.section(f"{report.nodeid} ({report.when}, {report.duration:.0f} s)", sep="-")
            self._terminal.line(report.longreprtext)
