"""Conditions over keys, with the operators of their own types."""

from cdc.postgres.key_types import KeyType, after_key

INT = KeyType("pg_catalog.int4", "operator(pg_catalog.=)", "operator(pg_catalog.>)")
CITEXT = KeyType("public.citext", "operator(public.=)", "operator(public.>)")


def test_columns_with_one_operator_are_compared_as_a_row() -> None:
    assert after_key(["a", "b"], [INT, INT], ["1", "2"]) == "(a, b) operator(pg_catalog.>) (1, 2)"


def test_columns_with_several_operators_are_compared_one_after_the_other() -> None:
    assert after_key(["a", "b", "c"], [INT, CITEXT, CITEXT], ["1", "'x'", "'y'"]) == (
        "(a operator(pg_catalog.>) 1 or a operator(pg_catalog.=) 1 and (b, c) operator(public.>) ('x', 'y'))"
    )
