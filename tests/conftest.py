"""Fixtures of every test folder, and which tests may run beside each other.

``make test`` runs two processes, each with servers of its own. Tests that keep all cores busy - whole pipelines with Spark and traffic -
come at the end, one after the other in one of them: beside anything else each of these takes several times as long.
"""

from typing import Any

import pytest

pytest_plugins = ["tests.services", "tests.databases"]

_BUSY_LIVE = (
    "cluster",
    "faults",
    "jobs",
    "lake",
    "projection",
    "rebuild",
    "rejections",
    "run.",
    "schema_change",
    "verify.",
)
_BUSY = ("tests/crash/", "tests/e2e/", *(f"tests/live/test_{name}" for name in _BUSY_LIVE))
"""Beginnings of the busy ones' names."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The busy ones are one task, and each file of the others is one."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "busy" if nodeid.startswith(_BUSY) else nodeid.partition("::")[0]

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The busy ones come last, when nothing else runs any more."""
    items.sort(key=lambda item: item.nodeid.startswith(_BUSY))
