"""Servers with TLS, and certificates made here: a right one, and every kind of wrong one.

PostgreSQL and Kafka support TLS themselves. OpenSearch's security plugin isn't among the stack's jars, and Valkey's
wheel is built without TLS: a proxy terminates TLS before these two.
"""

import datetime
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
import trustme
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives import serialization

from stack import ports as tcp
from stack.kafka import Kafka
from stack.stack import Stack
from tests.databases import until
from tests.kafka_process import running_kafka
from tests.services import KAFKA_OVERRIDES

HOST: Final = "127.0.0.1"
USER: Final = "lockstep"
PASSWORD: Final = "a SCRAM p'ssword"

SERVER_CERTIFICATES: Final = ("right", "wrong_name", "expired", "other_authority")
"""The certificates that a server may show."""


@dataclass(frozen=True, slots=True)
class Pem:
    """A certificate with its chain, and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """All of one test. Clients are told to trust ``authority``."""

    authority: Path
    by_name: Mapping[str, Pem]

    def __getitem__(self, name: str) -> Pem:
        return self.by_name[name]


def make_certificates(folder: Path) -> Certificates:
    """A right certificate for this machine's address, the wrong ones, and a client's."""
    signer, stranger = trustme.CA(), trustme.CA()
    authority = folder / "authority.pem"
    signer.cert_pem.write_to_path(authority)
    now = datetime.datetime.now(datetime.UTC)
    past = now - datetime.timedelta(days=1)
    leaves = {
        "right": signer.issue_cert(HOST),
        "renewed": signer.issue_cert(HOST),
        "wrong_name": signer.issue_cert("db.example.org"),
        "expired": signer.issue_cert(HOST, not_before=past - datetime.timedelta(days=1), not_after=past),
        "other_authority": stranger.issue_cert(HOST),
        "client": signer.issue_cert("client@example.org", common_name=USER),
        "strange_client": stranger.issue_cert("client@example.org", common_name=USER),
    }
    return Certificates(authority, {name: _write(folder, name, leaf) for name, leaf in leaves.items()})


def _write(folder: Path, name: str, leaf: trustme.LeafCert) -> Pem:
    pem = Pem(folder / f"{name}.pem", folder / f"{name}.key")
    pem.certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), password=None)
    # Java reads only PKCS #8.
    pem.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    pem.key.chmod(0o600)  # libpq takes no key that others can read
    return pem


def server_context(certificates: Certificates, name: str, *, asks_for_ours: bool = False) -> ssl.SSLContext:
    """For a proxy that terminates TLS before a server without it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates[name].certificate, certificates[name].key)
    if asks_for_ours:
        context.load_verify_locations(certificates.authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class TlsPostgres:
    """A server of its own that accepts only TLS, except from connections that change its certificate."""

    def __init__(self, directory: Path, certificates: Certificates) -> None:
        self._certificates = certificates
        self._stack = Stack(directory, light=True, durable=False)
        self.dsn = self._stack.up(["postgres"]).source_dsn
        self._control = psycopg.connect(self.dsn, autocommit=True)
        self._data = Path(self._value("show data_directory"))
        rules = self._data / "pg_hba.conf"
        rules.write_text(
            f"hostssl mutual all {HOST}/32 scram-sha-256 clientcert=verify-ca\n"
            f"hostssl all all {HOST}/32 scram-sha-256\nhostssl replication all {HOST}/32 scram-sha-256\n"
        )
        _give_to_owner(self._data / "authority.pem", certificates.authority.read_bytes(), self._data)
        self.show("right")
        for name, value in (("ssl_ca_file", "authority.pem"), ("ssl", "on")):
            self._control.execute(f"alter system set {name} = '{value}'".encode())
        self._reload()

    def show(self, name: str) -> None:
        """Show this certificate to new connections."""
        pem = self._certificates[name]
        _give_to_owner(self._data / "server.crt", pem.certificate.read_bytes(), self._data)
        _give_to_owner(self._data / "server.key", pem.key.read_bytes(), self._data)
        if self._value("show ssl") == "on":
            self._reload()

    def execute(self, statement: str) -> None:
        self._control.execute(statement.encode())

    def remove(self) -> None:
        self._control.close()
        self._stack.remove()

    def _reload(self) -> None:
        before = self._loaded_at()
        self._control.execute("select pg_reload_conf()")
        until(lambda: self._loaded_at() != before)

    def _loaded_at(self) -> object:
        """When the process that forks new connections last read its files."""
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute("select pg_conf_load_time()").fetchone()
        assert row is not None
        return row[0]

    def _value(self, query: str) -> str:
        row = self._control.execute(query.encode()).fetchone()
        assert row is not None
        return str(row[0])


def _give_to_owner(file: Path, content: bytes, like: Path) -> None:
    file.unlink(missing_ok=True)
    file.write_bytes(content)
    owner = like.stat()
    os.chown(file, owner.st_uid, owner.st_gid)
    file.chmod(0o600)


class TlsKafka:
    """A broker with a listener for each certificate, one that asks for ours, and one with SCRAM."""

    def __init__(self, taken: Mapping[str, int]) -> None:
        self.ports = dict(taken)

    def address(self, listener: str) -> str:
        """``listener`` is ``right`` and so on, ``mutual`` or ``scram``."""
        return f"{HOST}:{self.ports[listener]}"


@contextmanager
def tls_kafka(directory: Path, certificates: Certificates) -> Iterator[TlsKafka]:
    """Start it with one user of SCRAM, ``USER``; kill it at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    shown = {name: name for name in SERVER_CERTIFICATES} | {"mutual": "right", "scram": "right"}
    taken: dict[str, int] = {}
    for name in ("main", "controller", *shown):
        taken[name] = tcp.pick(taken=taken.values())
    listeners = [f"PLAINTEXT://{HOST}:{taken['main']}", *(f"{name.upper()}://{HOST}:{taken[name]}" for name in shown)]
    protocols = {name: "SASL_SSL" if name == "scram" else "SSL" for name in shown}
    protocol_map = [f"{name.upper()}:{protocol}" for name, protocol in protocols.items()]
    overrides = {
        **KAFKA_OVERRIDES,
        "listeners": ",".join([*listeners, f"CONTROLLER://{HOST}:{taken['controller']}"]),
        "advertised.listeners": ",".join(listeners),
        "listener.security.protocol.map": ",".join(["CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT", *protocol_map]),
        "controller.quorum.bootstrap.servers": f"{HOST}:{taken['controller']}",
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.scram.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }
    for name, certificate in shown.items():
        store = directory / f"{name}.pem"
        pem = certificates[certificate]
        store.write_bytes(pem.key.read_bytes() + pem.certificate.read_bytes())
        prefix = f"listener.name.{name}.ssl"
        overrides |= {
            f"{prefix}.keystore.type": "PEM",
            f"{prefix}.keystore.location": str(store),
            f"{prefix}.truststore.type": "PEM",
            f"{prefix}.truststore.location": str(certificates.authority),
        }
    with running_kafka(Kafka(overrides, light=True), taken, directory) as address:
        add_scram_user(AdminClient({"bootstrap.servers": address, "log_level": 0}), USER)
        yield TlsKafka(taken)


def add_scram_user(admin: AdminClient, name: str) -> None:
    """Its password is ``PASSWORD``."""
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    user = UserScramCredentialUpsertion(name, credential, PASSWORD.encode())
    for future in admin.alter_user_scram_credentials([user]).values():
        future.result(300)
