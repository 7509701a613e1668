"""A broker with users, each of whom may do only what the docs say to grant."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from stack import ports as tcp
from stack.kafka import Kafka
from tests.kafka_process import running_kafka
from tests.services import KAFKA_OVERRIDES
from tests.tls_servers import HOST, add_scram_user

_TYPES: Final = {
    "topic": ResourceType.TOPIC,
    "transactional id": ResourceType.TRANSACTIONAL_ID,
    "group": ResourceType.GROUP,
}


class GuardedKafka:
    """``address`` requires a login by SCRAM. The other listener, which tests use, allows everything."""

    def __init__(self, inner: str, address: str) -> None:
        self.address = address
        self._admin = AdminClient({"bootstrap.servers": inner, "log_level": 0})

    def add_user(self, name: str) -> None:
        """Its password is ``PASSWORD``. It has no rights yet."""
        add_scram_user(self._admin, name)

    def grant(self, user: str, resource: str, operations: Iterable[str], *, pipeline: str) -> None:
        """Grant a row of the docs' tables: ``topics `<pipeline>.*` ``, and what may be done with them."""
        pattern, allow = _pattern(resource, pipeline), AclPermissionType.ALLOW
        bindings = [AclBinding(*pattern, f"User:{user}", "*", _operation(name), allow) for name in operations]
        for future in self._admin.create_acls(bindings).values():
            future.result(300)


def _operation(name: str) -> AclOperation:
    return AclOperation[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()]


def _pattern(resource: str, pipeline: str) -> tuple[ResourceType, str, ResourcePatternType]:
    if resource == "the cluster":
        return ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL
    found = re.fullmatch(r"(?:the )?(topic|transactional id|group)s? `([^`*]+)(\*?)`", resource)
    assert found is not None, resource
    kind, name, is_prefix = found.groups()
    pattern = ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL
    return _TYPES[kind], name.replace("<pipeline>", pipeline), pattern


@contextmanager
def guarded_kafka(directory: Path) -> Iterator[GuardedKafka]:
    taken: dict[str, int] = {}
    for name in ("main", "controller", "login"):
        taken[name] = tcp.pick(taken=taken.values())
    listeners = f"PLAINTEXT://{HOST}:{taken['main']},LOGIN://{HOST}:{taken['login']}"
    overrides: Mapping[str, str] = {
        **KAFKA_OVERRIDES,
        "listeners": f"{listeners},CONTROLLER://{HOST}:{taken['controller']}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
        "controller.quorum.bootstrap.servers": f"{HOST}:{taken['controller']}",
        "listener.name.login.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.login.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
        "super.users": "User:ANONYMOUS",
    }
    with running_kafka(Kafka(overrides, light=True), taken, directory) as inner:
        yield GuardedKafka(inner, f"{HOST}:{taken['login']}")
