"""sinks.memory: what the contract suite doesn't ask"""

import pytest

from cdc.model.errors import LockstepError
from sinks.memory import MemorySink, MemoryStore
from tests.builders import batch, table, upsert


def test_a_column_that_was_not_prepared_is_an_error() -> None:
    sink = MemorySink(MemoryStore(), 1)
    sink.prepare([table()])
    with pytest.raises(LockstepError, match="new column 'extra'"):
        sink.apply(batch(upsert({"id": 1, "note": "a", "extra": 1}, 1)))
