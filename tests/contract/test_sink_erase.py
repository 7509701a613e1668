"""What every sink that erases promises: it reports whatever is left, and nothing brings it back."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import replace
from functools import partial

import pytest

from cdc.model.errors import ConfigurationError, Overtaken
from cdc.model.event import JsonValue
from cdc.model.table import TableName
from sinks.capabilities.erasing import Erasing, Leftover
from sinks.contract import Sink
from tests.builders import batch, tag
from tests.contract.destinations import ITEMS, Destination, opened_destination
from tests.contract.items import counts, gone, item, rows_of

pytestmark = pytest.mark.needs("erasing")

KEY: Mapping[str, JsonValue] = {"id": 1}
ALL = tag(100)
"""Everything that the tests apply is below it."""


def opened_in(destination: Destination, name: str) -> tuple[Sink, Erasing]:
    opened = destination.opened(name, 1, ITEMS)
    assert opened.erasing is not None
    return opened.sink, opened.erasing


def erased(erasing: Erasing, key: Mapping[str, JsonValue] | None = KEY) -> Sequence[Leftover]:
    """Erase again and again, as the command does, until everything that is left has a known end."""
    deadline = time.monotonic() + 300
    while True:
        left = erasing.erase(ITEMS, key, below=ALL)
        if all(leftover.until_ms is not None for leftover in left):
            return left
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def _what_is_kept_of_a_row_goes(destination: Destination, name: str) -> None:
    sink, erasing = opened_in(destination, name)
    sink.apply(batch(item(1, "secret", 1), item(2, "stays", 1)))
    assert [leftover.has_values for leftover in erasing.leftovers(ITEMS, KEY)][:1] == [True]
    sink.apply(batch(gone(1, 2)))
    left = erased(erasing)
    assert [leftover.what for leftover in left] == [leftover.what for leftover in erasing.leftovers(ITEMS, KEY)]
    assert rows_of(sink) == {"(2,)": "stays"}


def _what_is_kept_of_all_rows_goes(destination: Destination, name: str) -> None:
    sink, erasing = opened_in(destination, name)
    sink.apply(batch(item(1, "a", 1), item(2, "b", 1), item(3, "c", 1), item(4, "secret", 1)))
    sink.apply(batch(gone(1, 2), gone(2, 3), item(4, "newer", 3)))
    assert erasing.leftovers(ITEMS, None)
    left = erased(erasing, None)
    assert all(leftover.until_ms is not None for leftover in left)
    for late in (item(1, "a", 1), gone(2, 3), item(4, "secret", 1)):
        assert counts(sink.apply(batch(late))) == (0, 1, 0)
    assert rows_of(sink) == {"(3,)": "c", "(4,)": "newer"}
    sink.apply(batch(gone(3, 200)))
    assert [leftover.until_ms is None for leftover in erasing.erase(ITEMS, None, below=ALL)].count(True) == 0, (
        "what later ones leave isn't meant"
    )
    assert counts(sink.apply(batch(item(3, "late", 150)))) == (0, 1, 0)


@pytest.fixture(scope="module")
def begun(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Callable[[], object]]]:
    """The two tests below for OpenSearch, each by its node id, with the function that waits for its end. OpenSearch
    keeps deleted documents for half a minute. So all of them wait beside each other."""
    cases = {
        item.nodeid: (_CASES[item.originalname], item.callspec.params["destination"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path and item.originalname in _CASES
    }
    with ExitStack() as opened:
        made = {
            node: (
                case,
                opened.enter_context(closing(opened_destination(kind, lambda: request.getfixturevalue("endpoints")))),
            )
            for node, (case, kind) in cases.items()
            if kind.startswith("opensearch")
        }
        pool = opened.enter_context(ThreadPoolExecutor(max(1, len(made))))
        ends: dict[str, Callable[[], object]] = {
            node: pool.submit(case, destination, f"t{uuid.uuid4().hex[:12]}").result
            for node, (case, destination) in made.items()
        }
        yield ends


def test_what_is_kept_of_a_deleted_row_goes_or_it_is_said_until_when(
    request: pytest.FixtureRequest, begun: Mapping[str, Callable[[], object]], destination: Destination, name: str
) -> None:
    begun.get(request.node.nodeid, partial(_what_is_kept_of_a_row_goes, destination, name))()


def test_where_nobody_knows_the_keys_what_is_kept_of_all_deleted_rows_goes(
    request: pytest.FixtureRequest, begun: Mapping[str, Callable[[], object]], destination: Destination, name: str
) -> None:
    """As for a view: a deleted row of its tables led to rows under the view's own keys."""
    begun.get(request.node.nodeid, partial(_what_is_kept_of_all_rows_goes, destination, name))()


