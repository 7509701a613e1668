"""extensions.streams.jobs.row_delivery, with a webhook that really answers."""

import random
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from cdc.kafka.topic_reader import Record
from cdc.model.errors import Unavailable
from cdc.webhook import Webhook, WebhookSettings
from extensions.streams.jobs.row_delivery import AHEAD_MAX, RowDelivery
from tests.receivers import Receiver


@pytest.fixture
def webhook(receiver: Receiver) -> Iterator[Webhook]:
    settings = WebhookSettings(url=f"http://127.0.0.1:{receiver.port}/rows")
    with Webhook(settings, setting="webhook", variable="NONE") as webhook:
        yield webhook


def rows_of(numbers: range) -> list[Record]:
    return [Record(0, n, b'{"id":%d}' % n, b'{"id":%d}' % n) for n in numbers]


class Delivered:
    """Rows that are delivered in their order, as far as it goes. ``rejected`` has the status of each refused one."""

    def __init__(self, receiver: Receiver, webhook: Webhook, count: int) -> None:
        self.rows = rows_of(range(count))
        self.next = 0
        self.rejected: dict[int, str] = {}
        self.overtaken: list[int] = []
        self.receiver = receiver
        self._webhook = webhook
        self.begin()

    def begin(self) -> None:
        """As a new process does, which knows nothing of before."""
        self._delivery = RowDelivery(
            lambda row: self._webhook.post(row.value or b""),
            pause=lambda _: None,
            received=lambda: None,
            overtaken=lambda row: self.overtaken.append(row.offset),
        )

    def _read(self, offset: int) -> Generator[Record, None, None]:
        yield from (row for row in self.rows if row.offset >= offset)

    def go_on(self) -> str:
        """Deliver what can be. Returns why not all was, "" where all was."""
        while self.next < len(self.rows):
            try:
                answer = self._delivery.refusal(self.rows[self.next], self._read)
            except Unavailable as error:
                return error.message
            if answer is not None:
                self.rejected[self.next] = answer.partition(" ")[0]
            self.next += 1
        return ""

    @property
    def received(self) -> list[int]:
        return [document["id"] for document in self.receiver.documents]


def answers(statuses: Callable[[int], int | None]) -> Callable[[dict[str, Any]], int | None]:
    return lambda document: statuses(document["id"])


@pytest.mark.parametrize("status", [402, 403, 404, 405, 410, 421, 423, 426, 451])
def test_a_row_alone_that_gets_such_a_status_is_rejected_and_holds_up_none(
    receiver: Receiver, webhook: Webhook, status: int
) -> None:
    delivered = Delivered(receiver, webhook, 6)
    receiver.refuses = answers(lambda number: status if number in (1, 4) else None)
    assert delivered.go_on() == ""
    assert delivered.rejected == {1: str(status), 4: str(status)}
    assert delivered.received == [0, 2, 3, 5], "each once, in order"
    assert receiver.asked == 4 + 2 * 6, "a refused row is tried three times before another is taken, and three after it"


def test_several_in_a_row_are_rejected_once_one_behind_them_is_taken(receiver: Receiver, webhook: Webhook) -> None:
    delivered = Delivered(receiver, webhook, 10)
    receiver.refuses = answers(lambda number: 404 if 2 <= number < 7 else None)
    waits = [delivered.go_on() for _ in range(4)]
    assert waits[0].endswith("answered with status 404, and has taken no other row since, which would show that the"
                             " row is the cause")  # fmt: skip
    assert waits[-1] == ""
    assert delivered.received == [0, 1, 7, 8, 9]
    assert sorted(delivered.rejected) == [2, 3, 4, 5, 6]


def test_as_long_as_none_is_taken_none_is_rejected(receiver: Receiver, webhook: Webhook) -> None:
    delivered = Delivered(receiver, webhook, 3 * AHEAD_MAX)
    receiver.status = 403
    assert all(delivered.go_on() for _ in range(12))
    assert receiver.asked <= 12 * (3 + AHEAD_MAX)
    assert (delivered.rejected, delivered.received) == ({}, [])
    receiver.status = 204
    assert delivered.go_on() == ""
    assert delivered.received == list(range(3 * AHEAD_MAX)), "in order"
    assert delivered.rejected == {}


def test_without_a_row_behind_it_one_that_was_taken_before_tells(receiver: Receiver, webhook: Webhook) -> None:
    delivered = Delivered(receiver, webhook, 4)
    receiver.refuses = answers(lambda number: 404 if number > 1 else None)
    waits = [delivered.go_on() for _ in range(2)]
    assert waits[-1] == ""
    assert delivered.rejected == {2: "404", 3: "404"}
    assert delivered.received == [0, 1, 1], "the last one that was taken, once more"


