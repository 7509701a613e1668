"""Readers of a view's changes over a real topic: rows as of an LSN, then changes in whole steps."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from cdc.kafka.settings import KafkaSettings
from cdc.kafka.topic_admin import TopicAdmin, view_topic_plans
from cdc.kafka.topic_names import view_topic
from cdc.model.tag import Tag
from jobs.executor.task_input import ViewTopicInput
from jobs.executor.view_topic import ViewTopic
from lockstep.dashboard.view_changes import ViewChanges
from stack.stack import Endpoints
from tests.events import kafka_settings

pytestmark = pytest.mark.live

KEY = ("follower_id", "tweet_id")
Rows = dict[tuple[Any, ...], Mapping[str, Any]]


class Writer:
    """What a view's task writes."""

    def __init__(self, kafka: KafkaSettings, generation: int = 1, pipeline: str | None = None) -> None:
        self.kafka = kafka
        self.pipeline = pipeline or f"changes{uuid.uuid4().hex[:8]}"
        topic = view_topic(self.pipeline, "timeline", generation)
        cluster = TopicAdmin(kafka.client())
        cluster.create(cluster.missing(view_topic_plans(self.pipeline, topic, kafka.topics)))
        where = ViewTopicInput(self.pipeline, "timeline", generation, topic, 1 << 20)
        self.topic = ViewTopic(kafka.client(), where)
        self.lsn = 0x100
        self.rows: Rows = {}

    def step(self, *changes: tuple[int, int, str | None], parts: int = 1) -> int:
        """One step, in this many Kafka transactions. Returns its LSN."""
        self.lsn += 8
        tag = Tag(1, self.lsn, 0)
        for part in range(parts):
            for follower, tweet, body in changes[part::parts]:
                row = None if body is None else {"follower_id": follower, "tweet_id": tweet, "body": body}
                key = orjson.dumps({"follower_id": follower, "tweet_id": tweet})
                self.topic.write(key, None if row is None else orjson.dumps(row), tag)
                if row is None:
                    self.rows.pop((follower, tweet), None)
                else:
                    self.rows[follower, tweet] = row
            self.topic.commit(tag=tag, offsets={}, run="run", is_complete=part == parts - 1)
        return self.lsn

    def of(self, follower: int) -> Rows:
        return {key: row for key, row in self.rows.items() if key[0] == follower}


@dataclass
class Reader:
    """A reader's rows from the frames. ``seen`` has the rows after each synced and commit, by LSN."""

    frames: AsyncIterator[bytes]
    rows: Rows = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    lsn: int = 0
    last_id: str = ""
    trouble: str | None = None

    async def until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            frame = await asyncio.wait_for(anext(self.frames), 60)
            for one in frame.decode().split("\n\n")[:-1]:
                self._take(one)

    async def until_lsn(self, lsn: int) -> None:
        await self.until(lambda: self.lsn >= lsn)

    def _take(self, frame: str) -> None:
        fields = dict(line.split(": ", 1) for line in frame.split("\n") if ": " in line and not line.startswith(":"))
        event = fields.get("event")
        if event is None:
            return
        self.events.append(event)
        data = orjson.loads(fields["data"])
        key = tuple(data.get("key", {}).values())
        match event:
            case "reset":
                self.rows.clear()
            case "row" | "upsert":
                self.rows[key] = data["row"]
            case "delete":
                self.rows.pop(key, None)
            case "synced" | "commit":
                high, low = data["lsn"].split("/")
                self.lsn, self.last_id = (int(high, 16) << 32) + int(low, 16), fields["id"]
            case "trouble":
                self.trouble = data["message"]


@pytest.fixture
def writer(endpoints: Endpoints) -> Iterator[Writer]:
    made = Writer(kafka_settings(endpoints.kafka_bootstrap))
    yield made
    made.topic.close()


def follow(
    writer: Writer, work: Callable[[ViewChanges], Awaitable[None]], *, live: list[int | None] | None = None
) -> None:
    """Run readers in a loop of their own. ``live`` is the live generation, which they may change."""
    generation = live or [1]

    async def main() -> None:
        changes = ViewChanges(writer.kafka, writer.pipeline, live=lambda _: generation[0], is_closed=lambda: False)
        try:
            await work(changes)
        finally:
            changes.close()

    asyncio.run(main())


