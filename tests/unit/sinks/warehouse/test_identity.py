"""By what a warehouse's tables are known to be the same ones."""

import pytest

from sinks.warehouse.dialect import Storage
from sinks.warehouse.identity import Identity, Noted, Now, what_became

FULL = Identity(9, {"items": Noted(Storage(1, 11), has_rows=True)})
EMPTY = Identity(9, {"items": Noted(Storage(1, 11), has_rows=False)})


def now(
    *, bookkeeping: int = 9, purged: bool = False, is_empty: bool = False, keeps_rows: bool = True, **storages: Storage
) -> Now:
    return Now(bookkeeping, storages, {"items"} if purged else (), lambda _: is_empty, lambda _: keeps_rows)


def test_what_is_kept_of_a_table_is_read_again() -> None:
    assert Identity.from_json(FULL.to_json()) == FULL


@pytest.mark.parametrize("before", [FULL, EMPTY, None])
@pytest.mark.parametrize("is_empty", [False, True])
def test_a_table_that_is_stored_as_before_is_the_same_one(before: Identity | None, is_empty: bool) -> None:
    assert what_became(before, ["items"], now(items=Storage(1, 11), is_empty=is_empty)) is None


@pytest.mark.parametrize("before", [FULL, EMPTY, None])
def test_a_table_that_is_not_there_was_dropped(before: Identity | None) -> None:
    assert what_became(before, ["items"], now()) == "items was dropped"
    assert what_became(before, ["items"], now(bookkeeping=8)) == "items was dropped"
    assert what_became(before, [], now(items=Storage(1, 11))) == "the bookkeeping doesn't know it any more"


def test_another_relation_of_its_name_is_another_table_but_for_a_copy_of_the_whole_database() -> None:
    other = Storage(2, 22)
    assert what_became(FULL, ["items"], now(items=other)) == "items was dropped, and another one of its name is there"
    assert what_became(FULL, ["items"], now(items=other, bookkeeping=8)) is None


@pytest.mark.parametrize(
    ("before", "is_empty", "purged", "what"),
    [
        (FULL, False, False, None),
        (FULL, True, False, "items was emptied"),
        (FULL, True, True, "items was emptied"),
        (EMPTY, True, False, "items was emptied"),
        (EMPTY, True, True, None),
    ],
)
def test_another_file_without_a_row_is_that_of_an_emptied_table_unless_all_rows_were_purged(
    before: Identity, is_empty: bool, purged: bool, what: str | None
) -> None:
    assert what_became(before, ["items"], now(items=Storage(1, 12), is_empty=is_empty, purged=purged)) == what


@pytest.mark.parametrize("before", [FULL, EMPTY])
def test_another_file_without_a_row_from_before_is_that_of_a_table_that_was_filled_again(before: Identity) -> None:
    what = what_became(before, ["items"], now(items=Storage(1, 12), keeps_rows=False))
    assert what is not None
    assert "was emptied and filled again" in what
    assert what_became(before, ["items"], now(items=Storage(1, 11), keeps_rows=False)) is None
    assert what_became(EMPTY, ["items"], now(items=Storage(1, 12), keeps_rows=False, purged=True)) is None


def test_a_history_that_is_new_is_no_loss_and_one_that_is_gone_is() -> None:
    storages = {"items": Storage(1, 11), "items_history": Storage(3, 33)}
    assert what_became(FULL, ["items", "items_history"], now(**storages)) is None
    assert what_became(FULL, ["items", "items_history"], now(items=Storage(1, 11))) == "items_history was dropped"
