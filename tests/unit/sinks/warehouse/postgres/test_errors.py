"""sinks.warehouse.postgres.errors: whose turn it is"""

import psycopg
import pytest

from cdc.model.errors import StoreRefuses, Unavailable
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


def test_what_a_trigger_says_is_left_out_since_it_may_quote_the_row() -> None:
    ours = translated(error("P0001"))
    assert "P0001" in ours.message
    assert "words of the server" not in str(ours)
    assert "a trigger" in (ours.hint or "")
    assert not is_of_a_row(error("P0001")), "nobody knows that it refuses only some rows"


def test_who_may_not_log_in_is_no_server_that_is_away() -> None:
    refused = psycopg.OperationalError('connection failed: FATAL:  role "a" is not permitted to log in')
    assert not isinstance(translated(refused), Unavailable)
