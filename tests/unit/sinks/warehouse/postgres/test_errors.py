"""sinks.warehouse.postgres.errors: whose turn it is"""

from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from cdc.model.errors import PerhapsStoreRefuses, StoreRefuses, Unavailable
from sinks.warehouse.postgres.errors import is_of_a_row, translated


def error(state: str) -> psycopg.Error:
    return psycopg.errors.lookup(state)("words of the server")


@pytest.mark.parametrize("state", ["08006", "40001", "40P01", "53300", "55P03", "57014", "57P01", "25P03"])
def test_what_passes_is_tried_again(state: str) -> None:
    assert isinstance(translated(error(state)), Unavailable)


@pytest.mark.parametrize(
    ("state", "hint"),
    [
        ("53100", "free space"),
        ("53400", "temp_file_limit"),
        ("58030", "log"),
        ("25006", "read-only"),
        ("42501", "grant"),
        ("42703", "column"),
        ("42P01", "removed"),
        ("3F000", "removed"),
    ],
)
def test_what_needs_somebody_stops_and_says_what_to_do(state: str, hint: str) -> None:
    ours = translated(error(state))
    assert not isinstance(ours, Unavailable)
    assert hint in (ours.hint or "")


@pytest.mark.parametrize("state", ["22003", "23502", "54000"])
def test_a_row_that_is_to_blame_is_reported_without_its_values(state: str) -> None:
    assert is_of_a_row(error(state))
    assert "words of the server" not in str(translated(error(state)))


@pytest.mark.parametrize(
    ("state", "is_of_all"), [("53100", True), ("28P01", True), ("25006", True), ("P0001", False), ("42501", False)]
)
def test_a_full_disk_is_no_matter_of_a_table(state: str, is_of_all: bool) -> None:
    assert isinstance(translated(error(state)), StoreRefuses) is is_of_all
    assert isinstance(translated(error(state)), PerhapsStoreRefuses) is (state == "42501")


def test_what_a_trigger_says_is_left_out_since_it_may_quote_the_row() -> None:
    ours = translated(error("P0001"))
    assert "P0001" in ours.message
    assert "words of the server" not in str(ours)
    assert "a trigger" in (ours.hint or "")
    assert not is_of_a_row(error("P0001")), "nobody knows that it refuses only some rows"


class _Refused(psycopg.Error):
    """An error as a server sent it."""

    def __init__(self, state: str, *, context: str | None = None, column: str | None = None) -> None:
        super().__init__("no room for ada@example.org")
        self.sqlstate = state
        self._diag = SimpleNamespace(
            message_primary="no room for ada@example.org", context=context, column_name=column, sqlstate=state
        )

    @property
    def diag(self) -> Any:
        return self._diag


_IN_A_TRIGGER = "PL/pgSQL function lockstep.refuses() line 3 at RAISE"


@pytest.mark.parametrize(
    ("refused", "is_quoted"),
    [
        (_Refused("42704"), True),
        (_Refused("XX000"), True),
        (_Refused("53100", context='while inserting index tuple (4,2) in relation "orders"'), True),
        (_Refused("MY001"), False),
        (_Refused("MY001", context=_IN_A_TRIGGER), False),
        # A class that PostgreSQL has itself, taken by a trigger; and what a trigger ran.
        (_Refused("42501", context=_IN_A_TRIGGER), False),
        (_Refused("53100", context=_IN_A_TRIGGER), False),
        (_Refused("40001", context=_IN_A_TRIGGER), False),
        (_Refused("42P01", context="SQL statement \"select 'ada@example.org'\"\n" + _IN_A_TRIGGER), False),
        (_Refused("23514", context=_IN_A_TRIGGER, column="ada@example.org"), False),
        (_Refused("22P02", context='COPY g1, line 1, column at: "ada@example.org"'), False),
    ],
)
def test_only_words_of_the_server_itself_are_told(refused: psycopg.Error, is_quoted: bool) -> None:
    ours = translated(refused)
    assert ("ada@example.org" in str(ours)) is is_quoted
    assert str(refused.sqlstate) in ours.message


def test_a_trigger_of_its_own_class_is_named_as_the_one_who_refuses() -> None:
    ours = translated(_Refused("MY001", context=_IN_A_TRIGGER))
    assert not isinstance(ours, StoreRefuses | Unavailable)
    assert "a trigger" in (ours.hint or "")


def test_who_may_not_log_in_is_no_server_that_is_away() -> None:
    refused = psycopg.OperationalError('connection failed: FATAL:  role "a" is not permitted to log in')
    assert not isinstance(translated(refused), Unavailable)
