"""Rows that change places: who has a key after one of them left it. A model with real rows is the judge."""

from hypothesis import given
from hypothesis import strategies as st

from cdc.capture.key_moves import KeyMoves
from cdc.protocol.pgoutput import UNCHANGED, Fields

T = "topic"


def row(*values: str) -> Fields:
    return tuple(value.encode() for value in values)


def test_rows_are_kept_where_it_is_said() -> None:
    kept: dict[bytes, bytes] = {}
    moves = KeyMoves(kept)
    moves.arrive(T, b"2", (b"2", None, UNCHANGED, b""))
    moves.arrive(T, b"2", row("2", "a", "", ""))
    assert len(kept) == 1
    assert moves.vacate(T, b"2", row("2", "a", "", "")) == (b"2", None, UNCHANGED, b"")
    moves.clear()
    assert kept == {}


def test_a_resident_that_was_changed_meanwhile_is_known() -> None:
    moves = KeyMoves()
    moves.arrive(T, b"2", row("2", "a"))
    moves.change(T, b"2", row("2", "b"), row("2", "c"))
    assert moves.vacate(T, b"2", row("2", "a")) == row("2", "c")


def test_a_row_is_the_same_after_its_table_has_changed_its_columns() -> None:
    moves = KeyMoves()
    moves.arrive(T, b"2", row("2", "gone", "a"))
    moves.reshape(T, [0, 2, None])
    assert moves.vacate(T, b"2", row("2", "a", "added")) is KeyMoves.UNKNOWN


def test_a_truncate_empties_one_table_in_one_transaction() -> None:
    moves = KeyMoves()
    moves.empty("other")
    moves.arrive(T, b"2", row("2", "a"))
    assert moves.vacate(T, b"2", row("2", "a")) is KeyMoves.UNKNOWN
    moves.empty(T)
    moves.clear()
    moves.arrive(T, b"2", row("2", "a"))
    assert moves.vacate(T, b"2", row("2", "a")) is KeyMoves.UNKNOWN


@given(
    st.lists(st.sampled_from("ab"), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.sampled_from("abc")), max_size=12),
)
def test_the_row_that_stays_is_the_one_that_is_there(contents: list[str], changes: list[tuple[int, int, str]]) -> None:
    """Rows move and change; whoever is said to have a key must be there, with that content."""
    rows = {number: (str(number), content) for number, content in enumerate(contents)}
    before = {key: row(key, content) for key, content in rows.values()}
    moves = KeyMoves()
    for which, to, content in changes:
        number = which % len(contents)
        old, new = rows[number], (str(to), content)
        rows[number] = new
        if old[0] == new[0]:
            moves.change(T, old[0].encode(), row(*old), row(*new))
            continue
        stays = moves.vacate(T, old[0].encode(), row(*old))
        there = [row(*values) for values in rows.values() if values[0] == old[0]]
        if stays is KeyMoves.UNKNOWN:
            stays = before.get(old[0])
        assert (stays in there) if there else (stays is None)
        moves.arrive(T, new[0].encode(), row(*new))
