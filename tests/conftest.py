"""Fixtures of every test folder, and how much Hypothesis tries.

Markers say where a test runs. An ``alone`` test changes a server for everybody or needs the whole machine, so nothing
runs beside it. A ``busy`` test keeps a core at work: busy tests run one after the other beside all else, and two at
once when nothing else is left. ``make soak`` runs tests marked ``soak``, ``make test`` all others. ``live`` needs
servers. ``unit``, set by the folder, needs neither servers nor Spark.
"""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.part_files import UNIT

pytest_plugins = [
    "tests.services", "tests.databases", "tests.captured", "tests.own_server", "tests.spark_session",
    "tests.view_pipelines", "tests.receivers", "tests.skips",
]  # fmt: skip

_EXAMPLES = 30

# No deadlines: an example's duration says more about the machine than about the code.
settings.register_profile("work", deadline=None, max_examples=_EXAMPLES)
# In CI the same examples at each run, so that a change is judged by what it changes.
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=_EXAMPLES,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("LOCKSTEP_HYPOTHESIS") or ("ci" if os.environ.get("CI") else "work"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by the folder, before pytest chooses by marks."""
    for item in items:
        is_elsewhere = any(map(item.get_closest_marker, ("live", "busy", "alone")))
        if not is_elsewhere and any(map(item.path.is_relative_to, UNIT)):
            item.add_marker("unit")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Report failures at once, so that they are known even if a long run is ended early."""
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
