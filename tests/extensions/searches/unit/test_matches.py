"""extensions.searches.matches: whatever a document becomes, it begins and ceases to match in turn."""

from hypothesis import given
from hypothesis import strategies as st

from extensions.searches.matches import Reported, changes, tag_of_absence

SEARCHES = ("a", "b", "c")


def test_it_begins_once_and_ceases_once() -> None:
    begun = changes({}, {"a"}, SEARCHES, tag="1")
    assert begun == {"a": Reported(matches=True, tag="1")}
    assert changes(begun, {"a"}, SEARCHES, tag="2") == {}
    ceased = changes(begun, (), SEARCHES, tag="3")
    assert ceased == {"a": Reported(matches=False, tag="3")}
    assert changes(ceased, (), SEARCHES, tag="4") == {}


def test_an_older_version_than_the_one_that_was_told_of_tells_nothing() -> None:
    assert changes({"a": Reported(matches=True, tag="5")}, (), SEARCHES, tag="4") == {}
    assert changes({"a": Reported(matches=False, tag="5")}, {"a"}, SEARCHES, tag="4") == {}


def test_a_deletion_that_nobody_saw_is_told_of_as_of_the_version_that_was_told() -> None:
    reported = {"a": Reported(matches=True, tag="5"), "b": Reported(matches=False, tag="7")}
    assert tag_of_absence(reported, "") == "5"
    assert tag_of_absence(reported, "6") == "6"
    assert tag_of_absence(reported, "4") == "5"
    assert changes(reported, (), SEARCHES, tag=tag_of_absence(reported, "")) == {"a": Reported(matches=False, tag="5")}
    assert tag_of_absence({}, "") == ""


versions = st.lists(st.one_of(st.none(), st.frozensets(st.sampled_from(SEARCHES))), min_size=1, max_size=12)
"""What each version of a document matches; None: it is deleted."""


@given(versions, st.lists(st.integers(0, 11), max_size=30))
def test_however_often_and_late_a_document_is_looked_at_what_is_told_ends_as_it_is(
    history: list[frozenset[str] | None], looks: list[int]
) -> None:
    reported: dict[str, Reported] = {}
    sent: list[tuple[str, Reported]] = []
    # Versions are looked at as they are by then: some never, others several times, none before an earlier one.
    for at in [*sorted(look % len(history) for look in looks), len(history) - 1]:
        matching, seen = history[at], f"{at:02}"
        tag = seen if matching is not None else tag_of_absence(reported, seen)
        for _ in range(2):
            found = changes(reported, matching or (), SEARCHES, tag=tag)
            sent += found.items()
            reported |= found
    assert {search for search, last in reported.items() if last.matches} == (history[-1] or frozenset())
    for search in SEARCHES:
        of_search = [each for name, each in sent if name == search]
        assert [each.matches for each in of_search] == [number % 2 == 0 for number in range(len(of_search))]
        assert [each.tag for each in of_search] == sorted(each.tag for each in of_search)


@given(versions, st.lists(st.integers(0, 11), max_size=30))
def test_versions_that_come_back_tell_nothing_out_of_order(
    history: list[frozenset[str] | None], looks: list[int]
) -> None:
    reported: dict[str, Reported] = {}
    for at in (look % len(history) for look in looks):
        if history[at] is None:
            continue  # what is gone has no version
        before = dict(reported)
        reported |= changes(reported, history[at] or (), SEARCHES, tag=f"{at:02}")
        assert all(reported[search].tag >= before[search].tag for search in before)
