"""Whatever bytes come, the decoder gives a message or MalformedMessage; what it gives is what was sent."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.errors import MalformedMessage
from cdc.model.lsn import Lsn
from cdc.model.table import ReplicaIdentity
from cdc.protocol.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    FullImage,
    Insert,
    KeyImage,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    RelationColumn,
    StreamAbort,
    Truncate,
    Type,
    Update,
    decode,
)
from tests.corpus.record import CORPUS
from tests.wal import encode

lsns = st.integers(0, 2**64 - 1).map(Lsn)
times = st.integers(-(2**63), 2**63 - 1)
ids = st.integers(0, 2**32 - 1)
texts = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)
names = texts.filter(bool)
rows = st.lists(st.none() | st.just(UNCHANGED) | st.binary(max_size=12), max_size=6).map(tuple)
old_images = st.builds(KeyImage, rows) | st.builds(FullImage, rows)
relation_columns = st.builds(RelationColumn, names, ids, st.integers(-(2**31), 2**31 - 1), in_identity=st.booleans())

messages = st.one_of(
    st.builds(Begin, lsns, times, ids),
    st.builds(Commit, lsns, lsns, times),
    st.builds(Origin, lsns, texts),
    st.builds(
        Relation, ids, names, names, st.sampled_from(ReplicaIdentity), st.lists(relation_columns, max_size=4).map(tuple)
    ),
    st.builds(Type, ids, names, texts),
    st.builds(Insert, ids, rows),
    st.builds(Update, ids, st.none() | old_images, rows),
    st.builds(Delete, ids, old_images),
    st.builds(Truncate, st.lists(ids, max_size=4).map(tuple), cascade=st.booleans(), restart_identity=st.booleans()),
    st.builds(LogicalMessage, st.booleans(), lsns, texts, st.binary(max_size=20)),
    st.builds(StreamAbort, ids, ids),
)

recorded = st.sampled_from([path.read_bytes() for path in sorted(CORPUS.glob("*.bin"))])


@given(messages)
def test_every_message_is_decoded_as_it_was_sent(message: Message) -> None:
    assert message == decode(encode(message))


@given(messages, st.data())
def test_a_cut_message_is_malformed(message: Message, data: st.DataObject) -> None:
    whole = encode(message)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(MalformedMessage):
        decode(cut)


@given(messages, st.binary(min_size=1, max_size=8))
def test_a_message_with_more_after_it_is_malformed(message: Message, more: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(encode(message) + more)


@given(
    st.binary(max_size=80)
    | st.tuples(st.sampled_from(b"BCORYIUDTMSEcA"), st.binary(max_size=80)).map(lambda m: bytes([m[0]]) + m[1])
)
def test_random_bytes_are_a_message_or_malformed(content: bytes) -> None:
    with suppress(MalformedMessage):
        assert encode(decode(content))[:1] == content[:1]


@given(recorded, st.data())
def test_flipped_bytes_of_real_messages_are_a_message_or_malformed(message: bytes, data: st.DataObject) -> None:
    damaged = bytearray(message)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(MalformedMessage):
        assert encode(decode(bytes(damaged)))[:1] == damaged[:1]
