"""Free ports, kept ones first."""

import socket
from collections.abc import Iterator

import pytest

from stack import ports
from stack.errors import StackError


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server((ports.HOST, 0)) as server:
        yield server


def port_of(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def around(port: int, count: int = 1) -> range:
    return range(port, port + count)


def test_a_kept_port_is_taken_again_while_it_is_free() -> None:
    kept = ports.pick()
    assert ports.pick(kept) == kept


def test_a_busy_port_is_never_chosen(listener: socket.socket) -> None:
    port = port_of(listener)
    chosen = ports.pick(port, among=around(port, 20))
    assert chosen != port
    assert ports.is_free(chosen)


def test_a_kept_port_that_another_server_has_now_is_given_up(listener: socket.socket) -> None:
    assert not ports.is_free(port_of(listener))
    assert ports.answers(port_of(listener))


def test_two_servers_of_a_stack_never_share_a_port() -> None:
    kept = ports.pick()
    assert ports.pick(kept, taken={kept}) != kept


def test_a_port_outside_the_range_is_not_kept() -> None:
    # A stack that knew another range before: OpenSearch accepts its own hundred ports only.
    assert ports.pick(25_000, among=range(9200, 9300)) in range(9200, 9300)


def test_an_exhausted_range_is_an_error(listener: socket.socket) -> None:
    port = port_of(listener)
    with pytest.raises(StackError, match=f"no free port from {port} to {port}"):
        ports.pick(among=around(port))
