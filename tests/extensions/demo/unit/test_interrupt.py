"""One signal breaks the work off; nothing breaks off the clean-up."""

import os
import signal

import pytest

from extensions.demo.interrupt import Interrupts


def interrupt(number=signal.SIGINT):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_raises(number):
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            interrupt(number)

        assert not interrupts.hurried()


def test_a_second_signal_only_hurries():
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            interrupt()
        interrupt()

        assert interrupts.hurried()


def test_nothing_raises_once_disarmed():
    with Interrupts() as interrupts:
        interrupts.disarm()
        interrupt()


def test_a_deferred_signal_raises_when_the_block_is_done():
    done = []

    def work(interrupts):
        with interrupts.deferred():
            interrupt()
            done.append("written down")

    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        work(interrupts)

    assert done == ["written down"]


def test_the_handlers_of_before_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) != before

    assert signal.getsignal(signal.SIGTERM) == before