_CASES = {
    test_what_is_kept_of_a_deleted_row_goes_or_it_is_said_until_when.__name__: _what_is_kept_of_a_row_goes,
    test_where_nobody_knows_the_keys_what_is_kept_of_all_deleted_rows_goes.__name__: _what_is_kept_of_all_rows_goes,
}


def test_no_late_event_brings_an_erased_row_back_and_newer_ones_are_applied(
    destination: Destination, name: str
) -> None:
    sink, erasing = opened_in(destination, name)
    sink.apply(batch(item(1, "a", 1), item(2, "other", 1)))
    sink.apply(batch(gone(1, 3)))
    erasing.erase(ITEMS, KEY, below=ALL)
    for _ in range(2):
        for event in (item(1, "a", 1), gone(1, 3)):
            assert counts(sink.apply(batch(event))) == (0, 1, 0)
    # Events of an earlier shape replace rows of their own tag. That says nothing of rows that don't exist.
    assert counts(sink.apply(replace(batch(item(1, "a", 1)), overwrite_equal_tags=True))) == (0, 1, 0)
    assert rows_of(sink) == {"(2,)": "other"}
    assert counts(sink.apply(batch(item(1, "again", 4), item(2, "newer", 2)))) == (2, 0, 0)
    assert rows_of(sink) == {"(1,)": "again", "(2,)": "newer"}


def test_a_deletion_stays_in_force_while_older_events_may_still_come(destination: Destination, name: str) -> None:
    sink, erasing = opened_in(destination, name)
    for number, below in enumerate((None, tag(2))):
        sink.apply(batch(gone(number, 2)))
        erasing.erase(ITEMS, {"id": number}, below=below)
        assert counts(sink.apply(batch(item(number, "late", 1)))) == (0, 1, 0)
    assert rows_of(sink) == {}


def test_a_rejected_version_can_be_retried_after_its_neighbour_was_erased(destination: Destination, name: str) -> None:
    sink, erasing = opened_in(destination, name)
    sink.apply(batch(gone(1, 5)))
    erasing.erase(ITEMS, KEY, below=ALL)
    retried = replace(batch(item(2, "mended", 3)), overwrite_equal_tags=True, never_applied=True)
    assert counts(sink.apply(retried)) == (1, 0, 0)
    assert rows_of(sink) == {"(2,)": "mended"}


def test_a_rejected_version_of_a_row_that_was_erased_since_is_not_applied(destination: Destination, name: str) -> None:
    """It was read while it was open, and its retry has hung since."""
    sink, erasing = opened_in(destination, name)
    erased = erasing.erased([ITEMS.name])
    sink.apply(batch(item(2, "other", 1), gone(1, 5)))
    erasing.erase(ITEMS, KEY, below=ALL)
    retried = replace(batch(item(1, "secret", 3)), overwrite_equal_tags=True, never_applied=True, erased=erased)
    with suppress(Overtaken):
        assert counts(sink.apply(retried)) == (0, 1, 0)
    assert rows_of(sink) == {"(2,)": "other"}
    mended = replace(retried, events=[item(3, "mended", 3)], erased=erasing.erased([ITEMS.name]))
    assert counts(sink.apply(mended)) == (1, 0, 0)


def test_a_row_that_is_there_stays_and_is_told_by_an_earlier_key_too(destination: Destination, name: str) -> None:
    sink, erasing = opened_in(destination, name)
    sink.apply(batch(item(1, "a", 1)))
    assert [leftover.has_values for leftover in erasing.erase(ITEMS, KEY, below=ALL)][:1] == [True]
    columns = tuple(replace(each, name="uid") if each.name == "id" else each for each in ITEMS.columns)
    now = replace(ITEMS, columns=columns, key=("uid",))
    refused = pytest.raises(ConfigurationError, match=r"(keys|routing): .*public\.items .*(\{uid\}|'id')")
    for look in (erasing.leftovers, partial(erasing.erase, below=ALL)):
        with refused if destination.names_keys else nullcontext():
            assert [(each.has_values, each.until_ms) for each in look(now, {"uid": 1})][:1] == [(True, None)]
    assert rows_of(sink) == {"(1,)": "a"}


def test_nothing_is_kept_of_a_key_and_a_table_that_never_came(destination: Destination, name: str) -> None:
    _, erasing = opened_in(destination, name)
    other = replace(ITEMS, name=TableName("public", "other"))
    for table in (ITEMS, other):
        assert list(erasing.leftovers(table, KEY)) == []
        assert list(erasing.erase(table, KEY, below=ALL)) == []