@pytest.mark.parametrize("is_compacted", [True, False])
def test_a_row_that_was_erased_since_is_not_posted_once_more(
    receiver: Receiver, webhook: Webhook, *, is_compacted: bool
) -> None:
    delivered = Delivered(receiver, webhook, 2)
    receiver.refuses = answers(lambda number: 404 if number == 1 else None)
    delivered.rows = rows_of(range(1))
    assert delivered.go_on() == ""
    delivered.rows = [*rows_of(range(is_compacted, 2)), Record(0, 2, b'{"id":0}', None)]
    delivered.next = 1 - is_compacted
    assert delivered.go_on() != ""
    assert (delivered.rejected, delivered.received) == ({}, [0])


@pytest.mark.parametrize("again", [403, 409, 422])
def test_a_row_alone_waits_for_another_one(receiver: Receiver, webhook: Webhook, again: int) -> None:
    """A receiver that wants none twice says nothing of the other one."""
    delivered = Delivered(receiver, webhook, 2)
    receiver.refuses = answers(
        lambda number: 404 if number == 1 else again if number == 0 and receiver.documents else None
    )
    assert delivered.go_on() == delivered.go_on() != ""
    delivered.begin()
    assert delivered.go_on() != "", "it knows of none before"
    assert delivered.rejected == {}
    delivered.rows = rows_of(range(3))
    assert delivered.go_on() == ""
    assert (delivered.rejected, delivered.received) == ({1: "404"}, [0, 2])


def test_another_row_at_the_same_offset_is_not_taken_for_one_that_was_received(
    receiver: Receiver, webhook: Webhook
) -> None:
    delivered = Delivered(receiver, webhook, 2)
    receiver.refuses = answers(lambda number: 404 if number == 0 else None)
    delivered.rows[1:] = [Record(0, 1, b'{"id":7}', b'{"id":7}')]
    assert delivered.go_on() == ""
    delivered.next, delivered.rows[1:] = 1, rows_of(range(1, 2))
    assert delivered.go_on() == ""
    assert delivered.received == [7, 1]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_refused_and_wherever_it_ends_each_row_is_received_or_rejected_as_it_deserves(
    receiver: Receiver, webhook: Webhook, seed: int
) -> None:
    chance = random.Random(seed)
    count = 40
    fates = [chance.choice([None] * 3 + [403, 404, 422]) for _ in range(count)]
    fates[-1] = None
    outages = iter(chance.choices([0, 401, 403, 404, 503], [9, 1, 2, 2, 1], k=60))
    outage = [0, 0]
    answered: list[tuple[int, int | None]] = []

    def answer(document: dict[str, Any]) -> int | None:
        if not outage[0]:
            outage[:] = chance.randrange(1, 12), next(outages, 0)
        outage[0] -= 1
        answered.append((document["id"], outage[1] or fates[document["id"]]))
        return answered[-1][1]

    receiver.refuses = answer
    delivered = Delivered(receiver, webhook, count)
    is_killed = seed % 2 == 0
    for _ in range(2000):
        if delivered.go_on() == "":
            break
        if is_killed and chance.random() < 0.3:
            delivered.begin()
    assert delivered.next == count
    got = delivered.received
    assert {*got, *delivered.rejected} == set(range(count)), "none is lost"
    assert {number for number in range(count) if fates[number] is not None} <= delivered.rejected.keys() - set(got)
    for number, status in delivered.rejected.items():
        refused = [at for at, (each, answer) in enumerate(answered) if each == number and answer is not None]
        between = {each for each, answer in answered[refused[0] : refused[-1]] if answer is None}
        assert status == "422" or any(each != number for each in between), "it may have been the receiver"
    if not is_killed:
        first = list(dict.fromkeys(got))
        late = [number for at, number in enumerate(first) if any(number < other for other in first[:at])]
        assert late == delivered.overtaken


def test_no_row_is_posted_ahead_of_an_earlier_one_of_its_key(receiver: Receiver, webhook: Webhook) -> None:
    """Also where the receiver takes the earlier one after all: it would go back with it."""
    delivered = Delivered(receiver, webhook, 6)
    of_key = {0: b"a", 1: b"a", 2: b"b", 3: b"b", 4: b"a", 5: b"c"}
    delivered.rows = [Record(0, row.offset, of_key[row.offset], row.value) for row in delivered.rows]
    receiver.refuses = answers(lambda number: 404 if number != 5 and 5 not in delivered.received else None)
    while delivered.go_on():
        assert 4 not in delivered.received
        assert delivered.received in ([], [5])
    assert delivered.received == [5, 0, 1, 2, 3, 4]
    assert delivered.rejected == {}


def test_rows_of_one_key_alone_tell_nothing_of_each_other(receiver: Receiver, webhook: Webhook) -> None:
    delivered = Delivered(receiver, webhook, 3)
    delivered.rows = [Record(0, row.offset, b"one", row.value) for row in delivered.rows]
    receiver.refuses = answers(lambda number: 404 if number == 0 else None)
    assert "404" in delivered.go_on()
    assert (delivered.received, delivered.rejected) == ([], {})
