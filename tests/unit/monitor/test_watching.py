"""What extensions find, and what is known while they can't look."""

import threading

from cdc.model.errors import Unavailable
from monitor.watching import Found, Watching
from tests.databases import until

FOUND = Found(unknown=frozenset({("extra", "one")}))
NOTHING = Found(unknown=frozenset({("extra", None)}))


class Extra:
    """A watch that finds something at its second look."""

    def __init__(self) -> None:
        self.looks = 0
        self.closed = threading.Event()

    def look(self) -> Found:
        self.looks += 1
        if self.looks == 1:
            raise Unavailable("down")
        return FOUND

    def close(self) -> None:
        self.closed.set()


def test_nothing_is_known_before_the_first_answer_and_a_look_that_fails_is_tried_again() -> None:
    extra, go_on = Extra(), threading.Event()

    def opened() -> Extra:
        go_on.wait(300)
        return extra

    with Watching("extra", opened, NOTHING, every_s=0.01) as watching:
        assert watching.latest == NOTHING
        go_on.set()
        until(lambda: watching.latest == FOUND)
    assert extra.closed.wait(300)
