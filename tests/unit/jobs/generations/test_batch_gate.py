"""Batches at the gate."""

import threading

from jobs.generations.batch_gate import BatchGate


def test_nobody_goes_in_while_it_is_held() -> None:
    gate = BatchGate()
    assert gate.hold(0)
    entered = threading.Event()
    batch = threading.Thread(target=lambda: gate.enter() and entered.set())
    batch.start()
    assert not entered.wait(0.1)
    gate.release()
    assert entered.wait(300)
    batch.join()


def test_who_is_inside_is_told_when_it_keeps_somebody_waiting() -> None:
    gate = BatchGate()
    assert gate.enter()
    assert not gate.is_wanted
    assert not gate.hold(0)
    assert gate.is_wanted
    gate.release()
    assert not gate.is_wanted
    other = threading.Thread(target=gate.enter)
    other.start()
    pause = threading.Event()
    while not gate.is_wanted:
        pause.wait(0.01)
    gate.leave()
    other.join(300)
    assert not gate.is_wanted
    gate.close(0)
    assert gate.is_wanted


def test_a_hold_waits_for_the_batch_inside() -> None:
    gate = BatchGate()
    assert gate.enter()
    assert not gate.hold(0.01)
    gate.leave()
    assert gate.hold(0)


def test_a_closed_gate_lets_nobody_in_however_it_is_held() -> None:
    gate = BatchGate()
    gate.hold(0)
    answers: list[bool] = []
    batch = threading.Thread(target=lambda: answers.append(gate.enter()))
    batch.start()
    assert gate.close(1)
    batch.join(300)
    assert answers == [False]


def test_who_waits_for_nothing_else_is_woken_by_the_end() -> None:
    gate = BatchGate()
    assert not gate.wait_closed(0.01)
    closed = threading.Event()
    waiting = threading.Thread(target=lambda: gate.wait_closed(60) and closed.set())
    waiting.start()
    gate.close(0)
    assert closed.wait(300)
    waiting.join()
