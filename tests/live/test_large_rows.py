"""Rows that are too large for their topic while capture must go on: left out, never lost silently."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest

from jobs.executor.task_input import Task
from lockstep.config import load
from sinks.view_settings import ViewSettings
from tests.captured import Captured, StartCapture
from tests.databases import Database, until
from tests.events import Delete, Put
from tests.topics import configure

if TYPE_CHECKING:
    from tests.view_jobs import ViewPipeline

pytestmark = pytest.mark.live

BYTES_MAX = 20_000
_random = random.Random(29)


def text(size: int) -> str:
    """A text that can't be compressed."""
    return _random.randbytes(size // 2).hex()


def with_limit(path: Path) -> None:
    path.write_text(path.read_text().replace("topics = { ", f"topics = {{ max_message_bytes = {BYTES_MAX}, "))


LARGE = text(2 * BYTES_MAX)


@pytest.fixture
def captured(database: Database, capture: StartCapture) -> Captured:
    database.execute(
        "create table t (id int primary key, n int, body text)",
        "create table f (id int primary key, n int, body text)",
        "alter table f replica identity full",
        f"insert into t values (1, 1, 'a'), (2, 1, '{LARGE}')",
    )
    return _limited(capture, "public.t", "public.f")


def _limited(capture: StartCapture, *tables: str, sections: str = "") -> Captured:
    captured = capture(*tables, sections=f"[capture]\nlarge_rows = 'reject'\n{sections}", start=False)
    with_limit(captured.path)
    captured.config = load(captured.path)
    return captured.start()


def test_copy_workers_tell_of_rows_that_they_leave_out(database: Database, capture: StartCapture) -> None:
    database.execute(
        "create table w (id int primary key, body text)",
        f"insert into w values (1, '{LARGE}'), (2, '{LARGE}')",
        "insert into w select n, repeat('x', 100) from generate_series(3, 2000) n",
    )
    captured = _limited(capture, "public.w", sections="[snapshot]\nworkers = 2")
    assert any("2 workers copy" in line for line in captured.said)
    assert sum("is left out of topic" in line for line in captured.said) == 2


def newest(captured: Captured, table: str) -> dict[int, str]:
    """The kind of each key's newest event, deletes without their tombstones."""
    return {json.loads(event.key)["id"]: event.op for event in captured.events(table) if event.value is not None}


def test_a_large_row_is_left_out_and_everything_else_comes(database: Database, captured: Captured) -> None:
    assert newest(captured, "public.t") == {1: "r", 2: "x"}, "the first copy"
    database.execute(
        f"insert into t values (3, 1, '{LARGE}'), (4, 1, 'b')",
        f"update t set body = '{LARGE}' where id = 1",
        "update t set n = 2 where id = 2",
    )
    captured.settle()
    assert newest(captured, "public.t") == {1: "x", 2: "x", 3: "x", 4: "c"}
    assert not any(LARGE[:100].encode() in (event.value or b"") for event in captured.events("public.t"))
    assert sum("is left out of topic" in line for line in captured.said) == 3
    # The topic's event of row 1 is older, and must not supply the value that an update leaves out.
    captured.stop()
    shutil.rmtree(captured.config.as_pipeline().values_directory)
    database.execute(
        "update t set n = 3 where id = 1", "update t set id = 5 where id = 2", "delete from t where id = 3"
    )
    captured.start()
    captured.settle()
    assert newest(captured, "public.t") == {1: "x", 2: "d", 3: "d", 4: "c", 5: "x"}, "the table isn't copied again"
    database.execute("update t set body = 'short' where id in (1, 5)")
    captured.settle()
    captured.assert_equal()


def test_a_row_that_was_left_out_comes_when_its_topic_takes_it(database: Database, captured: Captured) -> None:
    captured.stop()
    shutil.rmtree(captured.config.as_pipeline().values_directory)
    captured.path.write_text(captured.path.read_text().replace(str(BYTES_MAX), str(10 * BYTES_MAX)))
    captured.config = load(captured.path)
    configure(captured.client, [captured.topic("public.t")], {"max.message.bytes": str(10 * BYTES_MAX)})
    captured.start()
    database.execute("update t set n = 2 where id = 2")
    captured.settle()
    assert newest(captured, "public.t") == {1: "r", 2: "x"}, "nobody knows its large value"

    command = ["snapshot", "table", "public.t", "--where", "id = 2", "--config", captured.path]
    subprocess.run([sys.executable, "-m", "lockstep", *command], check=True)
    captured.settle()
    until(lambda: newest(captured, "public.t")[2] == "r")
    captured.assert_equal("public.t")
    database.execute("update t set n = 3 where id = 2")
    captured.assert_equal("public.t")
    assert newest(captured, "public.t")[2] == "u", "without its large value, which the copy has published"


def test_an_old_row_that_is_too_large_goes_before_the_row_does(database: Database, captured: Captured) -> None:
    fits = text(BYTES_MAX * 3 // 4)
    database.execute(
        f"insert into f values (1, 1, '{fits}'), (2, 1, '{LARGE}')",
        "update f set n = 2",
        "delete from f where id = 2",
    )
    captured.assert_equal("public.f")
    events = [event for event in captured.events("public.f") if event.value is not None]
    assert [event.op for event in events if event.key == b'{"id":1}'] == ["c", "u"]
    assert [event.op for event in events if event.key == b'{"id":2}'] == ["x", "x", "d"]
    assert all(event.parsed["before"] is None for event in events)


def test_a_view_takes_nothing_in_before_the_driver_knows_what_was_left_out(
    view_pipelines: "Callable[..., ViewPipeline]",
) -> None:
    """A task that was killed in between would never read of it again."""
    from tests.view_jobs import TWEETS, USERS, delivered  # loads Spark

    notes = ViewSettings(name="notes", key=("id",), sql="select t.id, t.body from tweets t")
    pipeline = view_pipelines(view=notes, query=notes.sql, tables=[USERS, TWEETS], max_message_bytes=BYTES_MAX)
    settings = pipeline.settings("redis")
    topic = pipeline.log.topic(TWEETS)

    def put(number: int, body: str) -> None:
        pipeline.write(Put(TWEETS, {"id": number, "user_id": 1, "body": body}))

    def told(task: Task) -> tuple[set[int], set[int]]:
        """The rows that are rejected, and those whose earlier rejection is closed."""
        result = delivered(task)
        assert {event.position.topic for event in result.rejected} <= {topic}
        assert all("too large for its topic" in event.reason for event in result.rejected)
        known.update({(topic, event.key): event.tag for event in result.rejected})
        for row in result.resolved:
            del known[row]
        ids = [orjson.loads(event.key)["id"] for event in result.rejected]
        assert result.has_more == bool(ids or result.resolved)
        return set(ids), {orjson.loads(key)["id"] for _, key in result.resolved}

    known: dict[tuple[str, bytes], str] = {}
    put(1, "a")
    put(2, LARGE)
    first = pipeline.task(settings)

    def again() -> Task:
        return replace(first, rejected_before=dict(known))

    assert (told(first), told(first)) == (({2}, set()), ({2}, set())), "a new state"
    assert told(again()) == (set(), set())
    assert {key: row["body"] for key, row in pipeline.rows(settings).items()} == {(1,): "a"}

    put(1, LARGE)
    put(3, "c")
    assert (told(again()), pipeline.rows(settings).keys()) == (({1}, set()), {(1,)})
    assert told(again()) == (set(), set())
    assert {key: row["body"] for key, row in pipeline.rows(settings).items()} == {(1,): "a", (3,): "c"}

    put(1, "short")
    pipeline.write(Delete(TWEETS, {"id": 2}))
    assert told(again()) == (set(), {1, 2})
    assert told(again()) == (set(), set())
    assert {key: row["body"] for key, row in pipeline.rows(settings).items()} == {(1,): "short", (3,): "c"}
