"""What the stack needs to know about one server; `postgres`, `kafka`, `opensearch` and `valkey` say it."""

from collections.abc import Collection, Mapping
from pathlib import Path
from signal import Signals
from typing import Protocol

from stack.process import Launch, Tail

Ports = Mapping[str, int]


class Server(Protocol):
    """One server: which ports it wants, how it is prepared and started, and how one sees that it is ready."""

    @property
    def name(self) -> str:
        """Its name in commands."""

    @property
    def version(self) -> str:
        """Its own version number; part of the name of its data directory."""

    @property
    def stop_signal(self) -> Signals:
        """The signal that ends it in an orderly way."""

    def ports(self, kept: Ports, taken: Collection[int]) -> dict[str, int]:
        """Choose its ports: the kept ones where they are free; `main` is the one that clients use.

        Raises StackError when none is free.
        """

    def prepare(self, ports: Ports, directory: Path) -> Launch:
        """Fetch what it runs from, make its data directory and configuration, and say how to start it.

        Raises StackError when one of that fails.
        """

    def is_ready(self, ports: Ports, tail: Tail) -> bool:
        """Whether it serves requests now; one quick look that never raises because the server isn't there yet."""

    def actual_ports(self, ports: Ports, tail: Tail) -> dict[str, int]:
        """The ports that it really took, once it is ready."""

    def address(self, ports: Ports) -> str:
        """How a client reaches it."""
