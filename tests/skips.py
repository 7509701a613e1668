"""In CI a skipped test fails, unless it is about something that the server's version lacks."""

import os
from collections.abc import Generator

import pytest

EXPECTED = frozenset(
    {
        "constraints of that kind came with 18",
        "earlier servers send such a row without the column",
        "helm isn't installed here",
        "not in this version",
        "nothing can be compiled here",
        "the compiler has no address sanitizer",
        "publications of schemas came with 15",
        "publications of this version have neither filters nor column lists",
        "systemd isn't installed here",
        "virtual columns came with 18",
    }
)
"""Reasons that are no failure anywhere."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn an unexpected skip into a failure if ``CI`` is set."""
    report = yield
    if report.skipped and call.excinfo is not None and isinstance(call.excinfo.value, pytest.skip.Exception):
        reason = call.excinfo.value.msg
        if os.environ.get("CI") and reason not in EXPECTED:
            report.outcome = "failed"
            report.longrepr = f"skipped, which nothing may be here: {reason}"
    return report
