"""sinks.warehouse.duckdb.errors: whose turn it is"""

from pathlib import Path

import duckdb
import pytest

from cdc.model.errors import PerhapsStoreRefuses, Unavailable
from sinks.warehouse.duckdb.errors import is_held, translated

FILE = Path("/var/lib/shop/dwh.duckdb")


def test_who_holds_the_file_is_named() -> None:
    error = duckdb.IOException(
        'IO Error: Could not set lock on file "x": Conflicting lock is held in /usr/bin/python3 (PID 7). See also ...'
    )
    assert is_held(error)
    ours = translated(error, FILE)
    assert isinstance(ours, Unavailable)
    assert "process 7 (/usr/bin/python3) holds the warehouse's file '/var/lib/shop/dwh.duckdb'" in str(ours)


def test_a_conflict_passes() -> None:
    assert isinstance(translated(duckdb.TransactionException("Conflict on update!"), FILE), Unavailable)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (duckdb.IOException('Could not write file "x": No space left on device'), "free space"),
        (duckdb.IOException('Cannot open file "x": Permission denied'), "read and write"),
        (duckdb.IOException("Trying to read a database file with version number 99"), "use that version"),
        (duckdb.OutOfMemoryException("failed to allocate"), "memory_limit"),
        (duckdb.CatalogException("Table with name t does not exist"), "rebuild"),
        (duckdb.BinderException("column c not found"), "rebuild"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_operator_is_told_what_to_do(error: duckdb.Error, hint: str) -> None:
    ours = translated(error, FILE)
    assert not isinstance(ours, Unavailable)
    assert hint in (ours.hint or "")


def test_want_of_memory_is_perhaps_no_matter_of_a_table() -> None:
    assert isinstance(translated(duckdb.OutOfMemoryException("failed to allocate"), FILE), PerhapsStoreRefuses)


def test_words_that_may_hold_values_are_not_repeated() -> None:
    assert "secret" not in str(translated(duckdb.ConversionException("Could not convert 'secret'"), FILE))
