"""The servers of one directory, started and stopped together.

`Stack(directory).up()` returns when all of them serve requests. They keep running after the command has ended;
`stack.json` in that directory finds them again, with the same ports and data. Stacks in different directories don't
disturb each other.

Clients of the servers, and the fetching of jars, are imported where they are used: a look at the servers needs neither.
"""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Literal

from stack import ports as tcp
from stack import process as processes
from stack.directory import STATE_FILE
from stack.errors import StackError
from stack.kafka import Kafka
from stack.lock import locked
from stack.opensearch import OpenSearch
from stack.postgres import SOURCE_SETTINGS, WAREHOUSE_SETTINGS, Postgres, home_of
from stack.progress import QUIET_SECONDS, Effort, Progress
from stack.server import Ports, Server
from stack.state import Remembered, State
from stack.valkey import Valkey

NAMES = ("postgres", "warehouse", "kafka", "opensearch", "valkey")

# PostgreSQL writes a checkpoint when it stops, Kafka its indexes, a JVM its first class archive (which may be cut off).
GRACE_SECONDS = 60.0

_POLL_SECONDS = 0.05
# A look at a process's family reads all of /proc, which costs a busy machine.
_EFFORT_SECONDS = 1.0
# After this time a server is reported as still starting, and again after twice the time.
_SAY_SECONDS = 30.0
_LOG_LINES = 30
_LOG_BYTES_MAX = 16 * 1024 * 1024

Report = Callable[[str, str], None]
ServerState = Literal["running", "frozen", "stopped", "dead"]


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """The address of each server, also before it is started."""

    source_dsn: str
    warehouse_dsn: str
    warehouse_url: str
    kafka_bootstrap: str
    opensearch_url: str
    redis_url: str


@dataclass(frozen=True, kw_only=True)
class ServerStatus:
    """The state of one server. `dead`: it ended without being asked to. `stopped`: it isn't wanted now."""

    name: str
    version: str
    state: ServerState
    pid: int | None
    address: str
    started_at: datetime | None
    rss_bytes: int
    log: Path


