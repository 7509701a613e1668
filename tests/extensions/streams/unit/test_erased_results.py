"""extensions.streams.erased_results, with a destination in a file"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import Unavailable
from cdc.model.event import Position, RowEvent
from cdc.model.table import TableName
from extensions.streams.erased_results import ResultErasing
from extensions.streams.executor.results import batch_tag
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.records import figures_name, result_name
from extensions.streams.jobs.resume import Figures
from extensions.streams.settings import StreamQuerySettings
from jobs.generations.record import Phase, Record, save_record
from jobs.settings import SparkSettings
from lockstep.erasing import Place
from sinks.columns.shape import Shape
from sinks.contract import Batch, OpenedSink, Outcome
from sinks.redis.settings import RedisSettings
from tests.builders import column, table
from tests.duckdb_sink import open_duckdb

RESULT = table(
    column("who", "int8"), column("hour"), column("n", "int8"),
    name=TableName("stream_queries", "logins"), key=("who", "hour"),
)  # fmt: skip


def row(who: int, hour: str, batch: int, *, is_deleted: bool = False) -> RowEvent:
    key = {"who": who, "hour": hour}
    return RowEvent(
        RESULT.name, key, batch_tag(batch), None if is_deleted else {**key, "n": 1}, Position("result", 0, 0)
    )


class Store:
    """A destination, of which each call opens a generation for itself."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, generation: int) -> OpenedSink:
        return open_duckdb(self._directory, generation)

    @contextmanager
    def opened(self, generation: int = 1) -> Iterator[OpenedSink]:
        opened = self.open(generation)
        with closing(opened.sink):
            yield opened

    def save(self, name: str, text: str | None) -> None:
        with self.opened() as opened:
            opened.records.save(name, text)

    def save_record(self, number: int, record: Record) -> None:
        with self.opened() as opened:
            save_record(opened.records, number, record)


def apply(store: Store, *rows: RowEvent, generation: int = 1) -> Outcome:
    with store.opened(generation) as opened:
        return opened.sink.apply(Batch(rows))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two builds, each with rows of a person, 7, and of another one. Batch 1 is done, and batch 2 isn't."""
    store = Store(tmp_path)
    for number in (1, 2):
        with store.opened(number) as opened:
            opened.sink.prepare([RESULT])
        store.save_record(number, Record("shop", {}))
        store.save(result_name(number), Shape.of(RESULT).to_json())
        store.save(figures_name(number), Figures(batch=1).text())
        apply(store, row(7, "a", 0), row(7, "b", 1), row(8, "a", 1), generation=number)
    return store


def plan_of(store: Store) -> StreamQueryPlan:
    return StreamQueryPlan(
        name="logins",
        query=StreamQuerySettings(key=("who", "hour"), sql="x"),
        settings=RedisSettings(),
        streams={},
        pipeline="shop",
        kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"),
        spark=SparkSettings(checkpoint_directory="checkpoints"),
        once=True,
        open=lambda _name, _settings, generation: store.open(generation),
    )


def erased(store: Store, *, only_look: bool = False, columns: tuple[str, ...] = ("who",)) -> list[Place]:
    erasing = ResultErasing(plan_of(store), check=lambda: None)
    return list(erasing.places(columns, lambda key: key["who"] == 7, only_look=only_look))


def keys(store: Store, generation: int = 1) -> list[tuple[object, object]]:
    with store.opened(generation) as opened:
        return sorted((each.key["who"], each.key["hour"]) for each in opened.sink.scan(RESULT))


def has_marks(store: Store, generation: int = 1) -> bool:
    with store.opened(generation) as opened:
        assert opened.erasing is not None
        return bool(opened.erasing.leftovers(RESULT, None))


