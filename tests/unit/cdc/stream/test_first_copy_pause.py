"""What orders about a first copy make of its state."""

from dataclasses import replace

from cdc.postgres.copy_orders import CopyAction, CopyOrder
from cdc.protocol.control_records import SnapshotPhase
from cdc.stream.first_copy_pause import FirstCopyPause
from tests.history import state

COPYING = replace(state(), phase=SnapshotPhase.COPYING)
PAUSED = replace(COPYING, first_copy_paused=True)
SECRET, PID = b"of the topics", 4711


class Heard:
    """A pause that has heard these orders of slot ``s``."""

    def __init__(self, *actions: CopyAction) -> None:
        self.said: list[str] = []
        self.pause = FirstCopyPause("s", self.said.append)
        self.pause.trust(SECRET)
        self.hear(*actions)

    def hear(self, *actions: CopyAction, slot: str = "s", secret: bytes = SECRET, pid: int = PID) -> None:
        for action in actions:
            self.pause.heard(CopyOrder(slot, action, None, "ann", PID).signed(secret).to_bytes(), pid)


def test_an_order_counts_once() -> None:
    heard = Heard(CopyAction.PAUSE)
    assert heard.pause.obeyed(COPYING) == PAUSED
    heard.pause.committed(PAUSED)
    assert not heard.pause.is_ordered
    assert heard.pause.obeyed(PAUSED) is PAUSED


def test_an_order_counts_until_the_state_that_obeys_it_is_committed() -> None:
    heard = Heard(CopyAction.PAUSE)
    assert heard.pause.obeyed(COPYING) == PAUSED
    assert heard.pause.is_ordered  # the session is lost meanwhile
    assert heard.pause.obeyed(COPYING) == PAUSED


def test_an_order_that_comes_while_another_is_committed_counts() -> None:
    heard = Heard(CopyAction.PAUSE)
    assert heard.pause.obeyed(COPYING) == PAUSED
    heard.hear(CopyAction.RESUME)
    heard.pause.committed(PAUSED)
    assert heard.pause.obeyed(PAUSED) == COPYING


def test_what_is_so_already_changes_nothing() -> None:
    assert Heard(CopyAction.PAUSE).pause.obeyed(PAUSED) is PAUSED
    assert Heard(CopyAction.RESUME).pause.obeyed(COPYING) is COPYING
    assert Heard().pause.obeyed(PAUSED) is PAUSED


def test_orders_for_other_slots_and_what_nobody_may_do_to_a_first_copy_are_passed_over() -> None:
    heard = Heard(CopyAction.CANCEL)
    heard.hear(CopyAction.PAUSE, slot="another")
    assert not heard.pause.is_ordered
    heard.pause.heard(b"{", PID)
    assert not heard.pause.is_ordered
    assert len(heard.said) == 1
    assert "an order about copies is ignored" in heard.said[0]


def test_an_order_counts_where_it_is_signed_and_comes_from_where_it_was_signed() -> None:
    heard = Heard()
    heard.hear(CopyAction.PAUSE, secret=b"another")
    heard.hear(CopyAction.PAUSE, pid=PID + 1)
    heard.pause.heard(CopyOrder("s", CopyAction.PAUSE, None, "ann", PID).to_bytes(), PID)
    assert not heard.pause.is_ordered
    assert all("pause of copies is ignored" in said for said in heard.said)
    heard.hear(CopyAction.PAUSE, CopyAction.PAUSE)
    assert heard.said[3:] == ["pause of the first copy was ordered by role ann"]


def test_an_order_that_came_too_late_is_told_of() -> None:
    heard = Heard(CopyAction.PAUSE)
    heard.pause.over()
    assert heard.said[1:] == ["warning: pause is ignored: the first copy is complete"]
    heard.hear(CopyAction.PAUSE)
    assert not heard.pause.is_ordered
