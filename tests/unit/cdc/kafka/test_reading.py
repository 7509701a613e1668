"""cdc.kafka.reading: what is asked of the client, and how often. tests/live has what brokers answer."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, TopicPartition

from cdc.kafka.reading import messages


class SlowLine:
    """A consumer as librdkafka is one: an answer to what was asked before the last ``assign`` is dropped."""

    def __init__(self, answer_s: float, *, ends: dict[float, int]) -> None:
        """``ends`` says from when on the partition ends where. It tells of each end once for every ``assign``."""
        self.now_s = 0.0
        self.asked = 0
        self._answer_s = answer_s
        self._ends = ends
        self._due_s: float | None = None

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.asked += 1
        self._at, self._is_stale, self._has_told = partitions[0].offset, self._due_s is not None, False

    def poll(self, wait_s: float) -> Any:
        self.now_s += wait_s
        if self._due_s is None:
            self._due_s, self._is_stale = self.now_s + self._answer_s, False
        if self.now_s < self._due_s:
            return None
        self._due_s = None
        if self._is_stale:
            return None
        end = max(end for since_s, end in self._ends.items() if since_s <= self.now_s)
        if self._at < min(end, 3):  # behind three records there are markers alone
            self._at += 1
            return message(self._at - 1)
        if self._has_told:
            return None
        self._has_told = True
        return message(end, KafkaError(KafkaError._PARTITION_EOF))

    def consume(self, _most: int, _wait_s: float) -> list[Any]:
        return []


def message(offset: int, error: KafkaError | None = None) -> Any:
    facts = {"topic": "t", "partition": 0, "offset": offset, "error": error}
    return SimpleNamespace(**{name: lambda value=value: value for name, value in facts.items()})


def read(line: SlowLine, end: int, monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    monkeypatch.setattr("cdc.kafka.reading.time", SimpleNamespace(monotonic=lambda: line.now_s))
    return [each.offset() for each in messages(cast("Any", line), {("t", 0): (0, end)})]


@pytest.mark.parametrize("answer_s", [0.1, 1.5, 5, 20])
def test_an_answer_that_takes_long_comes(answer_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(SlowLine(answer_s, ends={0: 3}), 3, monkeypatch) == [0, 1, 2]


def test_markers_that_come_without_a_word_are_asked_for_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    line = SlowLine(0.1, ends={0: 3, 60: 4})
    assert read(line, 4, monkeypatch) == [0, 1, 2]
    assert line.now_s < 62
    assert line.asked > 30
