"""extensions.searches.topic: records as they are read again."""

import orjson
import pytest

from cdc.model.errors import ForeignRecord
from extensions.searches.matches import Reported
from extensions.searches.topic import Match


@pytest.mark.parametrize("identity", [b'{"_id":"42"}', b'{"_id":"4/2","routing":"7"}'])
@pytest.mark.parametrize("matches", [True, False])
def test_a_record_is_read_as_it_was_written(identity: bytes, matches: bool) -> None:
    match = Match("search", "bern", "public.profile", identity, {"id": 42}, Reported(matches, "0" * 28))
    assert Match.from_bytes(match.to_bytes(), "it") == match


def test_its_key_tells_sink_search_table_and_document() -> None:
    match = Match("search", "bern", "public.profile", b'{"_id":"42"}', {"id": 42}, Reported(True, "0" * 28))
    wanted = {"sink": "search", "search": "bern", "table": "public.profile", "id": "42"}
    assert orjson.loads(match.record_key()) == wanted


@pytest.mark.parametrize("value", [b"", b"[]", b'{"format":4}', b'{"format":4,"sink":1}'])
def test_what_others_wrote_is_told_apart(value: bytes) -> None:
    with pytest.raises(ForeignRecord):
        Match.from_bytes(value, "the record")
