"""Stop capture anywhere and start it again from what was committed: the log is the same, byte for byte."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from cdc.model.errors import Unavailable
from cdc.model.lsn import Lsn
from cdc.model.table import TableName
from cdc.protocol.pgoutput import LogicalMessage, Message
from tests.builders import column, table
from tests.edges import Capture
from tests.history import relations, state
from tests.wal import RELATION_ID, History, data_frame, delete, insert, update

ITEMS = table(column("id", "int8"), column("note"), name=TableName("public", "items"))
SHAPES = (table(), ITEMS)

ids = st.integers(1, 4).map(lambda number: str(number).encode())
notes = st.none() | st.sampled_from([b"a", b"b", b"x" * 300])
tables = st.sampled_from([RELATION_ID, RELATION_ID + 1])
changes: st.SearchStrategy[Message] = st.one_of(
    st.builds(insert, ids, notes, of=tables),
    st.builds(update, ids, notes, of=tables),
    st.builds(update, ids, notes, key=st.tuples(ids, st.none()), of=tables),
    st.builds(delete, ids, st.none(), of=tables),
    st.just(LogicalMessage(True, Lsn(1), "lockstep.heartbeat", b"")),
)
histories = st.lists(st.lists(changes, max_size=8), min_size=1, max_size=6).map(lambda bodies: History(*bodies))


@st.composite
def bursts(draw: st.DrawFn, frames: list[bytes]) -> list[list[bytes]]:
    """The same frames, as they may arrive."""
    cuts = sorted(draw(st.sets(st.integers(0, len(frames)), max_size=5)))
    return [frames[start:end] for start, end in zip([0, *cuts], [*cuts, len(frames)], strict=True)]


def frames_from(history: History, at: int) -> list[bytes]:
    return [data_frame(message, lsn) for lsn, message in history.messages(*relations(*SHAPES), at=at)]


@given(histories, st.data())
def test_a_run_that_is_cut_at_any_commit_goes_on_where_it_was(history: History, data: st.DataObject) -> None:
    whole = Capture(frames_from(history, 0), shapes=SHAPES).run().publisher.events
    position, log = state(), []
    for _ in range(data.draw(st.integers(1, 4))):
        crashing = Capture(
            *data.draw(bursts(frames_from(history, position.resume_lsn))),
            shapes=SHAPES,
            state=position,
            fail_at=data.draw(st.integers(0, 3)),
            durable=data.draw(st.booleans()),
            batch_rows=data.draw(st.integers(1, 5)),
        )
        with suppress(Unavailable):
            crashing.run()
        log += crashing.publisher.events
        position = crashing.publisher.states[-1] if crashing.publisher.states else position
    log += Capture(frames_from(history, position.resume_lsn), shapes=SHAPES, state=position).run().publisher.events
    assert log == whole


@given(histories, st.data())
def test_batches_of_any_size_hold_the_same_events(history: History, data: st.DataObject) -> None:
    frames = frames_from(history, 0)
    events = Capture(frames, shapes=SHAPES).run().publisher.events
    other = Capture(
        *data.draw(bursts(frames)),
        shapes=SHAPES,
        batch_rows=data.draw(st.integers(1, 5)),
        batch_bytes=data.draw(st.integers(1024, 2048)),
    ).run()
    assert other.publisher.events == events


@given(histories)
def test_tags_grow_along_the_stream(history: History) -> None:
    events = Capture(frames_from(history, 0), shapes=SHAPES).run().publisher.events
    tags = [value[17:45] if value is not None else tag for _, _, value, tag in events]
    assert tags == sorted(tags)  # type: ignore[type-var]  # every event has one
