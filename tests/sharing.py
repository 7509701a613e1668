"""Files of tests that two processes share: ``pytest -p tests.sharing --claims DIR``, one of them with ``--backwards``.

Each runs the files that the other hasn't begun. So both work until none is left, however long each file takes.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Both get the same directory, which is empty at first."""
    parser.addoption("--claims", type=Path, required=True, help="where each file has a mark once somebody runs it")
    parser.addoption("--backwards", action="store_true", help="begin with the last file")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A file's tests stay in order, since they may share state."""
    if config.getoption("--backwards"):
        files: dict[Path, list[pytest.Item]] = {}
        for item in items:
            files.setdefault(item.path, []).append(item)
        items[:] = [item for path in reversed(files) for item in files[path]]


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Like pytest's own loop, for files that are claimed here. Claims the next file before the last test of one."""
    if session.testsfailed or session.config.option.collectonly:
        return None  # not everything was collected, or nothing is to run: pytest reports that
    wanted = _claimed(session)
    item = next(wanted, None)
    while item is not None:
        following = next(wanted, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def _claimed(session: pytest.Session) -> Iterator[pytest.Item]:
    claims = session.config.getoption("--claims")
    ours: dict[Path, bool] = {}
    for item in session.items:
        if item.path not in ours:
            ours[item.path] = _claim(claims / str(item.path.relative_to(session.config.rootpath)).replace("/", "."))
        if ours[item.path]:
            yield item


def _claim(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
