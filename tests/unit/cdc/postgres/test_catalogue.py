"""Names of types, as shapes have them."""

import pytest

from cdc.postgres.catalogue import PgType, declared_type

TYPES = {oid: PgType(oid, name, "b", 0, 0, 0, ",") for oid, name in ((23, "int4"), (1083, "time"), (16400, "mood"))}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("integer", "integer"),
        ("numeric(10,2)", "numeric(10,2)"),
        ("public.mood", "mood"),
        ("public.mood[]", "mood[]"),
        ('public."Mood"', '"Mood"'),
        ("public.geometry(Point,4326)", "geometry(Point,4326)"),
        ("other.mood", "other.mood"),
        ("public.int4", "public.int4"),
        ("public.int4[]", "public.int4[]"),
        ('public."time"', 'public."time"'),
    ],
)
def test_types_in_public_go_by_their_names_as_they_did_with_public_in_the_search_path(text: str, name: str) -> None:
    assert declared_type(TYPES, text) == name
