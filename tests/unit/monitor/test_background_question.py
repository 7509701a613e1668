"""Questions that nobody has to wait for."""

import threading
from collections.abc import Callable
from functools import partial

import pytest

from cdc.model.errors import LockstepError
from monitor.background_question import Asking, Question


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


def test_a_question_that_has_nothing_to_say_is_answered_and_another_one_can_be_asked() -> None:
    asking, said = Asking[None](), list[int]()
    for number in range(2):
        asking.ask(partial(said.append, number), "the server")
    assert (said, asking.is_open) == ([0, 1], False)


def _asking(before: Callable[[], object]) -> Callable[[], list[int]]:
    def ask() -> list[int]:
        before()
        return []

    return ask
