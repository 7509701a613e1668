"""The use of processes: processor seconds and peak memory."""

import contextlib
import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

_HIGH_WATER_MARK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)

_KIB = 1024
_MB = 1_000_000


def cpu_seconds(pid: int) -> float:
    """Of a process and its family, including ended children; 0 if it is gone."""
    try:
        process = psutil.Process(pid)
        own = process.cpu_times()
        total = own.user + own.system + own.children_user + own.children_system
        for child in process.children(recursive=True):
            times = child.cpu_times()
            total += times.user + times.system
        return float(total)
    except psutil.NoSuchProcess:
        return 0.0


@dataclass(frozen=True, slots=True)
class Use:
    cpu_s: float
    """Since they were started, including ended children."""
    memory_mb: float
    """Now. A page that n processes share counts as an nth for each."""


def use_of(group: Iterable[psutil.Process]) -> Use:
    """All processes of a group together. Those that are gone count as 0."""
    cpu_s, memory = 0.0, 0
    for one in group:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            cpu_s += times.user + times.system + times.children_user + times.children_system
            memory += _shared_bytes(one)
    return Use(cpu_s, memory / _MB)


def family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants; empty if it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def main_thread_seconds(pid: int) -> float:
    """Of a process' first thread alone; 0 if it is gone. Only on Linux."""
    try:
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1]
    except OSError:
        return 0.0
    user, system = fields.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def high_water_mark(status: str) -> int | None:
    """The peak of resident memory in bytes, from the text of ``/proc/<pid>/status``."""
    match = _HIGH_WATER_MARK.search(status)
    return None if match is None else int(match[1]) * _KIB


class PeakMemory:
    """Peak resident memory of one process. The kernel knows it; on other systems ``look`` samples it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._bytes = 0

    def look(self) -> None:
        """Call it now and then, and once just before the process stops."""
        try:
            peak = high_water_mark(Path(f"/proc/{self._pid}/status").read_text(encoding="ascii", errors="replace"))
        except OSError:
            peak = None
        if peak is None:
            try:
                peak = psutil.Process(self._pid).memory_info().rss
            except psutil.NoSuchProcess:
                return
        self._bytes = max(self._bytes, peak)

    @property
    def megabytes(self) -> float:
        return self._bytes / _MB


class FamilyMemory(threading.Thread):
    """Peak memory of a process and its family, sampled. Shared pages count once."""

    def __init__(self, pid: int) -> None:
        super().__init__(name=f"memory of {pid}", daemon=True)
        self._pid = pid
        self._finished = threading.Event()
        self._bytes = 0

    def run(self) -> None:
        is_over = False
        while not is_over:
            self._bytes = max(self._bytes, family_bytes(self._pid))
            is_over = self._finished.wait(1.0)

    def finish(self) -> float:
        """Stop. Returns the peak in megabytes."""
        self._finished.set()
        self.join(10)
        return self._bytes / _MB


def family_bytes(pid: int) -> int:
    """Memory of a process and its family, 0 if it is gone. Shared pages count in parts, where the kernel knows."""
    return sum(_shared_bytes(one) for one in family(pid))


def _shared_bytes(process: psutil.Process) -> int:
    try:
        memory = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(memory, "pss", memory.rss))


class CpuMeter:
    """Processor seconds of named processes since the meter was made."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before = {name: cpu_seconds(pid) for name, pid in pids.items()}

    def used(self) -> dict[str, float]:
        return {name: round(cpu_seconds(pid) - self._before[name], 2) for name, pid in self._pids.items()}