def test_rows_go_from_every_build_and_others_stay(store: Store) -> None:
    first, second = erased(store, only_look=True)
    assert [leftover.what for leftover in first.left] == ["2 rows of the result"]
    assert keys(store) == [(7, "a"), (7, "b"), (8, "a")]
    for place in erased(store):
        assert place.is_proven
        assert [leftover.what for leftover in place.found] == ["2 rows of the result"]
    for number in (1, 2):
        assert keys(store, number) == [(8, "a")]
        assert not has_marks(store, number)
    assert (first.name, second.name) == (
        "stream query logins, generation 1 (live)",
        "stream query logins, generation 2",
    )
    assert all(place.found == () and place.is_proven for place in erased(store))


def test_a_batch_that_is_done_again_brings_none_back(store: Store) -> None:
    erased(store)
    outcome = apply(store, row(7, "b", 1), row(8, "a", 1))
    assert (outcome.applied, outcome.stale) == (0, 2)
    assert keys(store) == [(8, "a")]


def test_a_batch_under_way_loses_no_row_and_brings_none_back(store: Store) -> None:
    """It was killed when it had written some of its rows."""
    apply(store, row(7, "c", 2))
    place, _ = erased(store)
    assert not place.is_proven
    assert "a batch that its job hasn't ended" in (place.why or "")
    assert keys(store) == [(8, "a")]
    outcome = apply(store, row(7, "c", 2), row(8, "c", 2), row(9, "c", 2))
    assert (outcome.applied, outcome.stale) == (2, 1)
    assert keys(store) == [(8, "a"), (8, "c"), (9, "c")]
    assert not erased(store)[0].is_proven, "it isn't done yet"
    store.save(figures_name(1), Figures(batch=2).text())
    assert erased(store)[0].is_proven
    assert not has_marks(store)
    assert apply(store, row(7, "c", 2)).stale == 1


def test_what_the_checkpoint_keeps_is_told_of_until_it_keeps_nothing(store: Store) -> None:
    """A window that is open leads to rows after the command has ended."""
    store.save(figures_name(1), Figures(batch=1, state_rows=3).text())
    first, second = erased(store)
    assert "its checkpoint keeps 3 rows" in (first.note or "")
    assert (first.is_proven, second.note) == (True, None)


def test_what_an_interrupted_run_has_left_goes_with_the_next(store: Store) -> None:
    with store.opened() as opened:
        opened.sink.apply(Batch([row(7, "a", 0, is_deleted=True)], overwrite_equal_tags=True))
    assert has_marks(store)
    (place, _) = erased(store)
    assert place.is_proven
    assert len(place.found) == 2
    assert not has_marks(store)


def test_what_cannot_be_told_proves_nothing_and_is_not_touched(store: Store) -> None:
    store.save(result_name(1), None)
    store.save_record(2, Record("another", {}))
    before = keys(store), keys(store, 2)
    (foreign,) = erased(store)
    assert "written by pipeline 'another'" in (foreign.unasked or "")
    store.save_record(2, Record("shop", {}, phase=Phase.RETIRED))
    _, second = erased(store)
    assert "about to be dropped" in (second.unasked or "")
    store.save_record(2, Record("shop", {}))
    assert "built without user_id in its key" in (erased(store, columns=("user_id",))[1].unasked or "")
    assert (keys(store), keys(store, 2)) == before


def test_a_build_that_its_job_has_not_begun_has_nothing(store: Store) -> None:
    store.save_record(3, Record("shop", {}))
    assert erased(store)[2] == Place("stream query logins, generation 3")


def test_a_store_that_does_not_answer_is_a_place_of_which_nothing_is_proven(store: Store) -> None:
    def fails(_name: str, _settings: object, _generation: int) -> Iterator[None]:
        raise Unavailable("it is away")

    erasing = ResultErasing(replace(plan_of(store), open=fails), check=lambda: None)  # type: ignore[arg-type]
    (place,) = erasing.places(("who",), lambda _: True, only_look=False)
    assert place == Place("stream query logins, its result", unasked="it is away")
