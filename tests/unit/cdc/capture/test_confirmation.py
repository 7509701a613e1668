"""cdc.capture.confirmation: only commits are confirmed, and a status goes out in time."""

import pytest

from cdc.capture.confirmation import Confirmation, KeepAlive
from cdc.model.lsn import Lsn
from tests.edges import Journal, ScriptedStream, Time

BEGIN = 0x1000
INTERVAL_S = 10.0


class Sent:
    """A confirmation with the stream that it sends to, and its clock."""

    def __init__(self) -> None:
        self.time = Time()
        self.journal = Journal()
        self.stream = ScriptedStream(self.time, self.journal)
        self.confirmation = Confirmation(
            self.stream, self.time.clock(), interval_s=INTERVAL_S, confirmed=Lsn(BEGIN)
        )  # fmt: skip

    def confirmed(self) -> list[int]:
        return self.journal.of("confirmed")


@pytest.fixture
def sent() -> Sent:
    return Sent()


def test_what_is_confirmed_never_goes_back(sent: Sent) -> None:
    sent.confirmation.committed(Lsn(BEGIN + 8))
    sent.confirmation.committed(Lsn(BEGIN))
    assert sent.confirmed() == [BEGIN + 8, BEGIN + 8]


def test_a_keep_alive_sends_what_is_due_to_every_stream(sent: Sent) -> None:
    other = Sent()
    keep_alive = KeepAlive()
    keep_alive.add(sent.confirmation.send_status_if_due)
    keep_alive.add(other.confirmation.send_status_if_due)
    keep_alive()
    keep_alive()
    assert (sent.confirmed(), other.confirmed()) == ([BEGIN], [BEGIN])
    sent.time.pass_by(INTERVAL_S)
    keep_alive()
    assert (sent.confirmed(), other.confirmed()) == ([BEGIN, BEGIN], [BEGIN])


def test_that_nothing_waits_is_told_soon_and_confirms_nothing(sent: Sent) -> None:
    sent.confirmation.send_status()
    sent.confirmation.nothing_waits(Lsn(BEGIN + 8))
    assert sent.journal.of("complete") == [], "something was told just now"
    for _ in range(2):
        sent.time.pass_by(0.25)
        sent.confirmation.nothing_waits(Lsn(BEGIN + 8))
    assert sent.journal.of("complete") == [BEGIN + 8], "once for each position"
    assert (sent.confirmed(), sent.stream.received) == ([BEGIN, BEGIN], [BEGIN, BEGIN + 8])


def test_what_is_complete_never_goes_back(sent: Sent) -> None:
    sent.confirmation.nothing_waits(Lsn(BEGIN + 64))
    sent.confirmation.committed(Lsn(BEGIN + 8))
    assert sent.journal.of("complete") == [BEGIN + 64, BEGIN + 64]
