"""Memory and machine facts."""

import os

from bench.machine import busy_warning
from bench.usage import FamilyMemory, family_bytes, high_water_mark


def test_the_high_water_mark_is_read_in_bytes() -> None:
    assert (
        high_water_mark("Name:\tpython\nVmPeak:\t  900 kB\nVmHWM:\t  65536 kB\nVmRSS:\t  100 kB\n") == 64 * 1024 * 1024
    )


def test_a_status_without_it_says_nothing() -> None:
    assert high_water_mark("Name:\tpython\n") is None


def test_a_busy_machine_is_warned_of() -> None:
    assert busy_warning(0.4, 2) is None
    assert "3.0 on 2 cores" in (busy_warning(3.0, 2) or "")


def test_memory_of_a_family_that_is_gone_is_none() -> None:
    assert family_bytes(os.getpid()) > 1_000_000
    assert family_bytes(2**22 + 1) == 0


def test_memory_at_its_highest_is_known_in_the_end() -> None:
    memory = FamilyMemory(os.getpid())
    memory.start()
    assert memory.finish() > 1
