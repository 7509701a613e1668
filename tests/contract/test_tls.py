"""TLS on both sides: every server's certificate is checked, and the server asks for ours."""

import shutil
import ssl
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr
from sqlalchemy import make_url

from cdc.model.errors import LockstepError
from sinks.access import Tls
from sinks.contract import Sink
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.settings import OpenSearchSettings
from sinks.opensearch.sink import OpenSearchSink
from sinks.redis.settings import RedisSettings
from sinks.redis.sink import RedisSink
from sinks.redis.tables import RedisTables
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.tables import WarehouseTables
from tests.builders import batch, table, upsert
from tests.proxies import Address, tls_proxy

pytestmark = pytest.mark.live

KINDS = ("search", "cache", "warehouse")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Certificates that sign themselves, and their keys: the server's for 127.0.0.1, ours, and a stranger's."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates, and it isn't installed")
    folder = tmp_path_factory.mktemp("tls")
    made: dict[str, Path] = {}
    for name in ("server", "client", "stranger"):
        made[name], made[f"{name}_key"] = folder / f"{name}.pem", folder / f"{name}.key"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        command += ["-addext", "subjectAltName=IP:127.0.0.1"]
        command += ["-keyout", str(made[f"{name}_key"]), "-out", str(made[name])]
        subprocess.run(command, check=True, capture_output=True)
        made[f"{name}_key"].chmod(0o600)  # libpq takes no key that others can read
    return made


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def port(kind: str, endpoints: Any, files: dict[str, Path]) -> Iterator[int]:
    """Where the server speaks TLS and asks for a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["server"], files["server_key"])
    context.load_verify_locations(files["client"])
    context.verify_mode = ssl.CERT_REQUIRED
    with tls_proxy(_address(kind, endpoints), context, speaks_postgres=kind == "warehouse") as port:
        yield port


def _address(kind: str, endpoints: Any) -> Address:
    if kind == "warehouse":
        url = make_url(endpoints.warehouse_url)
        return str(url.host), int(url.port or 0)
    parts = urlsplit(endpoints.opensearch_url if kind == "search" else endpoints.redis_url)
    return str(parts.hostname), int(parts.port or 0)


@contextmanager
def _through(kind: str, endpoints: Any, port: int, tls: Tls) -> Iterator[Sink]:
    name = f"t{uuid.uuid4().hex[:12]}"
    sink: Sink
    if kind == "search":
        sink = OpenSearchSink(
            OpenSearchIndexes(
                name, OpenSearchSettings(urls=(f"https://127.0.0.1:{port}",), tls=tls, replicas=0, timeout_s=5), 1
            )
        )
    elif kind == "cache":
        url = endpoints.redis_url.replace("redis://", "rediss://").replace(
            str(urlsplit(endpoints.redis_url).port), str(port)
        )
        sink = RedisSink(RedisTables(name, RedisSettings(url=SecretStr(url), tls=tls, timeout_s=5), 1))
    else:
        to_proxy = make_url(endpoints.warehouse_url).set(host="127.0.0.1", port=port)
        sink = WarehouseSink(
            WarehouseTables(
                name, WarehouseSettings(url=SecretStr(to_proxy.render_as_string(hide_password=False)), tls=tls), 1
            )
        )
    try:
        yield sink
    finally:
        sink.close()


def test_both_sides_show_a_certificate(kind: str, endpoints: Any, port: int, files: dict[str, Path]) -> None:
    tls = Tls(ca_file=files["server"], certificate_file=files["client"], key_file=files["client_key"])
    with _through(kind, endpoints, port, tls) as sink:
        sink.prepare([table()])
        sink.apply(batch(*(upsert({"id": n, "note": "x" * 1000}, 1) for n in range(500))))
        assert {row.key["id"] for row in sink.scan(table())} == set(range(500))


def test_a_server_that_is_another_is_not_spoken_to(
    kind: str, endpoints: Any, port: int, files: dict[str, Path]
) -> None:
    tls = Tls(ca_file=files["stranger"], certificate_file=files["client"], key_file=files["client_key"])
    with (
        _through(kind, endpoints, port, tls) as sink,
        pytest.raises(LockstepError, match=r"isn't trusted|certificate verify failed") as caught,
    ):
        sink.prepare([table()])
    assert type(caught.value) is LockstepError, "asking again wouldn't help"
    assert "ca_file" in (caught.value.hint or "")


@pytest.mark.parametrize("shown", ["nothing", "stranger"])
def test_who_shows_no_certificate_that_is_known_gets_the_reason(
    kind: str, endpoints: Any, port: int, files: dict[str, Path], shown: str
) -> None:
    own = {} if shown == "nothing" else {"certificate_file": files[shown], "key_file": files[f"{shown}_key"]}
    with (
        _through(kind, endpoints, port, Tls(ca_file=files["server"], **own)) as sink,
        pytest.raises(LockstepError) as caught,
    ):
        sink.prepare([table()])
    assert "certificate_file" in f"{caught.value.message} {caught.value.hint}"
