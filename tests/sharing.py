"""Files of tests that two processes share: ``pytest -p tests.sharing --claims DIR``, one of them with ``--backwards``.

Each runs the files that the other one hasn't begun. So both are at work until none is left, however long each takes.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Both must be given the same directory, which is empty to begin with."""
    parser.addoption("--claims", type=Path, required=True, help="where each file has a mark once somebody runs it")
    parser.addoption("--backwards", action="store_true", help="begin with the last file")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of a file stay in order, since they may share what they begin with."""
    if config.getoption("--backwards"):
        files: dict[Path, list[pytest.Item]] = {}
        for item in items:
            files.setdefault(item.path, []).append(item)
        items[:] = [item for path in reversed(files) for item in files[path]]


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """As pytest's own, for the tests of files that are claimed here: the next file before the last test of one."""
    if session.testsfailed or session.config.option.collectonly:
        return None  # it couldn't collect all, or isn't to run any: pytest says so
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
