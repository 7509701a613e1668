"""What the stack needs to know about one server; `postgres`, `kafka`, `opensearch` and `valkey` implement it."""

from collections.abc import Collection, Mapping
from pathlib import Path
from signal import Signals
from typing import Protocol

from stack.process import Launch, Tail

Ports = Mapping[str, int]


class Server(Protocol):
    @property
    def name(self) -> str:
        """Its name in commands."""

    @property
    def version(self) -> str:
        """Its own version number, also a part of its data directory's name."""

    @property
    def stop_signal(self) -> Signals:
        """The signal that ends it in an orderly way."""

    def ports(self, kept: Ports, taken: Collection[int]) -> dict[str, int]:
        """Choose its ports, the kept ones if they are free; clients use `main`. Raises StackError when none is free."""

    def prepare(self, ports: Ports, directory: Path) -> Launch:
        """Fetch its files, make its data directory and configuration, and return how to start it. Raises StackError."""

    def is_ready(self, ports: Ports, tail: Tail) -> bool:
        """Whether it serves requests now: one quick look, which never raises because the server doesn't answer yet."""

    def actual_ports(self, ports: Ports, tail: Tail) -> dict[str, int]:
        """The ports that it really took, once it is ready."""

    def address(self, ports: Ports) -> str:
        """How a client reaches it."""
