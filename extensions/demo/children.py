"""The demo's own processes: each in its own session with its own log, watched, and never left behind. A file lists them
from their start, so that the next run can end those that a killed run left.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGTERM

from cdc.model.errors import LockstepError
from lockstep.log import LOG_FORMAT_VARIABLE
from stack import process as processes
from stack.process import Launch, ProcessId, Tail

_LOG_LINES = 25
_POLL_S = 0.05

# The format of lockstep.log: date, time, level. A record ends where the next one begins.
_DATE = r"\d{4}-\d\d-\d\d "
_ERROR = re.compile(rf"^{_DATE}\S+ ERROR .*(?:\n(?!{_DATE}).+)*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Child:
    name: str
    process: ProcessId
    tail: Tail
    may_end: bool
    watches: bool


class Children:
    """Python modules run as processes. ``hurried`` returns True if nobody may wait for their end any longer."""

    def __init__(self, directory: Path, *, hurried: Callable[[], bool]) -> None:
        self._file = directory / "processes.json"
        self._logs = directory / "logs"
        self._hurried = hurried
        self._running: dict[str, _Child] = {}
        self._looked_at: dict[str, int] = {}

    def end_leftovers(self) -> int:
        """Kill the processes that an earlier run left. Returns their number."""
        try:
            recorded = [ProcessId(**entry) for entry in json.loads(self._file.read_text(encoding="utf-8"))]
        except FileNotFoundError:
            return 0
        except (ValueError, TypeError):  # killed while it wrote the file
            recorded = []
        survivors = [process for process in recorded if processes.is_alive(process)]
        processes.kill(*survivors)
        self._file.unlink(missing_ok=True)
        return len(survivors)

    def start(
        self, name: str, module: str, arguments: Sequence[str], *, may_end: bool = False, watches: bool = False
    ) -> None:
        """Start ``python -m module``; one that ``may_end`` may finish. Raises LockstepError when it ends at once. If it
        ``watches``, errors in its log are about other processes, and may be over in a moment.
        """
        launch = Launch(
            command=[sys.executable, "-m", module, *arguments],
            environment={**os.environ, "PYTHONUNBUFFERED": "1", LOG_FORMAT_VARIABLE: "console"},
            directory=Path.cwd(),
            log=self.log(name),
        )
        launch.log.unlink(missing_ok=True)
        process, tail = processes.spawn(launch)
        if process is None:
            raise _ended(name, tail)
        self._running[name] = _Child(name, process, tail, may_end, watches)
        self._write()

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def last_line(self, name: str) -> str:
        return _last_line(self.log(name))

    def check(self) -> None:
        """Raises LockstepError when a child has ended, or has logged an error: its work is over then."""
        for child in list(self._running.values()):
            if not processes.is_alive(child.process):
                if child.may_end:
                    continue
                del self._running[child.name]
                raise _ended(child.name, child.tail)
            error = "" if child.watches else self._logged_error(child)
            if error:
                raise LockstepError(f"{child.name} has failed:\n{error}", hint=f"the whole log: {child.tail.log}")

    def has_ended(self, name: str) -> bool:
        return not processes.is_alive(self._running[name].process)

    def failure(self, name: str) -> LockstepError:
        return _ended(name, self._running[name].tail)

    def stop(self, *names: str, grace_s: float) -> list[str]:
        """Ask these children (default: all) to end, and kill those that don't. Returns the names of the killed ones."""
        chosen = [self._running[name] for name in names or list(self._running) if name in self._running]
        # Before the request: once a parent is gone, its children can't be found.
        families = {child.name: processes.family(child.process) for child in chosen}
        for child in chosen:
            processes.send(child.process, SIGTERM)
        deadline = time.monotonic() + grace_s
        living = families
        while living and time.monotonic() < deadline and not self._hurried():
            time.sleep(_POLL_S)
            living = {name: family for name, family in living.items() if any(map(processes.is_alive, family))}
        for family in living.values():
            processes.kill(*family)
        # At the end: a caller that is interrupted while it waits calls this again.
        for child in chosen:
            del self._running[child.name]
        self._write()
        return list(living)

    def _logged_error(self, child: _Child) -> str:
        """The first record of level ERROR that the child has logged since the last look, with all of its lines. The
        failure of one sink ends neither the other sinks nor their common process.
        """
        offset = self._looked_at.get(child.name, child.tail.offset)
        text = Tail(log=child.tail.log, offset=offset).text()
        whole = text[: text.rfind("\n") + 1]
        self._looked_at[child.name] = offset + len(whole.encode())
        match = _ERROR.search(whole)
        return match[0].strip() if match else ""

    def _write(self) -> None:
        content = json.dumps([asdict(child.process) for child in self._running.values()])
        if self._running:
            self._file.write_text(content, encoding="utf-8")
        else:
            self._file.unlink(missing_ok=True)


def _ended(name: str, tail: Tail) -> LockstepError:
    lines = tail.last(_LOG_LINES) or "(it wrote nothing)"
    return LockstepError(f"{name} ended by itself; the end of its log:\n{lines}", hint=f"the whole log: {tail.log}")


def _last_line(file: Path) -> str:
    """The last whole line of a file, without reading all of it."""
    try:
        with file.open("rb") as content:
            content.seek(max(0, content.seek(0, os.SEEK_END) - 4096))
            lines = content.read().decode("utf-8", "replace").split("\n")[:-1]
    except FileNotFoundError:
        return ""
    return lines[-1] if lines else ""
