"""What a view's task decides by the state that it finds, and what it knows of the sink's progress."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.model.errors import DataLost, LockstepError, Unavailable
from cdc.model.event import Position, RowEvent
from cdc.model.table import TableName
from jobs.executor.driver_line import DriverLine, Until
from jobs.executor.result import RejectedEvent, Result
from jobs.executor.task_input import Task, ViewInput
from jobs.executor.view import keep_view
from jobs.executor.view_delivery import arrange
from jobs.executor.view_reports import SinkProgress, ViewReports
from jobs.executor.view_start import is_usable
from sinks.memory import MemorySink, MemoryStore, open_memory
from sinks.redis.settings import RedisSettings
from tests.databases import until
from tests.unit.jobs.query.test_long_batch_listener import listening
from tests.view_queries import TABLES, events
from views.shard import shards
from views.sharding import sharding_of
from views.sql.reader import read_view
from views.state.memory import MemoryState
from views.view import View, ViewChange

COUNTS = read_view("select id, g as n from a", TABLES, key=["id"])
AT: tuple[str, int] = ("a", 0)


def rows_of(*numbers: int) -> list[RowEvent]:
    names = [described.name for described in TABLES[TableName("public", "a")].columns]
    return events([("a", {"id": n}, {**dict.fromkeys(names), "id": n, "g": n}) for n in numbers], 8)


def built(*numbers: int) -> View:
    """By a run, with nothing delivered."""
    view = View(COUNTS, TABLES, MemoryState())
    view.begin_building()
    view.build(rows_of(*numbers))
    view.end_building(epoch=1, lsn=8, offsets={AT: 8})
    view.adopt("first")
    return view


def row(number: int, n: int) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"id": number}, {"id": number, "n": n}


@pytest.mark.parametrize("numbers", [(), (1, 2)], ids=["an empty result", "rows"])
def test_another_run_does_not_trust_what_was_made_from_rows_that_the_sink_had(numbers: tuple[int, ...]) -> None:
    """The sink may have been put back since: rows that came back with it would stay."""
    view = built(*numbers)
    assert is_usable(view, "second", {AT: 4}), "nobody has looked at the sink yet"
    arrange(view, [], [])
    assert is_usable(view, "first", {AT: 4})
    assert not is_usable(view, "second", {AT: 4})


def test_a_result_of_which_a_part_is_delivered_is_not_trusted_where_the_sink_was_as_far_before() -> None:
    """An earlier state had come there, and the sink may be put back to that."""
    view = built(1, 2)
    arrange(view, [], [])
    first = view.pending(1)
    assert first is not None
    view.acknowledge(first)
    assert not is_usable(view, "second", {AT: 8})
    rest = view.pending()
    assert rest is not None
    view.acknowledge(rest)
    assert is_usable(view, "second", {AT: 8})
    assert not is_usable(view, "second", {AT: 4})


def test_what_was_elsewhere_is_deleted_and_says_nothing_of_what_differs_in_the_sink() -> None:
    """Readers of the sink see all that differs at once, whatever the topic had of these rows before."""
    view = built(1, 2, 3)
    arrange(view, [row(1, 1), row(2, 9), row(3, 3)], [{"id": 2}, {"id": 3}, {"id": 7}, {"id": 7}])
    output = view.pending(2)
    assert output is not None
    assert list(output.changes) == [ViewChange(*row(2, 2)), ViewChange({"id": 7}, None)]


def test_what_was_told_before_a_state_is_built_is_stored_though_it_is_heard_of_later() -> None:
    progress = SinkProgress({AT: 1}, {})
    progress.send({AT: 2})
    progress.send({AT: 3})
    progress.hear(1)
    assert progress.offsets == {AT: 2}
    progress.send({AT: 4})
    progress.hear(2)
    assert progress.offsets == {AT: 4}


HERE = TableName("public", "a")


def task_of(directory: Path, *, is_shard: bool = True) -> Task:
    shard = shards(sharding_of(COUNTS, 2), 2)[1] if is_shard else None
    view = ViewInput(COUNTS, TABLES[HERE], str(directory), "progress", "shop", reached={AT: 1}, shard=shard)
    store = MemoryStore()
    MemorySink(store, 1).prepare([TABLES[HERE]])
    return Task(
        "v",
        RedisSettings(),
        1,
        0,
        {"a": HERE},
        {HERE: TABLES[HERE]},
        window_bytes=1 << 20,
        retry_s=0.01,
        run="first",
        client={},
        open=lambda *_: open_memory(store),
        view=view,
    )


class Attempts:
    """Each attempt to keep the view fails with one of these errors, and the next one ends."""

    def __init__(self, *errors: Exception) -> None:
        self._left = list(errors)
        self.number = 0

    def __call__(self, _: object) -> None:
        self.number += 1
        if self._left:
            raise self._left.pop(0)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.executor.view.RETRY_S", 0.0)


ON = Until(goes_on=True)


def test_a_shard_goes_on_after_its_sink_did_not_answer_and_says_so_meanwhile(tmp_path: Path) -> None:
    """Another shard may be built meanwhile, and its batch doesn't end before."""
    attempts = Attempts(Unavailable("it is down"), Unavailable("it is still down"))
    with listening(is_shared=True) as driver, DriverLine(driver.path) as line:
        keep_view(task_of(tmp_path), {AT: 2}, ON, line, Result(), attempts)
        until(lambda: driver.heard.failure is not None and driver.heard.failure.message == "it is still down")
        assert driver.heard.shard == 1
        assert attempts.number == 3


@pytest.mark.parametrize("error", [DataLost("it was put back"), LockstepError("it is full")])
def test_a_shard_tells_what_it_ends_with_before_others_have_ended(error: LockstepError, tmp_path: Path) -> None:
    with listening(is_shared=True) as driver, DriverLine(driver.path) as line:
        with pytest.raises(type(error)):
            keep_view(task_of(tmp_path), {}, ON, line, Result(), Attempts(error))
        until(lambda: driver.heard.failure is not None)
        assert driver.heard.failure is not None
        assert driver.heard.failure.error().message == error.message


@pytest.mark.parametrize("is_shard", [True, False])
def test_a_batch_that_ends_by_itself_ends_with_what_fails(is_shard: bool, tmp_path: Path) -> None:
    attempts = Attempts(Unavailable("it is down"))
    with listening() as driver, DriverLine(driver.path) as line:
        with pytest.raises(Unavailable):
            keep_view(task_of(tmp_path, is_shard=is_shard), {}, Until(goes_on=not is_shard), line, Result(), attempts)
        assert attempts.number == 1


def test_who_tries_again_knows_which_rejections_were_kept_before() -> None:
    """Else nobody would close one whose row is taken by the next attempt."""
    nothing: Any = None
    feed: Any = SimpleNamespace(log=SimpleNamespace(came=0))
    progress = SinkProgress({}, {("v", b'{"id":1}'): "1"})
    refused = RejectedEvent(Position("v", 0, 0), b'{"id":2}', None, "2", "too large")
    with listening(is_shared=True) as driver, DriverLine(driver.path) as line:
        result = Result(shard=1, rejected=[refused], resolved=[("v", b'{"id":1}')])
        assert ViewReports(line, result, progress, feed, nothing, goes_on=True).are_kept()
        assert (result.rejected, result.resolved) == ([], [])
        assert progress.rejected == {("v", b'{"id":2}'): "2"}
