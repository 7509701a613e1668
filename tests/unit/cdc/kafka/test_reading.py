"""cdc.kafka.reading: what is asked of the client, and how often. tests/live has what brokers answer."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, TopicPartition

from cdc.kafka.reading import messages


class SlowLine:
    """A consumer as librdkafka is one: an answer to what was asked before the last ``assign`` is dropped."""

    def __init__(self, answer_s: float, *, ends: dict[float, int], partition: int = 0) -> None:
        """``ends`` says from when on the partition ends where. It tells of each end once for every ``assign``."""
        self.now_s = 0.0
        self.asked = 0
        self._answer_s = answer_s
        self._ends = ends
        self._partition = partition
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
            return message(self._partition, self._at - 1)
        if self._has_told:
            return None
        self._has_told = True
        return message(self._partition, end, KafkaError(KafkaError._PARTITION_EOF))

    def consume(self, _most: int, _wait_s: float) -> list[Any]:
        return []


class SlowLines:
    """A consumer of partitions that each have a broker of their own."""

    def __init__(self, *lines: SlowLine) -> None:
        self._lines = lines
        self._came: list[Any] = []

    @property
    def now_s(self) -> float:
        return self._lines[0].now_s

    def assign(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._lines[each.partition].assign([each])

    def poll(self, wait_s: float) -> Any:
        self._came = [came for line in self._lines if (came := line.poll(wait_s)) is not None]
        return self._came.pop() if self._came else None

    def consume(self, _most: int, _wait_s: float) -> list[Any]:
        return self._came


def message(partition: int, offset: int, error: KafkaError | None = None) -> Any:
    facts = {"topic": "t", "partition": partition, "offset": offset, "error": error}
    return SimpleNamespace(**{name: lambda value=value: value for name, value in facts.items()})


def read(line: SlowLine | SlowLines, *ends: int, monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    monkeypatch.setattr("cdc.kafka.reading.time", SimpleNamespace(monotonic=lambda: line.now_s))
    limits = {("t", partition): (0, end) for partition, end in enumerate(ends)}
    return [each.offset() for each in messages(cast("Any", line), limits)]


@pytest.mark.parametrize("answer_s", [0.1, 1.5, 5, 20])
def test_an_answer_that_takes_long_comes(answer_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(SlowLine(answer_s, ends={0: 3}), 3, monkeypatch=monkeypatch) == [0, 1, 2]


def test_markers_that_come_without_a_word_are_asked_for_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    line = SlowLine(0.1, ends={0: 3, 60: 4})
    assert read(line, 4, monkeypatch=monkeypatch) == [0, 1, 2]
    assert line.now_s < 62
    assert line.asked > 30


def test_a_partition_whose_end_is_told_again_and_again_leaves_the_others_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = SlowLines(SlowLine(0.1, ends={0: 3, 80: 4}), SlowLine(5, ends={0: 3}, partition=1))
    assert sorted(read(lines, 4, 3, monkeypatch=monkeypatch)) == [0, 0, 1, 1, 2, 2]  # type: ignore[type-var]
    assert lines.now_s < 100
