"""What becomes of a step that couldn't read its chunk."""

from types import SimpleNamespace
from typing import Any

import pytest

from cdc.model.table import TableName
from cdc.protocol.visibility import UnfinishedTransactions
from snapshot import chunk_session
from snapshot.chunk_reader import Locked
from snapshot.chunk_session import ChunkSession
from snapshot.chunked import ChunkedCopies
from snapshot.waits import Waits
from tests.edges import Time
from tests.history import state

T = TableName("public", "t")


class _LockedReader:
    """A source that has the table locked, and is asked about what is committed all the same."""

    is_closed = False

    def running_now(self) -> tuple[object, frozenset[int]]:
        return None, frozenset()

    def not_committing(self, _: object) -> set[int]:
        return set()

    def at_point(self, _: TableName) -> Any:
        raise Locked


def test_a_chunk_that_waits_for_a_lock_says_so_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else is looked at before each try, and succeeds."""
    said: list[str] = []
    clock = Time()
    for name in ("emit_heartbeat", "current_snapshot"):
        monkeypatch.setattr(chunk_session, name, lambda _: None)
    monkeypatch.setattr(UnfinishedTransactions, "all_seen_by", lambda *_: True)
    pipeline: Any = SimpleNamespace(
        snapshot=SimpleNamespace(rows_per_s=0),
        source=SimpleNamespace(table_names=[T], keyed_names=[T]),
    )
    stream: Any = SimpleNamespace(
        loop=SimpleNamespace(state=state().to_be_copied([T]), pause_after=lambda _: None),
        assembler=SimpleNamespace(relations=None),
        unfinished=UnfinishedTransactions(),
        watch=SimpleNamespace(only_leaves=lambda _: False),
    )
    nothing: Any = SimpleNamespace(tables=list)
    monkeypatch.setattr(chunk_session, "ChunkReader", lambda *_: _LockedReader())
    session = ChunkSession(pipeline, nothing, stream, say=said.append, while_waiting=lambda: None)
    session.waits = Waits(lambda: clock.now_s, said.append)
    copies = ChunkedCopies(session, nothing, publisher=None, copied=lambda _: None)
    for _ in range(8):
        assert copies.wants(stream.loop.state)
        assert copies.step(None) is not None
        assert not copies.wants(stream.loop.state)
        clock.pass_by(10)
    (sentence,) = said
    assert sentence.startswith("public.t: a copy waits: it is locked")
