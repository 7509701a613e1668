"""TLS to every server: which connections are made, which are refused, and with which message."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import SecretStr
from pyspark.sql import SparkSession
from sqlalchemy import URL

from cdc.kafka.settings import KafkaSettings
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import LockstepError, Unavailable
from cdc.postgres.connection import connect
from cdc.postgres.settings import SourceSettings
from cdc.settings import Tls
from lockstep.config import load
from monitor.certificates import file_validity
from monitor.condition_facts import certificates_of, expiries
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.settings import OpenSearchSettings
from sinks.opensearch.sink import OpenSearchSink
from sinks.redis.settings import RedisSettings
from sinks.redis.sink import RedisSink
from sinks.redis.tables import RedisTables
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.tables import WarehouseTables
from stack.stack import Endpoints
from tests.builders import batch, table, upsert
from tests.databases import password_of
from tests.pipeline import Pipeline
from tests.proxies import Address, tls_proxy
from tests.services import temporary_directory
from tests.tls_servers import (
    HOST,
    PASSWORD,
    SERVER_CERTIFICATES,
    USER,
    Certificates,
    Pem,
    TlsKafka,
    TlsPostgres,
    make_certificates,
    server_context,
    tls_kafka,
)

pytestmark = pytest.mark.live

KINDS = ("source", "source's stream", "kafka", "search", "cache", "warehouse")


class Servers:
    """All servers with TLS. ``show`` makes one show a certificate, and returns its port."""

    def __init__(self, stack: ExitStack, folder: Path, endpoints: Endpoints, certificates: Certificates) -> None:
        self.certificates = certificates
        self._stack = stack
        self._endpoints = endpoints
        self._postgres: TlsPostgres | None = None
        self._kafka: TlsKafka | None = None
        self._folder = folder

    @property
    def postgres(self) -> TlsPostgres:
        if self._postgres is None:
            self._postgres = TlsPostgres(self._folder, self.certificates)
            self._stack.callback(self._postgres.remove)
            self._postgres.execute("create database mutual")
        return self._postgres

    @property
    def kafka(self) -> TlsKafka:
        if self._kafka is None:
            self._kafka = self._stack.enter_context(tls_kafka(self._folder / "kafka", self.certificates))
        return self._kafka

    def show(self, kind: str, certificate: str, *, asks_for_ours: bool = False) -> int:
        if kind in ("search", "cache"):
            context = server_context(self.certificates, certificate, asks_for_ours=asks_for_ours)
            return self._stack.enter_context(tls_proxy(self._plain(kind), context))
        if kind == "kafka":
            return self.kafka.ports["mutual" if asks_for_ours else certificate]
        self.postgres.show(certificate)
        return int(str(conninfo_to_dict(self.postgres.dsn)["port"]))

    def _plain(self, kind: str) -> Address:
        parts = urlsplit(self._endpoints.opensearch_url if kind == "search" else self._endpoints.redis_url)
        return str(parts.hostname), int(parts.port or 0)

    def use(self, kind: str, port: int, tls: Tls, *, database: str = "app") -> None:
        """Connect as Lockstep does, and ask for something, or write something and read it."""
        match kind:
            case "source" | "source's stream":
                dsn = make_conninfo(
                    self.postgres.dsn,
                    port=port,
                    dbname=database,
                    sslmode="verify-full",
                    sslrootcert=str(tls.ca_file),
                    **(
                        {}
                        if tls.certificate_file is None
                        else {"sslcert": tls.certificate_file, "sslkey": tls.key_file}
                    ),
                )
                with connect(
                    SourceSettings(dsn=dsn, tables=("x.y",)), application="test", replication=kind != "source"
                ) as connection:
                    assert connection.pgconn.ssl_in_use
            case "kafka":
                TopicAdmin(KafkaSettings(bootstrap_servers=f"{HOST}:{port}", tls=tls).client()).all_partition_counts()
            case _:
                sink = self._sink(kind, port, tls, database)
                try:
                    sink.prepare([table()])
                    sink.apply(batch(*(upsert({"id": n, "note": "x" * 1000}, 1) for n in range(100))))
                    assert {row.key["id"] for row in sink.scan(table())} == set(range(100))
                finally:
                    sink.close()

    def _sink(self, kind: str, port: int, tls: Tls, database: str) -> Any:
        name = f"t{uuid.uuid4().hex[:12]}"
        if kind == "search":
            settings = OpenSearchSettings(urls=(f"https://{HOST}:{port}",), tls=tls, replicas=0, timeout_s=5)
            return OpenSearchSink(OpenSearchIndexes(name, settings, 1))
        if kind == "cache":
            cache = RedisSettings(url=SecretStr(f"rediss://{HOST}:{port}/0?socket_timeout=5"), tls=tls)
            return RedisSink(RedisTables(name, cache, 1))
        return WarehouseSink(WarehouseTables(name, self.warehouse(port, tls, database), 1))

    def warehouse(self, port: int, tls: Tls, database: str = "app") -> WarehouseSettings:
        url = URL.create(
            "postgresql+psycopg", "postgres", password_of(self.postgres.dsn), host=HOST, port=port, database=database
        )
        return WarehouseSettings(url=SecretStr(url.render_as_string(hide_password=False)), tls=tls)


@pytest.fixture(scope="module")
def servers(endpoints: Endpoints) -> Iterator[Servers]:
    with temporary_directory() as folder, ExitStack() as stack:
        yield Servers(stack, folder, endpoints, make_certificates(folder))


def shown(servers: Servers, pem: Pem | None) -> Tls:
    """Trust the right authority, and show a certificate of ours or none."""
    if pem is None:
        return Tls(ca_file=servers.certificates.authority)
    return Tls(ca_file=servers.certificates.authority, certificate_file=pem.certificate, key_file=pem.key)


@pytest.mark.parametrize(
    ("kind", "certificate"),
    [
        pytest.param(
            kind, certificate, marks=() if kind == "source" or certificate == "wrong_name" else pytest.mark.soak
        )
        for kind in KINDS
        for certificate in SERVER_CERTIFICATES
    ],
)
def test_only_a_server_with_the_right_certificate_is_spoken_to(kind: str, certificate: str, servers: Servers) -> None:
    port = servers.show(kind, certificate)
    if certificate == "right":
        servers.use(kind, port, shown(servers, None))
        return
    with pytest.raises(LockstepError, match="isn't trusted") as caught:
        servers.use(kind, port, shown(servers, None))
    assert not isinstance(caught.value, Unavailable), "asking again wouldn't help"
    assert f"{port}" in caught.value.message
    assert any(setting in (caught.value.hint or "") for setting in ("ca_file", "sslrootcert"))
    assert "lockstep doctor" in (caught.value.hint or "")


@pytest.mark.parametrize("ours", ["client", "strange_client", None])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.soak
def test_a_server_that_asks_for_a_certificate_gets_ours(kind: str, ours: str | None, servers: Servers) -> None:
    port = servers.show(kind, "right", asks_for_ours=True)
    tls = shown(servers, None if ours is None else servers.certificates[ours])
    if ours == "client":
        servers.use(kind, port, tls, database="mutual")
        return
    with pytest.raises(LockstepError) as caught:
        servers.use(kind, port, tls, database="mutual")
    told = f"{caught.value.message} {caught.value.hint}"
    assert "certificate" in told
    assert any(setting in told for setting in ("certificate_file", "sslcert"))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "kafka"])
@pytest.mark.soak
def test_new_connections_see_a_renewed_certificate(kind: str, servers: Servers) -> None:
    servers.use(kind, servers.show(kind, "right"), shown(servers, None))
    servers.use(kind, servers.show(kind, "renewed"), shown(servers, None))


def test_alerts_see_when_the_certificate_expires_that_a_source_or_a_warehouse_shows(
    servers: Servers, tmp_path: Path
) -> None:
    for certificate in ("right", "expired"):
        port = servers.show("warehouse", certificate)
        path = tmp_path / "lockstep.toml"
        path.write_text(
            f"[pipeline]\nname='p'\n[source]\ndsn='host={HOST} port={port} dbname=app'\ntables=['x.y']\n"
            "[kafka]\nbootstrap_servers='k:9092'\n"
        )
        warehouse = servers.warehouse(port, shown(servers, None))
        found = expiries(certificates_of(load(path).as_pipeline(), {"dwh": warehouse}))
        validity = file_validity(servers.certificates[certificate].certificate)
        assert {name: found[name] for name in (f"source {HOST}:{port}", f"dwh {HOST}:{port}")} == {
            f"source {HOST}:{port}": validity,
            f"dwh {HOST}:{port}": validity,
        }


def sasl(servers: Servers, password: Path) -> KafkaSettings:
    return KafkaSettings(
        bootstrap_servers=servers.kafka.address("scram"),
        sasl_mechanism="SCRAM-SHA-512",
        username=USER,
        password_file=password,
        tls=Tls(ca_file=servers.certificates.authority),
    )


def test_kafka_takes_the_login_of_scram_and_says_when_it_is_wrong(servers: Servers, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    TopicAdmin(sasl(servers, password).client()).partition_counts(["t"])
    password.write_text("another")
    with pytest.raises(Unavailable, match="invalid credentials") as caught:
        TopicAdmin(sasl(servers, password).client()).partition_counts(["t"])
    assert "kafka.username" in (caught.value.hint or "")
    assert "another" not in str(caught.value)


@pytest.fixture
def pipeline(servers: Servers, tmp_path: Path) -> Iterator[Pipeline]:
    """All of a pipeline's connections have TLS, and Kafka asks for a login."""
    authority = servers.certificates.authority
    tls = f'tls = {{ ca_file = "{authority}" }}'
    (tmp_path / "kafka-password").write_text(PASSWORD)
    port = servers.show("source", "right")
    servers.postgres.execute("drop database if exists warehouse")
    servers.postgres.execute("create database warehouse")
    passfile = conninfo_to_dict(servers.postgres.dsn)["passfile"]
    endpoints = Endpoints(
        source_dsn=make_conninfo(servers.postgres.dsn, sslmode="verify-full", sslrootcert=str(authority)),
        warehouse_dsn=make_conninfo(servers.postgres.dsn, dbname="warehouse"),
        warehouse_url=f"postgresql+psycopg://postgres@{HOST}:{port}/warehouse?passfile={passfile}",
        kafka_bootstrap=servers.kafka.address("scram"),
        opensearch_url=f"https://{HOST}:{servers.show('search', 'right')}",
        redis_url=f"rediss://{HOST}:{servers.show('cache', 'right')}/0",
    )
    name = f"t{uuid.uuid4().hex[:10]}"
    kafka = f"""
sasl_mechanism = "SCRAM-SHA-512"
username = "{USER}"
password_file = "kafka-password"
{tls}
"""
    more = {"kafka": kafka, "search": tls, "cache": tls, "warehouse": tls}
    pipeline = Pipeline(endpoints, tmp_path, name, sinks=True, more=more)
    yield pipeline
    pipeline.close()


@pytest.mark.busy
def test_a_pipeline_runs_with_tls_everywhere_and_goes_on_with_a_renewed_certificate(
    pipeline: Pipeline, servers: Servers, spark: SparkSession
) -> None:
    with pipeline.sql() as connection:
        connection.execute(
            f"insert into {pipeline.name}.account (id, owner) select i, 'o' from generate_series(1, 50) i"
        )
        connection.execute(f"insert into {pipeline.name}.entry select i, 1, 'n', '{{}}' from generate_series(1, 50) i")
    capture = pipeline.start_capture()
    pipeline.wait_streaming(capture)
    servers.show("source", "renewed")
    with pipeline.sql() as connection:
        ended = connection.execute(
            "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s",
            (pipeline.config.slot,),
        ).fetchone()
        assert ended == (True,)
    pipeline.change_accounts("after")
    pipeline.wait_published(capture)
    assert pipeline.apply(spark, once=True).finish() == 0
    pipeline.assert_sinks_equal()
    assert PASSWORD not in capture.output()
