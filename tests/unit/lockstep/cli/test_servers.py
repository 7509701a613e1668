"""Commands of the local servers: what ``up`` prints of which server."""

from dataclasses import fields

from lockstep.cli.servers import _SERVER_OF
from stack.stack import NAMES, Endpoints


def test_every_address_belongs_to_a_server() -> None:
    assert list(_SERVER_OF) == [field.name for field in fields(Endpoints)]
    assert set(_SERVER_OF.values()) == set(NAMES)
