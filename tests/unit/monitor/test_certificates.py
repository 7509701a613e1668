"""When certificates expire, by file and by what a TLS server shows."""

import socket
import ssl
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from monitor.certificates import file_validity, server_validity, validity

_UNTIL = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
_LATER = datetime(2055, 5, 6, 7, 8, 9, tzinfo=UTC)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


@pytest.fixture(scope="module")
def certificate() -> trustme.LeafCert:
    return trustme.CA().issue_cert("localhost", not_after=_UNTIL)


def test_the_earliest_of_a_file_counts(certificate: trustme.LeafCert, tmp_path: Path) -> None:
    later = trustme.CA().issue_cert("localhost", not_after=_LATER)  # a GeneralizedTime, since its year is beyond 2049
    path = tmp_path / "chain.pem"
    path.write_bytes(b"# words\n" + later.cert_chain_pems[0].bytes())
    assert file_validity(path).until_ms == _ms(_LATER)
    path.write_bytes(later.cert_chain_pems[0].bytes() + certificate.cert_chain_pems[0].bytes())
    assert file_validity(path).until_ms == _ms(_UNTIL)
    path.write_text("no certificate")
    with pytest.raises(ValueError):
        file_validity(path)


def test_bytes_that_are_no_certificate_are_refused(certificate: trustme.LeafCert) -> None:
    der = ssl.PEM_cert_to_DER_cert(certificate.cert_chain_pems[0].bytes().decode())
    assert validity(der).until_ms == _ms(_UNTIL)
    for cut in range(0, len(der), 7):
        with pytest.raises(ValueError, match="not a certificate"):
            validity(der[:cut])


def test_a_server_is_asked_by_what_it_shows(certificate: trustme.LeafCert) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with context.wrap_socket(connection, server_side=True) as encrypted:
                encrypted.recv(1)

        server = threading.Thread(target=serve)
        server.start()
        shown = server_validity("127.0.0.1", listener.getsockname()[1])
        assert shown is not None
        assert (shown.until_ms, shown.from_ms < _ms(datetime.now(UTC))) == (_ms(_UNTIL), True)
        server.join()
