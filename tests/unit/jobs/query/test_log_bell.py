"""jobs.query.log_bell: many listen to one bell."""

import threading

import pytest

from cdc.kafka.control_topics import Heard
from cdc.model.errors import Unavailable
from jobs.query.log_bell import SharedBell, listener_to
from tests.databases import until


class _Bell:
    """Rings when it is pulled, and fails when it is told to."""

    def __init__(self) -> None:
        self.pulled = threading.Semaphore(0)
        self.error: Exception | None = None
        self.closed = 0
        self.asked = 0
        self.heard: Heard | None = None

    def rings(self, timeout_s: float) -> bool:
        self.asked += 1
        if not self.pulled.acquire(timeout=0.01):
            return False
        error, self.error = self.error, None
        if error is not None:
            raise error
        return True

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def bell() -> _Bell:
    return _Bell()


def test_nobody_hears_it_once_nobody_listens_and_one_who_comes_later_does(bell: _Bell) -> None:
    shared = SharedBell(bell)
    first, second = shared.listener(), shared.listener()
    assert first.rings(300)
    assert second.rings(300)
    first.close()
    until(lambda: bell.closed == 1)  # it may have found the bell silent: the other one gets a new one
    bell.pulled.release()
    assert second.rings(300)
    second.close()
    until(lambda: bell.closed == 2)
    asked = bell.asked
    assert first.rings(300), "for what was before"
    bell.pulled.release()
    assert first.rings(300)
    assert bell.asked > asked
    first.close()


def test_all_who_listen_learn_of_a_failure_and_it_rings_on(bell: _Bell) -> None:
    shared = SharedBell(bell)
    listeners = [shared.listener(), shared.listener()]
    for each in listeners:
        assert each.rings(300)
    bell.error = Unavailable("no broker answers")
    bell.pulled.release()
    for each in listeners:
        with pytest.raises(Unavailable):
            each.rings(300)
    bell.pulled.release()
    for each in listeners:
        assert each.rings(300)
        each.close()


def test_each_gets_what_it_rang_for_and_a_hundred_of_them_at_most(bell: _Bell) -> None:
    shared = SharedBell(bell)
    first, second = shared.listener(), shared.listener()
    assert (first.rings(300), second.rings(300)) == (True, True)
    for number in range(150):
        bell.heard = Heard(number, number + 1, ())
        bell.pulled.release()
        assert first.rings(300)
        assert [each.start for each in first.take_heard()] == [number]
        assert not first.take_heard()
    bell.heard = None
    bell.pulled.release()
    assert first.rings(300)
    assert not first.take_heard()
    assert [each.start for each in second.take_heard()] == list(range(50, 150))
    first.close()
    second.close()


def test_all_queries_of_a_pipeline_share_one() -> None:
    client = {"bootstrap.servers": "nowhere:1"}
    assert listener_to(client, "p").bell is listener_to(dict(client), "p").bell
    assert listener_to(client, "p").bell is not listener_to(client, "q").bell
