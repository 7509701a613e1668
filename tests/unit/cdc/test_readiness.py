import os
import resource
import socket
from collections.abc import Iterator

import pytest

from cdc.readiness import wait_any_ready, wait_ready


def test_there_is_something_to_read_once_it_was_sent_or_the_connection_has_ended() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        assert not wait_ready(ours, 0)
        assert wait_ready(ours, 0, writing=True)
        theirs.send(b"x")
        assert wait_ready(ours.fileno(), 0)
        assert ours.recv(1) == b"x"
        theirs.close()
        assert wait_ready(ours, 0)


def test_those_of_several_are_told_that_have_something_to_read() -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    ours = [pair[0] for pair in pairs]
    assert wait_any_ready(ours, 0) == []
    pairs[1][1].send(b"x")
    assert wait_any_ready(ours, 30) == [ours[1].fileno()]
    pairs[0][1].close()
    assert wait_any_ready(ours, 30) == [one.fileno() for one in ours]
    for pair in pairs:
        for one in pair:
            one.close()


@pytest.fixture
def _many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_many_descriptors")
def test_a_descriptor_above_those_of_select_is_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        high = os.dup2(ours.fileno(), 1500)
        try:
            assert not wait_ready(high, 0)
            theirs.send(b"x")
            assert wait_ready(high, 0)
        finally:
            os.close(high)
