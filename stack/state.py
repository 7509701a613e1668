"""What a stack remembers between commands, in `stack.json`: ports, processes, where each log began."""

import json
import os
import threading
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stack.errors import StackError
from stack.process import ProcessId, Tail


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """One server. No process means that nobody started it, or that it was stopped on purpose."""

    ports: dict[str, int] = field(default_factory=dict)
    version: str = ""
    process: ProcessId | None = None
    started_at: float | None = None
    log: str = ""
    log_offset: int = 0

    @property
    def tail(self) -> Tail:
        return Tail(log=Path(self.log), offset=self.log_offset)

    def stopped(self) -> "Remembered":
        return replace(self, process=None, started_at=None)


class State:
    """The file, read each time: another command may have written it. Raises StackError when it can't be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = threading.Lock()

    def read(self) -> dict[str, Remembered]:
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            return {name: _parse(entry) for name, entry in content["servers"].items()}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as error:
            raise StackError(
                f"{self._path} can't be read: {error!r}",
                hint="stop the servers by hand, then delete that file; the data beside it is kept",
            ) from error

    def get(self, name: str) -> Remembered:
        return self.read().get(name, Remembered())

    def put(self, name: str, remembered: Remembered) -> None:
        """Write one server's entry. The file is replaced as a whole, so no reader sees half of it."""
        with self._writing:
            servers = self.read() | {name: remembered}
            content = json.dumps({"servers": {key: asdict(entry) for key, entry in servers.items()}}, indent=2)
            partial = self._path.with_suffix(f".{os.getpid()}")
            partial.write_text(content + "\n", encoding="utf-8")
            partial.replace(self._path)


def _parse(entry: dict[str, Any]) -> Remembered:
    process = entry["process"]
    return Remembered(**{**entry, "process": ProcessId(**process) if process else None})
