"""cdc.capture.ownership: who may go on after others have taken over."""

import pytest

from cdc.capture.ownership import Ownership
from cdc.model.errors import Fenced
from tests.history import state


def test_the_first_process_of_a_slot_takes_over_from_nobody() -> None:
    ours = Ownership("ours")
    assert not ours.is_taken
    ours.take(None)
    assert ours.is_taken


def test_a_process_that_lost_its_connections_does_not_take_over_again() -> None:
    ours = Ownership("ours")
    ours.take(state(owner="before"))
    with pytest.raises(Fenced, match="another capture process"):
        ours.take(state(owner="heir"))


def test_a_process_that_began_without_a_state_is_fenced_by_one_that_committed() -> None:
    ours = Ownership("ours")
    ours.take(None)
    ours.check(None)
    with pytest.raises(Fenced):
        ours.check(state(owner="heir"))


def test_a_state_that_was_lost_is_nobodys() -> None:
    """Whoever takes over commits one. What comes next tells of the lost state, and of the way out."""
    ours = Ownership("ours")
    ours.take(state(owner="before"))
    ours.take(state(owner="ours"))
    ours.take(None)
    with pytest.raises(Fenced):
        ours.take(state(owner="heir"))
