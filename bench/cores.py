"""Gives servers cores of their own while something is measured. Only Linux can do that."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Cores:
    """This process' cores, in two disjoint groups."""

    first: frozenset[int]
    rest: frozenset[int]

    @property
    def both(self) -> frozenset[int]:
        return self.first | self.rest


def split_cores() -> Cores | None:
    """One core, and the others; None if there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return None if len(cores) == 1 else Cores(frozenset(cores[:1]), frozenset(cores[1:]))


@contextmanager
def placed(cores: Cores | None, *, first: Sequence[int], rest: Sequence[int]) -> Iterator[None]:
    """Place processes, their families and new children on these groups, finally on all. Without cores: no change."""
    if cores is None:
        yield
        return
    try:
        # In this order: a server may be a child of a process that is placed with the rest.
        for pids, group in ((rest, cores.rest), (first, cores.first)):
            for pid in pids:
                _place(pid, group)
        yield
    finally:
        for pid in (*first, *rest):
            _place(pid, cores.both)


@contextmanager
def this_thread_first(cores: Cores | None) -> Iterator[None]:
    """Place the calling thread on the first group, while its process is on the other."""
    if cores is None:
        yield
        return
    os.sched_setaffinity(0, cores.first)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores.rest)


def _place(pid: int, cores: frozenset[int]) -> None:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            _place_threads(member.pid, cores)


def _place_threads(pid: int, cores: frozenset[int]) -> None:
    # Cores belong to threads, not to processes.
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in list(Path(f"/proc/{pid}/task").iterdir()):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)
