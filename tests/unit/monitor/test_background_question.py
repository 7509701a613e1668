"""Questions that nobody has to wait for."""

import threading
from collections.abc import Callable

import pytest

from cdc.model.errors import LockstepError
from monitor.background_question import Question


def test_a_question_that_takes_long_is_answered_later() -> None:
    go_on = threading.Event()
    question = Question(_asking(lambda: go_on.wait(300)))
    assert question.wait(0.01) is None
    go_on.set()
    assert question.wait(300) == []


def test_an_error_is_an_answer_and_a_bug_is_raised() -> None:
    def refused() -> None:
        raise LockstepError("refused")

    def broken() -> None:
        raise KeyError("x")

    assert isinstance(Question(_asking(refused)).wait(300), LockstepError)
    with pytest.raises(KeyError):
        Question(_asking(broken)).wait(300)


def _asking(before: Callable[[], object]) -> Callable[[], list[int]]:
    def ask() -> list[int]:
        before()
        return []

    return ask
