import os
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.proxies import tls_proxy
from tests.tls_servers import HOST, make_certificates, server_context


@pytest.fixture
def _many_descriptors() -> Iterator[None]:
    """Those that ``select.select`` could still wait for are all taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with ExitStack() as stack:
        while (taken := os.open(os.devnull, os.O_RDONLY)) < 1024:
            stack.callback(os.close, taken)
        os.close(taken)
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_many_descriptors")
def test_an_end_of_tls_passes_on_in_a_process_that_has_many_descriptors(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    trusting = ssl.create_default_context(cafile=str(certificates.authority))
    with (
        socket.create_server((HOST, 0)) as target,
        tls_proxy((HOST, target.getsockname()[1]), server_context(certificates, "right")) as port,
        socket.create_connection((HOST, port)) as plain,
        trusting.wrap_socket(plain, server_hostname=HOST) as client,
    ):
        client.sendall(b"asked")
        server, _ = target.accept()
        with server:
            assert server.recv(100) == b"asked"
            server.sendall(b"answered")
            assert client.recv(100) == b"answered"


def test_an_end_of_tls_leaves_no_connection_behind(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    trusting = ssl.create_default_context(cafile=str(certificates.authority))
    with socket.create_server((HOST, 0)) as target:
        with tls_proxy((HOST, target.getsockname()[1]), server_context(certificates, "right")) as port:
            client = trusting.wrap_socket(socket.create_connection((HOST, port)), server_hostname=HOST)
            client.sendall(b"asked")
            server, _ = target.accept()
            assert server.recv(100) == b"asked"
        with server, client:
            assert server.recv(100) == b""
            assert client.recv(100) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port))
