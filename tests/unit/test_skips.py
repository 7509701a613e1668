"""A test that doesn't run says so in a way that CI can't miss."""

import pytest

from tests.skips import EXPECTED

pytest_plugins = ["pytester"]

SKIPPED = """\
import pytest

def test_without_a_tool():
    pytest.skip("no such tool here")

@pytest.mark.skipif(True, reason="no such thing here")
def test_without_a_thing():
    pass

def test_of_another_version():
    pytest.skip({expected!r})

@pytest.mark.xfail(strict=True)
def test_that_is_known_to_fail():
    assert False
"""


@pytest.mark.parametrize(
    ("in_ci", "outcomes"),
    [("true", {"failed": 1, "errors": 1, "skipped": 1, "xfailed": 1}), ("", {"skipped": 3, "xfailed": 1})],
)
def test_an_unexpected_skip_fails_in_ci_only(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, in_ci: str, outcomes: dict[str, int]
) -> None:
    monkeypatch.setenv("CI", in_ci)
    pytester.makepyfile(SKIPPED.format(expected=min(EXPECTED)))
    result = pytester.runpytest_inprocess("-p", "tests.skips", "-p", "no:hypothesispytest", "-p", "no:cacheprovider")
    assert result.parseoutcomes() == outcomes
