"""jobs.streams.posted"""

import json

from jobs.streams.posted import Posted, posted_document


def document(generation: int, key: bytes = b'{"id":1}', row: bytes = b'{"id":1,"n":2}') -> dict[str, object]:
    found: dict[str, object] = json.loads(
        posted_document(pipeline="shop", query="recent", generation=generation, key=key, row=row)
    )
    return found


def test_a_row_has_the_same_id_in_every_build_and_another_row_has_another_one() -> None:
    first = document(1)
    assert first == {
        "id": first["id"], "pipeline": "shop", "stream_query": "recent", "generation": 1,
        "key": {"id": 1}, "row": {"id": 1, "n": 2},
    }  # fmt: skip
    assert document(2)["id"] == first["id"]
    assert document(1, key=b'{"id":2}')["id"] != first["id"]
    assert str(first["id"]).startswith("shop/recent/")


def test_how_far_rows_are_posted_is_read_as_it_was_written() -> None:
    at = Posted("topic", 7, 3, 2, 1_000, "down")
    assert Posted.parse(at.text()) == at
    assert Posted.parse(None) == Posted()