class Stack:
    """The local servers below one directory. Safe to use from several threads and processes at once."""

    def __init__(
        self,
        directory: Path,
        *,
        durable: bool = True,
        light: bool = False,
        kafka_overrides: Mapping[str, str] | None = None,
        quiet_seconds: float = QUIET_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        """Starts nothing.

        For tests: `durable=False` doesn't wait for the disk, so a failure of the machine loses data. For all but the
        bench: `light=True` halves the cost of the start and first minutes of the two JVMs, for a lower peak. A start is
        given up once the server has done nothing for ``quiet_seconds``.
        """
        self.directory = directory.absolute()
        self.source = Postgres(
            "postgres",
            database="app",
            settings=SOURCE_SETTINGS,
            passfiles=self.directory,
            durable=durable,
        )
        self.warehouse = Postgres(
            "warehouse",
            database="warehouse",
            settings=WAREHOUSE_SETTINGS,
            passfiles=self.directory,
            durable=durable,
        )
        servers: tuple[Server, ...] = (
            self.source,
            self.warehouse,
            Kafka(kafka_overrides, light=light),
            OpenSearch(light=light),
            Valkey(durable=durable),
        )
        self._servers = {server.name: server for server in servers}
        self._state = State(self.directory / STATE_FILE)
        self._quiet_seconds = quiet_seconds
        self._grace_seconds = grace_seconds

    def up(self, only: Collection[str] | None = None, report: Report | None = None) -> Endpoints:
        """Start the servers that don't run, in parallel, and return when all are ready.

        Running servers stay and frozen ones continue, so a second call is harmless. When one fails, the others stay up,
        and the StackError contains the end of that server's log.
        """
        names = [_known(name) for name in (NAMES if only is None else dict.fromkeys(only))]
        with _alone(self.directory, report or _silent):
            ports = {name: self._choose_ports(name) for name in NAMES}
            self._start_all(names, ports, report or _silent)
        return self.endpoints()

    @property
    def exists(self) -> bool:
        """Whether a server was ever started here."""
        return (self.directory / STATE_FILE).is_file()

    def down(self, report: Report | None = None) -> list[str]:
        """Stop all servers in their orderly ways, and kill those that don't stop in time. Returns those that ran.

        Raises StackError, and leaves no trace, if the stack was never up.
        """
        self._check_exists()
        with _alone(self.directory, report or _silent), ThreadPoolExecutor(len(NAMES)) as pool:
            ran = list(pool.map(self._stop, NAMES))
        return [name for name, did_run in zip(NAMES, ran, strict=True) if did_run]

    def remove(self, report: Report | None = None) -> None:
        """Stop all servers and delete all their data and logs. Raises StackError if the stack was never up."""
        self.down(report)
        elsewhere = home_of(self.directory)
        if elsewhere != self.directory:
            shutil.rmtree(elsewhere, ignore_errors=True)
        # By name: the directory may belong to somebody and hold other files.
        logs = self.directory / "logs"
        for name in NAMES:
            for folder in self.directory.glob(f"{name}-[0-9]*"):
                if folder.is_dir() and not folder.is_symlink():
                    shutil.rmtree(folder)
            for passfile in self.directory.glob(f"{name}-[0-9]*.pgpass"):
                passfile.unlink()
            for log in (f"{name}.log", f"{name}.old.log"):
                (logs / log).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody's logs are in there too
            logs.rmdir()
        for file in (STATE_FILE, "stack.lock"):
            (self.directory / file).unlink(missing_ok=True)

    def start(self, name: str) -> None:
        """Start one server, with the same data and, if it is free, on the same port. Raises as ``up`` does."""
        self.up([name])

    def stop(self, name: str) -> None:
        """Stop one server in its orderly way. Raises StackError for an unknown name, or if there is no stack."""
        _known(name)
        self._check_exists()
        with _alone(self.directory, _silent):
            self._stop(name)

    def kill(self, name: str) -> None:
        """End one server as a crash would, with all its processes. Raises StackError when it doesn't run."""
        processes.kill(self._living(name))

    def freeze(self, name: str) -> None:
        """Suspend one server: connections stay open, nobody answers. Raises StackError when it doesn't run."""
        for member in processes.family(self._living(name)):
            processes.send(member, SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let a frozen server continue. Raises StackError when it doesn't run."""
        for member in processes.family(self._living(name)):
            processes.send(member, SIGCONT)

    def endpoints(self) -> Endpoints:
        """The addresses. Raises StackError if the stack was never up."""
        state = self._state.read()
        if any(name not in state for name in NAMES):
            raise _missing(self.directory)
        return Endpoints(
            source_dsn=self.source.address(state["postgres"].ports),
            warehouse_dsn=self.warehouse.address(state["warehouse"].ports),
            warehouse_url=self.warehouse.url(state["warehouse"].ports),
            kafka_bootstrap=self._servers["kafka"].address(state["kafka"].ports),
            opensearch_url=self._servers["opensearch"].address(state["opensearch"].ports),
            redis_url=self._servers["valkey"].address(state["valkey"].ports),
        )

    def status(self) -> list[ServerStatus]:
        """Look at every server once. Raises StackError if the stack was never up."""
        self._check_exists()
        state = self._state.read()
        return [
            _status(server, state.get(name, Remembered()), self.directory) for name, server in self._servers.items()
        ]

    def _check_exists(self) -> None:
        if not self.exists:
            raise _missing(self.directory)

    def _choose_ports(self, name: str) -> Ports:
        """Choose the ports of every server, even one that isn't wanted now: addresses must not change later."""
        state = self._state.read()
        remembered = state.get(name, Remembered())
        if _state_of(remembered) in {"running", "frozen"}:
            return remembered.ports
        taken = {port for other, entry in state.items() if other != name for port in entry.ports.values()}
        chosen = self._servers[name].ports(remembered.ports, taken)
        self._state.put(name, replace(remembered, ports=dict(chosen)))
        return chosen

    def _start_all(self, names: Collection[str], ports: Mapping[str, Ports], report: Report) -> None:
        """Start servers in threads. An interrupt ends the waiting, not the servers."""
        cancelled = threading.Event()
        with ThreadPoolExecutor(len(NAMES), thread_name_prefix="start") as pool:
            futures = [pool.submit(self._start_again, name, ports[name], report, cancelled) for name in names]
            try:
                errors = [error for future in futures if (error := future.exception()) is not None]
            except BaseException:
                cancelled.set()
                raise
        if len(errors) > 1 and all(isinstance(error, StackError) for error in errors):
            raise StackError("\n\n".join(str(error) for error in errors))
        for error in errors:
            raise error

    def _start_again(self, name: str, ports: Ports, report: Report, cancelled: threading.Event) -> None:
        """Start a server, and once more on other ports if somebody took one between our choice and its start."""
        try:
            self._start(name, ports, report, cancelled)
        except _Ended:
            if all(map(tcp.is_free, ports.values())):
                raise
            report(name, "its port was taken meanwhile")
            self._start(name, self._choose_ports(name), report, cancelled)

    def _start(self, name: str, ports: Ports, report: Report, cancelled: threading.Event) -> None:
        server, remembered = self._servers[name], self._state.get(name)
        began = time.monotonic()
        if remembered.process is not None and _state_of(remembered) in {"running", "frozen"}:
            for member in processes.family(remembered.process):
                processes.send(member, SIGCONT)
        else:
            report(name, "starting")
            launch = server.prepare(ports, self.directory)
            if launch.log.exists() and launch.log.stat().st_size > _LOG_BYTES_MAX:
                launch.log.replace(launch.log.with_suffix(".old.log"))
            process, tail = processes.spawn(launch)
            remembered = Remembered(
                ports=dict(ports),
                version=server.version,
                process=process,
                started_at=time.time(),
                log=str(launch.log),
                log_offset=tail.offset,
            )
            # At once: whatever happens to us now, `down` finds the server.
            self._state.put(name, remembered)
        self._wait_ready(server, remembered, report, cancelled)
        self._state.put(name, replace(remembered, ports=server.actual_ports(remembered.ports, remembered.tail)))
        report(name, f"ready in {time.monotonic() - began:.1f} s")

    def _wait_ready(self, server: Server, remembered: Remembered, report: Report, cancelled: threading.Event) -> None:
        """Wait while the server makes progress. Raises StackError if it ends or hangs; one that hangs is stopped."""
        progress = Progress(quiet_seconds=self._quiet_seconds)
        began = looked_at = time.monotonic()
        say_after = _SAY_SECONDS
        while not cancelled.is_set():
            if remembered.process is None or not processes.is_alive(remembered.process):
                self._state.put(server.name, remembered.stopped())
                message, hint = _failure(f"{server.name} {remembered.version} ended while it started", remembered)
                raise _Ended(message, hint=hint)
            if server.is_ready(remembered.ports, remembered.tail):
                return
            now = time.monotonic()
            if now - looked_at >= min(_EFFORT_SECONDS, self._quiet_seconds):
                looked_at = now
                effort = Effort(remembered.tail.size(), processes.cpu_seconds(remembered.process))
                if progress.is_stuck(now, effort):
                    self._stop(server.name)
                    late = (
                        f"{server.name} {remembered.version} wasn't ready after {now - began:.0f} s, and has done"
                        f" nothing for {self._quiet_seconds:.0f} s"
                    )
                    message, hint = _failure(late, remembered)
                    raise StackError(message, hint=hint)
                if now - began >= say_after:
                    say_after *= 2
                    report(server.name, f"still starting, with {effort.cpu_seconds:.0f} s of processor time so far")
            cancelled.wait(_POLL_SECONDS)
        raise StackError(
            f"the start of {server.name} was interrupted", hint="`status` shows what runs, `down` stops it"
        )

    def _stop(self, name: str) -> bool:
        """Returns whether it ran."""
        remembered = self._state.get(name)
        if remembered.process is None:
            return False
        did_run = processes.is_alive(remembered.process)
        stop_signal = self._servers[name].stop_signal
        processes.end(remembered.process, stop_signal=stop_signal, grace_seconds=self._grace_seconds)
        self._state.put(name, remembered.stopped())
        return did_run

    def _living(self, name: str) -> processes.ProcessId:
        remembered = self._state.get(_known(name))
        if remembered.process is None or not processes.is_alive(remembered.process):
            raise StackError(
                f"{name} doesn't run in {self.directory}", hint=f"start it with `lockstep up`; log: {remembered.log}"
            )
        return remembered.process


def _known(name: str) -> str:
    if name not in NAMES:
        raise StackError(f"there is no server {name!r}", hint=f"the servers are {', '.join(NAMES)}")
    return name


def _alone(directory: Path, report: Report) -> contextlib.AbstractContextManager[None]:
    """Exclude other commands that start and stop servers here."""
    message = f"another command starts or stops the servers of {directory}; waiting until it is done"
    return locked(directory / "stack.lock", waits=lambda: report("stack", message))


def _missing(directory: Path) -> StackError:
    is_below = (directory / "stack" / STATE_FILE).is_file()
    hint = f"the servers are in {directory / 'stack'}" if is_below else "start it with `lockstep up`"
    return StackError(f"there is no stack in {directory}", hint=hint)


def _status(server: Server, remembered: Remembered, directory: Path) -> ServerStatus:
    state = _state_of(remembered)
    runs = remembered.process is not None and state in {"running", "frozen"}
    return ServerStatus(
        name=server.name,
        version=remembered.version or server.version,
        state=state,
        pid=remembered.process.pid if runs and remembered.process else None,
        address=server.address(remembered.ports) if remembered.ports else "",
        started_at=datetime.fromtimestamp(remembered.started_at, UTC) if runs and remembered.started_at else None,
        rss_bytes=processes.rss_bytes(remembered.process) if runs and remembered.process else 0,
        log=Path(remembered.log) if remembered.log else directory / "logs" / f"{server.name}.log",
    )


def _state_of(remembered: Remembered) -> ServerState:
    if remembered.process is None:
        return "stopped"
    if not processes.is_alive(remembered.process):
        return "dead"
    return "frozen" if processes.is_frozen(remembered.process) else "running"


class _Ended(StackError):
    """A server that ended by itself while it started."""


def _failure(message: str, remembered: Remembered) -> tuple[str, str]:
    """The message with the end of the server's log, and the log's path."""
    lines = remembered.tail.last(_LOG_LINES) or "(it wrote nothing)"
    return f"{message}; the end of its log:\n{lines}", f"the whole log: {remembered.log}"


def _silent(_name: str, _what: str) -> None:
    """Report to nobody."""
