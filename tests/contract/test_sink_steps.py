"""What a sink that takes several batches as one step promises: readers see a whole step at once, or nothing of it."""

from collections.abc import Iterator

import pytest

from cdc.model.errors import Fenced, LockstepError
from sinks.capabilities.whole_steps import WholeSteps
from sinks.contract import OpenedSink
from tests.builders import batch, tag, upsert
from tests.contract.destinations import ITEMS, Destination, opened_destination, real, refuse_long
from tests.contract.items import gone, item, rows_of
from tests.stepping import SteppingStore, open_stepping


@pytest.fixture(params=["memory", *real(needs=["whole"])])
def stepping(request: pytest.FixtureRequest) -> Iterator[Destination]:
    """One of each kind that has steps, and the one in memory that has them for tests of jobs."""
    made = opened_destination(request.param, lambda: request.getfixturevalue("endpoints"))
    if request.param == "memory":
        stores: dict[str, SteppingStore] = {}
        made.open = lambda name, generation: open_stepping(
            stores.setdefault(name, SteppingStore()), generation, refuse=refuse_long
        )
    yield made
    made.close()


def steps_of(opened: OpenedSink) -> WholeSteps:
    assert opened.whole is not None
    return opened.whole


def seen(stepping: Destination, name: str) -> dict[str, object]:
    """As somebody else sees it."""
    return dict(rows_of(stepping.sink(name)))


def test_the_batches_of_a_step_are_seen_when_it_has_ended(stepping: Destination, name: str) -> None:
    opened = stepping.opened(name, 1, ITEMS)
    fence = opened.sink.claim()
    opened.sink.apply(batch(item(1, "before", 1), fence=fence))
    with steps_of(opened).step():
        opened.sink.apply(batch(item(1, "after", 2), fence=fence))
        opened.sink.apply(batch(item(2, "new", 2), fence=fence, next_offsets={("items", 0): 2}))
        opened.records.save("g1.consistent", "two")
        if stepping.server is not None:  # in memory, others wait
            assert seen(stepping, name) == {"(1,)": "before"}
    assert seen(stepping, name) == {"(1,)": "after", "(2,)": "new"}
    assert stepping.opened(name).records.load("g1.consistent") == "two"


def test_a_step_that_fails_leaves_nothing_behind(stepping: Destination, name: str) -> None:
    opened = stepping.opened(name, 1, ITEMS)
    fence = opened.sink.claim()
    opened.records.save("g1.consistent", "one")
    opened.sink.apply(batch(item(1, "before", 1), fence=fence))

    def fail() -> None:
        with steps_of(opened).step():
            opened.sink.apply(batch(item(1, "after", 2), item(2, "new", 2), fence=fence))
            opened.records.save("g1.consistent", "two")
            raise LockstepError("on purpose")

    with pytest.raises(LockstepError, match="on purpose"):
        fail()
    assert seen(stepping, name) == {"(1,)": "before"}
    assert stepping.opened(name).records.load("g1.consistent") == "one"
    opened.sink.close()
    again = stepping.opened(name)
    with steps_of(again).step():
        again.sink.apply(batch(item(1, "after", 2), fence=fence))
    assert seen(stepping, name) == {"(1,)": "after"}


def test_a_refused_row_takes_nothing_else_of_its_step_back(stepping: Destination, name: str) -> None:
    opened = stepping.opened(name, 1, ITEMS)
    fence = opened.sink.claim()
    poisoned = upsert({"id": 2, "note": "b", "number": 1, **stepping.poison}, 2, of=ITEMS)
    with steps_of(opened).step():
        first = opened.sink.apply(batch(item(1, "a", 1), fence=fence))
        second = opened.sink.apply(batch(poisoned, item(3, "c", 2), fence=fence))
    assert (first.applied, second.applied, len(second.rejections)) == (1, 1, 1)
    assert seen(stepping, name) == {"(1,)": "a", "(3,)": "c"}


def test_a_step_of_a_job_that_was_replaced_is_refused(stepping: Destination, name: str) -> None:
    opened = stepping.opened(name, 1, ITEMS)
    fence = opened.sink.claim()
    stepping.opened(name).sink.claim()

    def step() -> None:
        with steps_of(opened).step():
            opened.records.save("g1.consistent", "one")
            opened.sink.apply(batch(fence=fence))

    with pytest.raises(Fenced):
        step()
    assert stepping.opened(name).records.load("g1.consistent") is None


def test_the_newest_tag_is_that_of_any_row_also_of_a_deleted_one(stepping: Destination, name: str) -> None:
    opened = stepping.opened(name, 1, ITEMS)
    assert steps_of(opened).newest_tag() == ""
    opened.sink.apply(batch(item(1, "a", 5), item(2, "b", 3), gone(3, 9), fence=opened.sink.claim()))
    assert steps_of(opened).newest_tag() == tag(9)


def test_a_step_knows_how_far_the_batches_are_that_the_generation_has(stepping: Destination, name: str) -> None:
    opened = stepping.opened(name, 1, ITEMS)
    assert steps_of(opened).next_offsets() == {}
    fence = opened.sink.claim()
    opened.sink.apply(batch(item(1, "a", 1), fence=fence, next_offsets={("items", 0): 2, ("items", 1): 7}))
    with steps_of(opened).step():
        assert steps_of(opened).next_offsets() == {("items", 0): 2, ("items", 1): 7}
        opened.sink.apply(batch(fence=fence, next_offsets={("items", 0): 3}))
        assert steps_of(opened).next_offsets() == {("items", 0): 3, ("items", 1): 7}
    assert steps_of(stepping.opened(name)).next_offsets() == {("items", 0): 3, ("items", 1): 7}
