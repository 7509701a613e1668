"""Errors go to other threads and processes as they are."""

import copy
import pickle

import pytest

from cdc.model.errors import LockstepError, MalformedMessage, Unavailable, bug
from jobs.dead_letters.limit import TooManyOpen


@pytest.mark.parametrize("carried", [copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize(
    "error",
    [
        LockstepError("what", hint="how"),
        Unavailable("what", retry_after_s=3.0),
        MalformedMessage("why", position=1, message=b"x", lsn=16),
        TooManyOpen("what", hint="how", topic="shop.public.orders"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_in_another_place(error: LockstepError, carried) -> None:
    other = carried(error)
    assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))


def test_a_bug_is_told_without_its_text() -> None:
    try:
        int("recognisable")
    except ValueError as error:
        told = bug(error)
    assert told.message.startswith("ValueError in test_errors.py:")
    assert "recognisable" not in str(told)
