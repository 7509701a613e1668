import asyncio

import orjson
import pytest

from cdc.kafka.settings import KafkaSettings
from lockstep.dashboard import view_changes
from lockstep.dashboard.view_changes import EventId, Recent, Step, ViewChanges, end_frame, scope_of
from lockstep.dashboard.view_copy import At
from monitor.view_feed import ViewRecord


def step(number: int, *rows: tuple[int, str]) -> Step:
    records = [
        ViewRecord(offset, orjson.dumps({"follower_id": follower, "tweet_id": offset}), body.encode() or None)
        for offset, (follower, body) in enumerate(rows)
    ]
    return Step(At(number, number * 10, 1, number), records)


def test_a_reader_gets_the_steps_after_its_own() -> None:
    recent = Recent()
    steps = [step(number, (1, "{}")) for number in (1, 2, 3)]
    for one in steps:
        recent.add(one)
    assert recent.after(3) == []
    assert recent.after(1) == steps[1:]
    assert recent.after(0) == steps


def test_a_reader_whose_next_step_is_forgotten_is_told_so() -> None:
    recent = Recent(rows_max=4)
    for number in range(1, 5):
        recent.add(step(number, (1, "{}")))
    assert recent.after(1) is None
    assert [one.at.number for one in recent.after(2) or ()] == [3, 4]
    recent.add(step(5, *[(1, "{}")] * 9))
    assert recent.after(4) is None
    assert recent.after(5) == []


def test_a_filter_takes_the_changes_of_its_values() -> None:
    one = step(1, (1, '{"b":1}'), (2, '{"b":2}'), (1, ""))
    assert one.frames({"follower_id": "1"}) == [
        b'event: upsert\ndata: {"key":{"follower_id":1,"tweet_id":0},"row":{"b":1}}\n\n',
        b'event: delete\ndata: {"key":{"follower_id":1,"tweet_id":2}}\n\n',
    ]
    assert len(one.frames({"tweet_id": "1"})) == 1
    assert one.frames({"follower_id": "3"}) == ()
    assert len(one.frames({})) == 3


def test_an_id_is_what_was_sent() -> None:
    made = EventId("abc", 5, 7, scope_of({"a": "1"}))
    assert EventId.parse(str(made)) == made
    for other in ("", "1.2", "a.b.c.d", "a.-1.2.d", "a.1.2.d" * 99):
        assert EventId.parse(other) is None
    assert scope_of({"a": "1", "b": "2"}) == scope_of({"b": "2", "a": "1"}) != scope_of({"a": "12"})


def test_a_commit_says_its_lsn() -> None:
    assert end_frame("commit", At(1, 5, 2, 0x16B3748), "x") == (
        b'event: commit\nid: x\ndata: {"epoch":2,"lsn":"0/16B3748"}\n\n'
    )


def test_a_reader_that_waits_for_a_live_generation_is_told_so_until_the_server_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(view_changes, "LOOK_S", 0.0)
    looks: list[str] = []

    def live(view: str) -> None:
        looks.append(view)

    async def main() -> list[bytes]:
        changes = ViewChanges(
            KafkaSettings(bootstrap_servers="127.0.0.1:1"), "shop", live=live, is_closed=lambda: len(looks) == 3
        )
        return [frame async for frame in changes.follow("timeline", ("id",), {}, None)]

    retry, waiting = asyncio.run(main())
    assert retry.startswith(b"retry: ")
    assert waiting.startswith(b'event: waiting\ndata: {"message":"no live generation of the view has been seen yet')
    assert looks == ["timeline"] * 3