def test_rows_come_first_and_then_whole_steps(writer: Writer) -> None:
    first = writer.step((1, 1, "a"), (1, 2, "b"), (2, 1, "a"))

    async def work(changes: ViewChanges) -> None:
        reader = Reader(changes.follow("timeline", KEY, {}, None))
        await reader.until_lsn(first)
        assert reader.rows == writer.rows
        assert reader.events == ["reset", "row", "row", "row", "synced"]
        second = writer.step((1, 1, None), (1, 3, "c\nd"), (2, 1, "z"), parts=2)
        await reader.until_lsn(second)
        assert reader.rows == writer.rows
        assert sorted(reader.events[5:-1]) == ["delete", "upsert", "upsert"]
        assert reader.events[-1] == "commit"
        third = writer.step()  # nothing of the result has changed
        await reader.until_lsn(third)
        assert reader.events[-1] == "commit"
        assert reader.rows == writer.rows

    follow(writer, work)


def test_a_reader_that_comes_back_gets_what_it_lacks(writer: Writer) -> None:
    first = writer.step((1, 1, "a"), (1, 2, "b"), (1, 3, "c"))

    async def work(changes: ViewChanges) -> None:
        reader = Reader(changes.follow("timeline", KEY, {"follower_id": "1"}, None))
        await reader.until_lsn(first)
        writer.step((1, 1, None))
        second = writer.step((1, 4, "d"), (1, 2, "x"), (2, 1, "y"))
        back = Reader(changes.follow("timeline", KEY, {"follower_id": "1"}, reader.last_id), rows=dict(reader.rows))
        await back.until_lsn(second)
        assert back.rows == writer.of(1)
        assert "reset" not in back.events
        other = Reader(changes.follow("timeline", KEY, {"follower_id": "2"}, reader.last_id))
        await other.until_lsn(second)
        assert other.events[0] == "reset"
        assert other.rows == writer.of(2)

    follow(writer, work)
    last_ids: list[str] = []

    async def before(changes: ViewChanges) -> None:
        reader = Reader(changes.follow("timeline", KEY, {}, None))
        await reader.until_lsn(writer.lsn)
        last_ids.append(reader.last_id)

    async def after(changes: ViewChanges) -> None:
        """Another process, which reads the topic from its beginning."""
        reader = Reader(changes.follow("timeline", KEY, {}, last_ids[0]))
        await reader.until_lsn(writer.lsn)
        assert sorted(reader.events) == ["delete", "synced"]

    follow(writer, before)
    writer.step((1, 4, None))
    follow(writer, after)


@pytest.mark.soak
def test_a_reader_that_is_slow_gets_several_steps_as_one(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.dashboard.view_changes.ROWS_KEPT", 20)
    first = writer.step(*((1, tweet, "a") for tweet in range(10)))

    async def work(changes: ViewChanges) -> None:
        slow = Reader(changes.follow("timeline", KEY, {}, None))
        quick = Reader(changes.follow("timeline", KEY, {}, None))
        for reader in (slow, quick):
            await reader.until_lsn(first)
        lsn = first
        for number in range(12):
            lsn = writer.step(*((1, tweet, f"b{number}") for tweet in range(9)), (1, 100 + number, "n"))
            await quick.until_lsn(lsn)
        assert slow.lsn == first
        await slow.until_lsn(lsn)
        assert slow.rows == quick.rows == writer.rows
        assert slow.events.count("upsert") == 9 + 12

    follow(writer, work)


def test_only_rows_that_are_there_are_told_to_a_state_that_is_built_anew(writer: Writer) -> None:
    """Even if the topic still has records of a deleted row, as for readers who are a while behind."""
    writer.step((1, 1, "stays"), (1, 2, "goes"), (1, 3, "comes back"))
    writer.step((1, 1, "newer"), (1, 2, None), (1, 3, None))
    writer.step((1, 3, "again"))
    keys = writer.topic.keys()
    assert sorted(key["tweet_id"] for key in keys) == [1, 3]


def test_another_generation_ends_the_stream_and_is_read_anew(writer: Writer) -> None:
    first = writer.step((1, 1, "a"))
    live: list[int | None] = [1]
    other = Writer(writer.kafka, 2, writer.pipeline)
    other.step((1, 5, "other"))

    async def work(changes: ViewChanges) -> None:
        reader = Reader(changes.follow("timeline", KEY, {}, None))
        await reader.until_lsn(first)
        live[0] = 2
        with pytest.raises(StopAsyncIteration):
            await reader.until(lambda: False)
        back = Reader(changes.follow("timeline", KEY, {}, reader.last_id), rows=dict(reader.rows))
        await back.until(lambda: back.events[-1:] == ["synced"])
        assert back.events[0] == "reset"
        assert back.rows == other.rows

    follow(writer, work, live=live)
    other.topic.close()
