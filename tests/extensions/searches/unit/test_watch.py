"""extensions.searches.watch: since when nobody tells, by one clock, and what is said of it."""

from collections.abc import Mapping

import pytest

from cdc.model.errors import Unavailable
from cdc.model.table import TableName
from extensions.searches.stored import Search, SearchStatus
from extensions.searches.watch import METRICS, SearchesWatch, SinkSearches, StandingSearches
from monitor.conditions import Severity
from monitor.watching import Found


class Store:
    """A sink's searches in memory."""

    def __init__(self) -> None:
        self.searches: dict[str, Search] = {}
        self.status = SearchStatus()

    def load(self) -> Mapping[str, Search]:
        return self.searches

    def load_status(self) -> SearchStatus:
        return self.status


SEARCH = Search("red", TableName("public", "t"), {"match_all": {}})


def test_who_tells_is_silent_once_his_sign_of_life_stays_as_it_is_whatever_his_clock_says() -> None:
    store, now = Store(), [1000.0]
    watch = SinkSearches(store, monotonic_s=lambda: now[0])
    assert watch.look() is None
    store.searches = {"red": SEARCH}
    found = []
    for at_ms in (5, 17, 3, 3, 3, 3, 3, 3, 3, 4):
        store.status = SearchStatus(at_ms)
        now[0] += 11
        looked = watch.look()
        assert looked is not None
        found.append((looked.silent_s, looked.is_silent))
    times = [0, 0, 0, 11, 22, 33, 44, 55, 66, 0]
    assert found == [(float(silent_s), silent_s > 60) for silent_s in times]


def test_signs_of_life_of_one_who_cannot_tell_do_not_count() -> None:
    store, now = Store(), [0.0]
    store.searches = {"red": SEARCH}
    watch = SinkSearches(store, monotonic_s=lambda: now[0])
    found = []
    for at_ms, waiting in ((1, ""), (2, "no broker"), (3, "no broker"), (3, "no broker"), (4, "")):
        store.status = SearchStatus(at_ms, waiting=waiting)
        now[0] += 35
        looked = watch.look()
        assert looked is not None
        found.append((looked.is_silent, looked.waiting))
    assert found == [(False, ""), (False, "no broker"), (True, "no broker"), (True, "no broker"), (False, "")]


def test_what_is_refused_is_of_searches_that_are_there() -> None:
    store = Store()
    store.searches = {"red": SEARCH}
    store.status = SearchStatus(1, {"blue": 2, "green": 3}, {"red": "no", "removed": "no"})
    watch = SinkSearches(store, monotonic_s=lambda: 0.0)
    assert watch.look() == StandingSearches(1, 5, {"red": "no"}, 0.0)
    store.searches = {}
    assert watch.look() is None


def _found(store: Store, at_s: float = 0.0) -> Found:
    now = [0.0]
    watch = SearchesWatch({"search": lambda: SinkSearches(store, monotonic_s=lambda: now[0])})
    watch.look()
    now[0] = at_s
    return watch.look()


def test_figures_and_conditions_are_of_the_sink() -> None:
    store = Store()
    store.searches = {"red": SEARCH}
    store.status = SearchStatus(1, {"red": 20}, {"red": "no"})
    found = _found(store)
    assert [(each.definition, each.value, each.labels) for each in found.figures] == [
        (definition, value, ("search",)) for definition, value in zip(METRICS, (1, 20, 1, 0.0), strict=True)
    ]
    (condition,) = found.conditions
    assert (condition.key, condition.severity) == (("search-refused", "search"), Severity.WARNING)


@pytest.mark.parametrize(("silent_s", "names"), [(60.0, []), (61.0, ["searches-silent"])])
def test_silence_is_a_condition_after_a_minute(silent_s: float, names: list[str]) -> None:
    store = Store()
    store.searches = {"red": SEARCH}
    assert [condition.name for condition in _found(store, silent_s).conditions] == names


def test_silence_says_what_is_in_the_way_where_that_is_known() -> None:
    def sentence(waiting: str) -> str:
        (found,) = StandingSearches(3, 0, {}, 61.0, waiting).conditions("search")
        return found.sentence

    assert sentence("") == "no process reports the 3 standing searches of search"
    assert sentence("no broker answers") == "no process reports the 3 standing searches of search: no broker answers"


def test_of_a_sink_that_does_not_answer_nothing_is_known() -> None:
    def refused() -> SinkSearches:
        raise Unavailable("down")

    watch = SearchesWatch({"search": refused, "other": lambda: SinkSearches(Store())})
    assert watch.look().unknown == {("searches-silent", "search"), ("search-refused", "search")}
