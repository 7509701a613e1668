"""Which cores a process has to itself."""

import os
import subprocess
import sys

import pytest

from bench.cores import Cores, placed, split_cores, this_thread_first


def test_without_cores_nothing_is_placed() -> None:
    before = os.sched_getaffinity(0)
    with placed(None, first=[], rest=[os.getpid()]), this_thread_first(None):
        assert os.sched_getaffinity(0) == before


def test_one_core_is_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert split_cores() is None
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 1, 2})
    assert split_cores() == Cores(frozenset({1}), frozenset({2, 3}))


def test_a_server_has_its_core_until_the_end() -> None:
    before = os.sched_getaffinity(0)
    cores = split_cores() or Cores(frozenset(before), frozenset(before))
    server = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with placed(cores, first=[server.pid], rest=[os.getpid()]):
            assert os.sched_getaffinity(server.pid) == cores.first
            assert os.sched_getaffinity(0) == cores.rest
            with this_thread_first(cores):
                assert os.sched_getaffinity(0) == cores.first
            assert os.sched_getaffinity(0) == cores.rest
        assert os.sched_getaffinity(server.pid) == before == os.sched_getaffinity(0)
    finally:
        server.communicate(b"\n")
