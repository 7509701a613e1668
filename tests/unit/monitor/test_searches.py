"""monitor.searches: since when nobody tells, by one clock."""

from collections.abc import Mapping

from cdc.model.table import TableName
from monitor.searches import SearchesWatch, StandingSearches
from sinks.opensearch.searches import Search, SearchStatus


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
    watch = SearchesWatch(store, monotonic_s=lambda: now[0])
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
    watch = SearchesWatch(store, monotonic_s=lambda: now[0])
    found = []
    for at_ms, waiting in ((1, ""), (2, "no broker"), (3, "no broker"), (3, "no broker"), (4, "")):
        store.status = SearchStatus(at_ms, waiting=waiting)
        now[0] += 35
        looked = watch.look()
        assert looked is not None
        found.append((looked.is_silent, looked.waiting))
    assert found == [(False, ""), (False, "no broker"), (True, "no broker"), (True, "no broker"), (False, "")]


def test_it_looks_now_and_then() -> None:
    store, now = Store(), [0.0]
    store.searches = {"red": SEARCH}
    watch = SearchesWatch(store, monotonic_s=lambda: now[0])
    assert watch.look() == StandingSearches(1, 0, {}, 0.0)
    store.status = SearchStatus(1, {"blue": 2, "green": 3}, {"red": "no", "removed": "no"})
    assert watch.look() == StandingSearches(1, 0, {}, 0.0)
    now[0] += 10
    assert watch.look() == StandingSearches(1, 5, {"red": "no"}, 0.0)
    store.searches = {}
    now[0] += 10
    assert watch.look() is None
