"""Exit codes, and what goes where."""

import pytest

from cdc.model.errors import ConfigurationError, LockstepError
from lockstep.console import exit_code_of


def _raise(error: BaseException):
    raise error


def test_success_is_zero() -> None:
    assert exit_code_of(lambda: None) == 0


def test_a_wrong_configuration_is_two_and_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    code = exit_code_of(lambda: _raise(ConfigurationError("bad file", problems=["a.b: wrong"], hint="mend it")))
    printed = capsys.readouterr()
    assert code == 2
    assert printed.err == "error: bad file\n  a.b: wrong\nmend it\n"
    assert printed.out == ""


def test_a_failure_is_one() -> None:
    assert exit_code_of(lambda: _raise(LockstepError("gone"))) == 1


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        exit_code_of(lambda: 1 // 0)
