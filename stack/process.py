"""Processes that outlive us: start one, find it again, signal its whole family, and never touch another one.

A pid alone doesn't identify a process, since numbers are reused. A `ProcessId` also holds the start time. No function
here touches a process whose start time differs.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_POLL_SECONDS = 0.02
_PROC = Path("/proc/self/stat")


@dataclass(frozen=True)
class ProcessId:
    """A unique process: its number, and its start in the kernel's ticks since boot."""

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """The process that has this number now; None if there is none, or only a zombie."""
        started = _start_of(pid)
        return None if started is None else cls(pid, started)


@dataclass(frozen=True)
class Account:
    uid: int
    gid: int


@dataclass(frozen=True, kw_only=True)
class Launch:
    command: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    log: Path
    # Whom to run as when we are root and the server refuses to be.
    account: "Account | None" = None


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The part of a log file that belongs to one start."""

    log: Path
    offset: int = 0

    def size(self) -> int:
        try:
            return max(0, self.log.stat().st_size - self.offset)
        except FileNotFoundError:
            return 0

    def text(self) -> str:
        try:
            with self.log.open("rb") as content:
                content.seek(self.offset)
                return content.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def last(self, lines: int) -> str:
        return "\n".join(self.text().rstrip().splitlines()[-lines:])


def spawn(launch: Launch) -> tuple[ProcessId | None, Tail]:
    """Start a server in a session that neither our end nor Ctrl-C reaches. Returns no process if it ended at once."""
    account = launch.account
    launch.log.parent.mkdir(parents=True, exist_ok=True)
    with launch.log.open("ab") as log:
        tail = Tail(log=launch.log, offset=log.tell())
        process = subprocess.Popen(
            list(launch.command),
            cwd=launch.directory,
            env=dict(launch.environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
    # It outlives this object; without this, Popen warns when it is deleted. `is_alive` collects it instead.
    process.returncode = 0
    server = ProcessId.of(process.pid)
    if server is None:
        _collect(process.pid)
    return server, tail


def is_alive(process: ProcessId) -> bool:
    """Whether this very process runs. Collects a dead child of ours."""
    _collect(process.pid)
    return ProcessId.of(process.pid) == process


def _collect(pid: int) -> None:
    """Collect a child that ended; until then the kernel keeps its entry."""
    with suppress(ChildProcessError):  # another process's child, as after a restart of the command
        os.waitpid(pid, os.WNOHANG)


def is_frozen(process: ProcessId) -> bool:
    """Whether SIGSTOP has stopped it."""
    try:
        return is_alive(process) and psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def family(process: ProcessId) -> list[ProcessId]:
    """The process and all its descendants, parents first."""
    if not is_alive(process):
        return []
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process, *(child_id for child in children if (child_id := ProcessId.of(child.pid)) is not None)]


def rss_bytes(process: ProcessId) -> int:
    """Resident memory of the whole family. Shared pages count once for each member."""
    total = 0
    for member in family(process):
        try:
            total += psutil.Process(member.pid).memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def cpu_seconds(process: ProcessId) -> float:
    """Processor time of the whole family so far, including members that have ended and were collected."""
    total = 0.0
    for member in family(process):
        try:
            times = psutil.Process(member.pid).cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def send(process: ProcessId, number: signal.Signals) -> None:
    """Signal this very process. Does nothing if it is gone."""
    if is_alive(process):
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def wait_gone(processes: Sequence[ProcessId], seconds: float) -> bool:
    """Wait until all of them have ended. Returns False if the time runs out first."""
    deadline = time.monotonic() + seconds
    while any(is_alive(process) for process in processes):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def end(process: ProcessId, *, stop_signal: signal.Signals, grace_seconds: float) -> bool:
    """Ask a server to stop, and kill the rest after the grace time. Returns True if asking was enough."""
    members = family(process)
    for member in members:
        send(member, signal.SIGCONT)  # a frozen process wouldn't hear the request
    send(process, stop_signal)
    if wait_gone(members, grace_seconds):
        return True
    kill(process, *members)
    return False


def kill(*processes: ProcessId) -> None:
    """Kill processes and their families at once, and wait until they are gone."""
    members = {member: None for process in processes for member in (*family(process), process)}
    for member in members:
        send(member, signal.SIGKILL)
    wait_gone(list(members), seconds=10)
    _wait_collected(list(members), seconds=10)


def _wait_collected(processes: Sequence[ProcessId], seconds: float) -> None:
    """Wait until the system has also collected zombies that weren't our children.

    PostgreSQL doesn't start while its last postmaster's number still answers to a signal, as a zombie's does.
    """
    deadline = time.monotonic() + seconds
    while any(_leaves_remains(process.pid) for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _leaves_remains(pid: int) -> bool:
    """Whether a zombie still holds the number. A new process with that number doesn't count."""
    _collect(pid)  # otherwise a child that ended between the last `is_alive`'s two looks would stay for ever
    return ProcessId.of(pid) is None and psutil.pid_exists(pid)


def _start_of(pid: int) -> float | None:
    """When the process began, in the kernel's ticks since boot; None if it is gone, or only a zombie.

    psutil derives its creation time from the wall clock, which an NTP step moves, so it only serves without /proc. A
    killed JVM is a zombie by name once its first thread has ended; its ports stay taken until all threads have.
    """
    if not _PROC.exists():
        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
        except psutil.NoSuchProcess:
            return None
    try:
        content = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name in parentheses may hold spaces. After it: 1st the state, 18th the threads, 20th the start.
    fields = content.rpartition(")")[2].split()
    if fields[0] in "ZX" and int(fields[17]) <= 1:
        return None
    return float(fields[19])
