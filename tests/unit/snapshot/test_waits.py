"""Which tables wait, and what is said of it."""

from cdc.model.table import TableName
from snapshot.waits import SAID_AFTER_S, Waits
from tests.edges import Time

A, B = TableName("public", "a"), TableName("public", "b")


def test_a_table_waits_until_its_time_has_come_and_the_others_dont() -> None:
    clock = Time()
    waits = Waits(lambda: clock.now_s, lambda _: None)
    assert not waits
    waits.later(A, 5)
    assert waits
    assert waits.for_table(A)
    assert not waits.for_table(B)
    clock.pass_by(5)
    assert not waits.for_table(A)
    assert not waits


def test_a_long_wait_is_told_once_in_a_while() -> None:
    clock = Time()
    said: list[str] = []
    waits = Waits(lambda: clock.now_s, said.append)
    for _ in range(13):
        waits.later(A, 5, "it is locked")
        clock.pass_by(10)
    assert said == ["public.a: a copy waits: it is locked"]
    waits.over(A)
    clock.pass_by(SAID_AFTER_S)
    waits.later(A, 5, "it is locked")
    assert len(said) == 1
