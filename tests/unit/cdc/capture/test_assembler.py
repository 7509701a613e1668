"""Messages become events: tags, keys, old rows, and everything that has to stop the run instead."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from cdc.capture.assembler import Assembler
from cdc.capture.published_table import PublishedTable
from cdc.capture.questions import Event, LeftUnread, NeedLargeValues, PassedOver
from cdc.capture.transaction_events import NULL
from cdc.event_format.encode import event_value
from cdc.event_format.messages import MessageChannel
from cdc.model.errors import LockstepError, UnsupportedChange
from cdc.model.lsn import Lsn
from cdc.model.table import ReplicaIdentity, Table, TableName
from cdc.model.tag import Tag, tag_prefix
from cdc.protocol.control_records import PublishedPart, SchemaRecord, ShapeChange, StreamedTransaction
from cdc.protocol.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    FullImage,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    StreamAbort,
    Truncate,
    Type,
)
from cdc.toast.memory import MemoryStore
from cdc.toast.rule import ColumnFacts, ToastRule
from tests.builders import column, table
from tests.history import EPOCH, Answers, assembler, copied, events, fed, published, relations, state
from tests.wal import (
    COMMIT_TIME_MS,
    COMMIT_TIME_US,
    HANDOFF,
    RELATION_ID,
    History,
    delete,
    insert,
    relation,
    update,
    with_identity,
)

FULL = table(identity="f")
ITEMS = table(
    column("order_id", "int8"), column("place", "int4"), name=TableName("public", "items"), key=("order_id", "place")
)
FIRST = HANDOFF + 0x1000
"""Where the first transaction of a history commits."""


def parsed(event: Event) -> dict[str, Any]:
    """An event without what doesn't matter to the test: op, key, tag's seq, before and after."""
    _, key, value, tombstone_tag = event
    if value is None:
        assert tombstone_tag is not None
        return {"key": json.loads(key), "tombstone": Tag.parse(tombstone_tag.decode()).seq}
    envelope = json.loads(value)
    tag = Tag.parse(envelope["tag"])
    return {"op": envelope["op"], "key": json.loads(key), "seq": tag.seq} | {
        name: envelope[name] for name in ("before", "after") if envelope[name] is not None
    }


def of_one_transaction(*body: Message, shape: Any = None) -> list[dict[str, Any]]:
    shapes = [shape or table()]
    follower = assembler(*shapes)
    return [parsed(event) for event in events(follower, History(body).messages(*relations(*shapes)))]


def test_inserts_updates_and_deletes_are_events_and_a_delete_is_a_tombstone_of_the_same_tag_too() -> None:
    assert of_one_transaction(insert(b"1", b"x"), update(b"1", b"y"), delete(b"1", None)) == [
        {"op": "c", "key": {"id": 1}, "seq": 1, "after": {"id": 1, "note": "x"}},
        {"op": "u", "key": {"id": 1}, "seq": 2, "after": {"id": 1, "note": "y"}},
        {"op": "d", "key": {"id": 1}, "seq": 3, "before": {"id": 1}},
        {"key": {"id": 1}, "tombstone": 3},
    ]


def test_the_old_row_of_an_update_and_of_a_delete_is_its_before() -> None:
    removal = type(delete())(RELATION_ID, FullImage((b"1", b"new")))
    changed, deleted, _ = of_one_transaction(update(b"1", b"new", full=(b"1", b"old")), removal, shape=FULL)
    assert changed["before"] == {"id": 1, "note": "old"}
    assert deleted["before"] == {"id": 1, "note": "new"}


def test_a_key_change_is_a_delete_with_tombstone_and_a_create_with_consecutive_seq() -> None:
    assert of_one_transaction(update(b"2", b"x", key=(b"1", None))) == [
        {"op": "d", "key": {"id": 1}, "seq": 1, "before": {"id": 1}},
        {"key": {"id": 1}, "tombstone": 1},
        {"op": "c", "key": {"id": 2}, "seq": 2, "after": {"id": 2, "note": "x"}},
    ]


def test_seq_starts_again_with_each_transaction_and_the_source_block_is_of_its_own() -> None:
    history = History([insert(b"1", b"x"), insert(b"2", b"x")], [insert(b"3", b"x")])
    messages = history.messages(*relations())
    envelopes = [json.loads(event[2] or b"") for event in events(assembler(), messages)]
    commits = ((FIRST, 1), (FIRST, 2), (FIRST + 0x1000, 1))
    assert [envelope["tag"] for envelope in envelopes] == [str(Tag(EPOCH, lsn, seq)) for lsn, seq in commits]
    sources = [envelope["source"] for envelope in envelopes]
    assert [source["txId"] for source in sources] == [700, 700, 701]
    assert [source["lsn"] for source in sources] == [lsn for lsn, message in messages if isinstance(message, Insert)]
    assert (envelopes[0]["ts_ms"], sources[0]["ts_ms"]) == (COMMIT_TIME_MS, COMMIT_TIME_MS)


def test_two_tables_share_the_numbers_of_their_transaction() -> None:
    shapes = (table(), ITEMS)
    history = History([insert(b"1", b"x"), insert(b"1", b"7", of=RELATION_ID + 1), update(b"1", b"y")])
    published = events(assembler(*shapes), history.messages(*relations(*shapes)))
    assert [(event[0], parsed(event)["seq"]) for event in published] == [
        ("shop.public.orders", 1),
        ("shop.public.items", 2),
        ("shop.public.orders", 3),
    ]


def test_an_unchanged_large_value_comes_from_the_old_row() -> None:
    (event,) = of_one_transaction(update(b"1", UNCHANGED, full=(b"1", b"large")), shape=FULL)
    assert event["after"] == {"id": 1, "note": "large"}


def test_an_unchanged_value_that_the_old_row_lacks_is_not_null() -> None:
    """A null is never left out: the old row is of a partition that has less of it than the table says."""
    follower = assembler(FULL)
    published = events(follower, History([update(b"1", UNCHANGED, full=(b"1", None))]).messages(*relations(FULL)))
    assert published == []
    assert list(follower.relations.passed_over) == [FULL.name]


@pytest.mark.parametrize("key", [None, (b"2", None)], ids=["same key", "another key"])
def test_a_table_whose_row_nobody_can_complete_is_passed_over_from_there(key: Any) -> None:
    follower = assembler()
    body = [insert(b"5", b"x"), update(b"1", UNCHANGED, key=key), insert(b"6", b"y")]
    published = events(follower, History(body).messages(*relations()))
    assert [parsed(event)["key"]["id"] for event in published] == [5]
    assert (list(follower.relations.tables), list(follower.relations.passed_over)) == ([], [table().name])


_CHANGES_OF_ORDERS = {
    "insert": insert(b"9", b"y"),
    "update": update(b"9", b"z"),
    "another key": update(b"9", b"z", key=(b"8", None)),
    "a key that is the same": update(b"9", b"z", key=(b"9", None)),
    "delete": delete(b"9", None),
    "truncate": Truncate((RELATION_ID,), cascade=False, restart_identity=False),
}


@pytest.mark.parametrize("counted", _CHANGES_OF_ORDERS)
@pytest.mark.parametrize("key", [None, (b"2", None)], ids=["same key", "another key"])
def test_changes_that_are_passed_over_take_the_same_numbers(counted: str, key: Any) -> None:
    """Else a restart in the middle of the transaction would skip a change of another table, or repeat one."""
    change, items = _CHANGES_OF_ORDERS[counted], insert(b"1", b"7", of=RELATION_ID + 1)
    body = [change, items, update(b"1", UNCHANGED, key=key), items, change, items]
    messages: list[tuple[int, Message]] = [(0, described) for described in relations(table(), ITEMS)]
    messages += History(body).messages()
    answers = Answers(log=Log())
    whole = [event for event in events(assembler(table(), ITEMS), messages, answers) if event[0].endswith("items")]
    assert len(whole) == 3
    for ended in range(len(messages)):
        first = assembler(table(), ITEMS)
        begun = [event for event in events(first, messages[:ended], answers) if event[0].endswith("items")]
        shapes, tables = published(table(), ITEMS), first.relations.tables
        commit_lsn, seq = first.progress.position
        again = assembler(
            tables={name: shape for name, shape in shapes.items() if name in tables},
            passed_over={name: shape for name, shape in shapes.items() if name not in tables},
            at=state(commit_lsn=commit_lsn, seq=seq),
        )
        rest = [event for event in events(again, messages, answers) if event[0].endswith("items")]
        assert [event[2] for event in (*begun, *rest)] == [event[2] for event in whole]


def test_a_rewritten_table_is_not_completed_from_what_was_known_before() -> None:
    orders, memory = with_rule(), Memory()
    memory.put(orders.topic, b'{"id":1}', {orders.table.columns[1].identity: b'"older"'})
    for outdated, count in (((), 1), ((orders.table.name,), 0)):
        follower = assembler(tables={orders.table.name: orders}, outdated=outdated, memory=memory)
        assert len(events(follower, History([update(b"1", UNCHANGED)]).messages(*relations()))) == count


def test_a_row_that_an_update_brings_in_without_all_of_its_values_has_its_table_copied() -> None:
    """That is what an update is sent as after which the row fulfils the publication's filter."""
    follower = assembler()
    assert events(follower, History([insert(b"1", UNCHANGED)]).messages(*relations())) == []
    assert list(follower.relations.passed_over) == [table().name]


def test_a_row_of_a_table_that_is_being_copied_is_left_to_its_copy() -> None:
    """Both of its keys, where the update moves it."""
    orders, answers = with_rule(), Answers()
    follower = assembler(tables={orders.table.name: orders}, copying=[orders.table.name])
    messages = History([update(b"1", UNCHANGED, key=(b"2", None)), insert(b"3", b"x")]).messages(*relations())
    assert [parsed(event)["seq"] for event in events(follower, messages, answers)] == [3]
    keys = [b'{"id":1}', b'{"id":2}']
    assert answers.asked[-1] == LeftUnread(orders.topic, keys)
    assert {name: list(unread) for name, unread in follower.rows.unread.items()} == {orders.table.name: keys}


def test_large_values_that_the_memory_lacks_are_asked_for_at_the_last_position() -> None:
    orders, answers = with_rule(), Answers()
    follower = assembler(tables={orders.table.name: orders})
    messages = History([insert(b"3", b"x"), update(b"1", UNCHANGED)]).messages(*relations())
    assert [parsed(event)["key"]["id"] for event in events(follower, messages, answers)] == [3]
    asked, passed_over = answers.asked[-2:]
    assert asked == NeedLargeValues(orders, (FIRST, 1))
    assert isinstance(passed_over, PassedOver)
    assert "the large values of note untouched" in passed_over.why


def test_nothing_stays_known_of_rows_whose_new_shape_has_no_large_values() -> None:
    orders, memory = with_rule(), MemoryStore()
    memory.put(orders.topic, b'{"id":1}', {"note": b'"older"'})
    follower = assembler(tables={orders.table.name: orders}, memory=memory)
    messages = History([relation(WIDER), insert(b"2", b"y", b"z")]).messages()
    events(follower, messages, Answers(shapes=Adopting(WIDER)))
    assert not memory.may_have(orders.topic)


def test_nothing_stays_known_of_rows_that_came_whole_for_a_while() -> None:
    """A partition's replica identity changes without another shape of its table."""
    (plain,) = published(FULL).values()
    without, rule = PublishedTable(plain.topic, plain.encoder), with_rule().toast
    partial, again = (PublishedTable(plain.topic, plain.encoder, toast=rule) for _ in range(2))
    first, second = (letter * 5000 for letter in (b"v", b"w"))
    follower = assembler(tables={FULL.name: partial}, memory=MemoryStore())
    history = History(
        [insert(b"1", first)],
        [relation(FULL), update(b"1", second, full=(b"1", first))],
        [relation(FULL), update(b"1", UNCHANGED, full=(b"1", None))],
    )
    answers = Answers(shapes=InTurn(partial, without, again))
    told = [parsed(event)["after"]["note"] for event in events(follower, history.messages(relation(FULL)), answers)]
    assert told == [first.decode(), second.decode()]
    assert list(follower.relations.passed_over) == [FULL.name]


class InTurn:
    """Takes each description for the next of these."""

    def __init__(self, *shapes: PublishedTable) -> None:
        self._shapes = iter(shapes)

    def adopt(self, described: Relation, known: PublishedTable, xid: int | None = None) -> PublishedTable:
        return next(self._shapes)


class Log:
    """What a topic holds, in memory; remembers when it was asked."""

    def __init__(self, *keys: bytes, event: bytes | None = None) -> None:
        self._keys = keys
        self._event = event
        self.asked: list[str] = []

    def live_keys(self, topic: str) -> Iterator[bytes]:
        self.asked.append(topic)
        yield from self._keys

    def row_before(self, topic: str, key: bytes, prefix: bytes) -> bytes | None:
        self.asked.append(topic)
        return self._event if key in self._keys else None


TRUNCATE = Truncate((RELATION_ID, 99), cascade=False, restart_identity=False)


def of_a_log(log: Log, *body: Message, at: Any = None) -> list[dict[str, Any]]:
    described: list[tuple[int, Message]] = [(0, relation(ITEMS, 99)), (0, relation(table()))]
    messages = [*described, *History(body).messages()]
    return [parsed(event) for event in events(assembler(at=at), messages, Answers(log=log))]


def test_truncate_is_a_delete_of_every_live_key_with_one_tag() -> None:
    changes = of_a_log(Log(b'{"id":1}', b'{"id":2}'), insert(b"5", b"x"), TRUNCATE, insert(b"6", b"x"))
    assert [(change.get("op"), change["key"]["id"],
        change.get("seq", change.get("tombstone"))) for change in changes] == [
        ("c", 5, 1), ("d", 1, 2), (None, 1, 2), ("d", 2, 2), (None, 2, 2), ("c", 6, 3),
    ]  # fmt: skip


def test_a_truncate_that_was_published_is_not_repeated() -> None:
    log = Log(b'{"id":1}')
    changes = of_a_log(log, insert(b"5", b"x"), TRUNCATE, insert(b"6", b"x"), at=state(commit_lsn=FIRST, seq=2))
    assert ([change["key"]["id"] for change in changes], log.asked) == ([6], [])


def test_a_truncate_counts_only_after_its_last_delete() -> None:
    follower, answers = assembler(), Answers(log=Log(b'{"id":1}', b'{"id":2}'))
    events(follower, History([insert(b"5", b"x")]).messages(*relations())[:-1])
    seen = [follower.progress.position[1] for _ in fed(follower, TRUNCATE_ORDERS, answers=answers)]
    assert (seen, follower.progress.position[1]) == ([1, 1, 1, 1], 2)


def test_a_transaction_is_known_as_begun_by_the_deletes_of_a_truncate_alone() -> None:
    follower, answers = assembler(), Answers(log=Log(b'{"id":1}', b'{"id":2}'))
    events(follower, History([insert(b"5", b"x")], []).messages(*relations())[:-1])
    assert follower.progress.begun is None
    next(fed(follower, TRUNCATE_ORDERS, answers=answers))
    assert follower.progress.begun is not None
    assert follower.progress.position[0] < follower.progress.begun.commit_lsn == FIRST + 0x1000


TRUNCATE_ORDERS = Truncate((RELATION_ID,), cascade=False, restart_identity=False)


def test_messages_types_and_origins_are_no_changes() -> None:
    others = [LogicalMessage(True, Lsn(1), "p", b"c"), Type(90_000, "public", "mood"), Origin(Lsn(1), "elsewhere")]
    assert of_one_transaction(*others, insert(b"1", b"x"))[0]["seq"] == 1


def test_a_message_for_capture_itself_is_handed_over_and_never_published() -> None:
    got: list[bytes] = []
    channel = MessageChannel(("own", "p"), "messages", server="shop", database="app", version="1")
    follower, answers = assembler(notices=["own"], messages=channel), Answers(notices={"own": got.append})
    body = [LogicalMessage(True, Lsn(1), "own", b"one"), LogicalMessage(True, Lsn(2), "p", b"x"), insert(b"1", b"x")]
    outside = LogicalMessage(False, Lsn(FIRST + 0x1000), "own", b"two")
    published = events(follower, [*History(body).messages(*relations()), (0, outside)], answers)
    assert [topic for topic, *_ in published] == ["messages", "shop.public.orders"]
    assert [json.loads(value or b"")["tag"][-8:] for _, _, value, _ in published] == ["00000001", "00000002"]
    assert got == [b"one", b"two"]


def test_a_message_outside_comes_before_the_transaction_that_commits_where_it_ends() -> None:
    """Whoever dies between the two has published the message, and none of the rows."""
    channel = MessageChannel(("p",), "messages", server="shop", database="app", version="1")
    transaction = History([insert(b"1", b"x"), insert(b"2", b"x")]).messages(*relations())
    follower = assembler(messages=channel)
    ((_, _, message, _),) = fed(follower, LogicalMessage(False, Lsn(FIRST), "p", b"m"))
    commit_lsn, seq = follower.progress.position
    again = assembler(messages=channel, at=state(commit_lsn=commit_lsn, seq=seq))
    assert list(fed(again, LogicalMessage(False, Lsn(FIRST), "p", b"m"))) == []
    for goes_on in (follower, again):
        published = [value for _, _, value, _ in events(goes_on, transaction)]
        tags = [json.loads(value or b"")["tag"] for value in (message, *published)]
        assert len(published) == 2
        assert tags == sorted(set(tags))


class Adopting:
    """Takes every description for what it says; types are those of the tests' columns."""

    def __init__(self, *shapes: Table, rewritten: str = "") -> None:
        self._shapes = {shape.columns: shape for shape in shapes}
        self._rewritten = rewritten

    def adopt(self, described: Relation, known: PublishedTable, xid: int | None = None) -> PublishedTable:
        names = [column.name for column in described.columns]
        for shape in self._shapes.values():
            if [column.name for column in shape.columns] == names and shape != known.table:
                adopted = PublishedTable(known.topic, known.encoder.of(shape))
                adopted.unrecorded = SchemaRecord(shape, 0, ShapeChange(rewritten=self._rewritten))
                return adopted
        return known


WIDER = table(column("id", "int8"), column("note"), column("more"))


def test_a_new_shape_is_recorded_with_the_commit_of_its_first_row() -> None:
    follower = assembler()
    messages = History([insert(b"1", b"x"), relation(WIDER), insert(b"2", b"y", b"z")]).messages(relation(table()))
    first, second = events(follower, messages, Answers(shapes=Adopting(WIDER)))
    assert [record.from_lsn for record in follower.relations.new_shapes] == [FIRST]
    assert [json.loads(event[2] or b"")["source"]["schema_id"] for event in (first, second)] == [
        table().schema_id,
        WIDER.schema_id,
    ]


def test_an_old_shape_that_is_seen_again_after_a_restart_is_not_recorded() -> None:
    body = [insert(b"1", b"x"), relation(WIDER), insert(b"2", b"y", b"z"), insert(b"3", b"y", b"z")]
    follower = assembler(WIDER, at=state(commit_lsn=FIRST, seq=2))
    answers = Answers(shapes=Adopting(table(), WIDER))
    published = events(follower, History(body).messages(relation(table())), answers)
    assert (len(published), follower.relations.new_shapes) == (1, [])


def test_a_table_that_took_the_place_of_another_is_followed_alone_from_its_copy_on() -> None:
    """The one before lives on under another name, or its number is another table's on another server."""
    shape = replace(table(), oid=RELATION_ID)
    follower = assembler(shape)
    (newest,) = published(replace(shape, oid=RELATION_ID + 1)).values()
    copied(follower, newest)
    before = replace(relation(shape), name="orders_old")
    assert events(follower, History([delete(b"1", None)]).messages(before)) == []


OLD, NEW = RELATION_ID, RELATION_ID + 5
SWAPPED = replace(table(), oid=NEW)
_OUT_OF_THE_NAME = replace(relation(table(), OLD), name="orders_old")


def _swapped(*body: Message) -> list[tuple[int, Message]]:
    """``orders`` got another name, and another relation is ``orders``; then come these changes, in one transaction."""
    described: list[tuple[int, Message]] = [(0, _OUT_OF_THE_NAME), (0, relation(SWAPPED, NEW))]
    return [*described, (0, relation(ITEMS, RELATION_ID + 1)), *History(body).messages()]


def test_of_two_relations_that_had_one_name_the_newer_one_is_the_table() -> None:
    follower, answers = assembler(replace(table(), oid=OLD)), Answers(shapes=Adopting(SWAPPED))
    body = [insert(b"1", b"new", of=NEW), delete(b"1", None, of=OLD), insert(b"2", b"old", of=OLD)]
    published = events(follower, _swapped(*body, insert(b"3", b"new", of=NEW)), answers)
    assert [parsed(event)["key"]["id"] for event in published] == [1, 3]


class _LateKeys(Adopting):
    """Of tables whose keys are checked late."""

    def adopt(self, described: Relation, known: PublishedTable, xid: int | None = None) -> PublishedTable:
        adopted = super().adopt(described, known, xid)
        adopted.keys_can_swap = True
        return adopted


@pytest.mark.parametrize(
    "before",
    [insert(b"1", b"old", of=OLD), update(b"1", b"old", full=(b"1", b"x"), of=OLD)],
    ids=["inserted", "changed"],
)
def test_a_row_of_a_table_that_was_made_again_does_not_come_back_to_its_key(before: Message) -> None:
    """In the transaction that dropped it. Its columns are others, too."""
    again = replace(WIDER, oid=NEW, replica_identity=ReplicaIdentity.FULL)
    follower, answers = assembler(replace(FULL, oid=OLD)), Answers(shapes=_LateKeys(again))
    gone = Delete(NEW, FullImage((b"1", b"new", b"y")))
    body = [relation(FULL, OLD), before, relation(again, NEW), insert(b"1", b"new", b"y", of=NEW), gone]
    *_, deleted, tombstone = (parsed(event) for event in events(follower, History(body).messages(), answers))
    assert (deleted["op"], tombstone["tombstone"]) == ("d", 3)


_SHARED = replace(FULL, oid=OLD)
_SHARED_WIDER = replace(WIDER, oid=OLD, replica_identity=ReplicaIdentity.FULL)
_LEAVES = {
    "deleted": Delete(OLD, FullImage((b"1", b"new", b"y"))),
    "moved": update(b"2", b"new", b"y", full=(b"1", b"new", b"y"), of=OLD),
}


@pytest.mark.parametrize("leaves", _LEAVES.values(), ids=_LEAVES)
@pytest.mark.parametrize("shape", [_SHARED, _SHARED_WIDER], ids=["before", "now"])
def test_a_row_that_stays_at_a_shared_key_is_published_only_in_its_own_shape(shape: Table, leaves: Message) -> None:
    """Its event on the topic lacks a column that the table got since, so the table is copied."""
    (encoder,) = (each.encoder for each in published(shape).values())
    row = encoder.row((b"1", b"x", b"z")[: len(shape.columns)])
    source = encoder.source(commit_time_ms=1, xid=1)
    log = Log(b'{"id":1}', event=event_value(b"c", tag_prefix(EPOCH, FIRST - 8), 1, NULL, row, source, FIRST - 8, 1))
    follower, answers = assembler(_SHARED), Answers(shapes=_LateKeys(_SHARED_WIDER), log=log)
    body = [insert(b"1", b"new", b"y", of=OLD), leaves, insert(b"3", b"x", b"z", of=OLD)]
    messages = History(body).messages(relation(_SHARED_WIDER, OLD))
    _, *rest = (parsed(event) for event in events(follower, messages, answers))
    if shape is _SHARED:
        assert (rest, list(follower.relations.passed_over)) == ([], [shape.name])
    else:
        assert (rest[0]["op"], rest[0]["after"]) == ("u", {"id": 1, "note": "x", "more": "z"})
        assert rest[-1]["key"] == {"id": 3}


@pytest.mark.parametrize("leaves", _LEAVES.values(), ids=_LEAVES)
def test_a_row_of_before_an_alteration_in_the_same_transaction_is_read_again(leaves: Message) -> None:
    """Also if the transaction comes again after a restart in its middle."""
    body = [
        relation(_SHARED, OLD),
        insert(b"1", b"old", of=OLD),
        relation(_SHARED_WIDER, OLD),
        insert(b"1", b"new", b"y", of=OLD),
        leaves,
        insert(b"1", b"7", of=RELATION_ID + 9),
    ]
    messages = History(body).messages(relation(ITEMS, RELATION_ID + 9))
    answers = Answers(shapes=_LateKeys(_SHARED, _SHARED_WIDER))
    first = assembler(_SHARED, ITEMS)
    whole = events(first, messages, answers)
    assert [(parsed(event)["op"], parsed(event)["key"].get("id")) for event in whole] == [
        ("c", 1),
        ("c", 1),
        ("c", None),
    ]
    assert list(first.relations.passed_over) == [_SHARED.name]
    commit_lsn, seq = first.progress.position
    again = assembler(_SHARED, ITEMS, at=state(commit_lsn=commit_lsn, seq=seq))
    assert events(again, messages, answers) == []


def test_the_relation_that_had_a_tables_name_is_left_out_after_the_copy_of_the_other_one() -> None:
    follower, answers = assembler(replace(table(), oid=OLD)), Answers(shapes=Adopting(SWAPPED))
    (newest,) = published(SWAPPED).values()
    copied(follower, newest)
    assert events(follower, _swapped(delete(b"1", None, of=OLD)), answers) == []


@pytest.mark.parametrize("key", [None, (b"2", None)], ids=["same key", "another key"])
def test_a_restart_counts_the_relation_that_had_a_tables_name(key: Any) -> None:
    """Else it would skip a change of another table, or repeat one."""
    items = insert(b"1", b"7", of=RELATION_ID + 1)
    old = update(b"1", b"x", key=key, of=OLD)
    messages = _swapped(old, items, insert(b"1", b"new", of=NEW), old, items)
    was = replace(table(), oid=OLD)
    answers = Answers(shapes=Adopting(SWAPPED))
    whole = events(assembler(was, ITEMS), messages, answers)
    for ended in range(len(messages)):
        first = assembler(was, ITEMS)
        begun = events(first, messages[:ended], answers)
        newest = first.relations.tables[was.name].table
        former = {OLD: published(was)[was.name]} if newest.oid == NEW else {}
        at = state(commit_lsn=first.progress.position[0], seq=first.progress.position[1])
        again = assembler(newest, ITEMS, at=at, former=former)
        assert [event[2] for event in (*begun, *events(again, messages, answers))] == [event[2] for event in whole]


def test_a_table_that_is_copied_later_is_captured_from_there() -> None:
    follower = assembler()
    items = relation(ITEMS, RELATION_ID + 1)
    history = History([insert(b"1", b"7", of=RELATION_ID + 1)], [insert(b"1", b"8", of=RELATION_ID + 1)])
    messages = history.messages(items)
    assert events(follower, messages[:4]) == []
    (later,) = published(replace(ITEMS, oid=RELATION_ID + 1)).values()
    copied(follower, later)
    assert len(events(follower, messages[4:])) == 1


@pytest.mark.parametrize("change", [update(b"1", b"y"), delete(None, b"x")], ids=["update", "delete"])
@pytest.mark.parametrize("identity", ["n", "i"])
def test_a_change_without_its_key_stops_the_run(identity: str, change: Message) -> None:
    described = with_identity(relation(table(column("code"), column("note"), key=("note",))), identity)
    shape = table(key=("id",), identity=identity)
    with pytest.raises(UnsupportedChange, match=r"doesn't deliver its key \(id\)"):
        events(assembler(shape), History([change]).messages(described))


class Memory(dict[tuple[str, bytes], Mapping[str, bytes]]):
    """Large values in a dict."""

    def get(self, topic: str, key: bytes) -> Any:  # type: ignore[override]
        return dict.get(self, (topic, key))

    def put(self, topic: str, key: bytes, values: Mapping[str, bytes]) -> None:
        self[topic, key] = values

    def forget(self, topic: str, key: bytes) -> None:
        self.pop((topic, key), None)


def with_rule() -> PublishedTable:
    """``public.orders``, whose notes may be out of line."""
    (plain,) = published().values()
    facts = [ColumnFacts("id", "int8", 8, "d"), ColumnFacts("note", "text", -1, "i")]
    return PublishedTable(plain.topic, plain.encoder, toast=ToastRule(facts, attributes=2))


def test_messages_in_an_order_that_makes_no_sense_stop_the_run() -> None:
    begin, commit = Begin(Lsn(FIRST), COMMIT_TIME_US, 1), Commit(Lsn(FIRST + 8), Lsn(FIRST + 16), COMMIT_TIME_US)
    follower = assembler()
    list(fed(follower, relation(table())))
    for message, why in ((insert(b"1", b"x"), "outside of a transaction"), (commit, "didn't begin")):
        with pytest.raises(LockstepError, match=why):
            follower.feed(message, 0)
    follower.feed(begin, 0)
    for again, why in ((begin, "inside another"), (commit, "didn't begin")):
        with pytest.raises(LockstepError, match=why):
            follower.feed(again, 0)


@pytest.mark.parametrize(
    "change",
    [
        insert(b"1"),
        insert(),
        insert(b"1", b"x", b"y"),
        update(b"1"),
        update(b"1", b"x", key=()),
        update(b"1", b"x", full=(b"1",)),
        update(b"1", UNCHANGED, full=(b"1",)),
        delete(),
    ],
    ids=str,
)
def test_a_row_with_another_number_of_values_stops_the_run(change: Message) -> None:
    with pytest.raises(LockstepError):
        of_one_transaction(change)


def test_a_row_that_is_not_utf8_stops_the_run_without_showing_it() -> None:
    with pytest.raises(UnsupportedChange, match="can't be encoded") as caught:
        of_one_transaction(insert(b"1", b"secret\xff"))
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("body", [[insert(b"1", b"x")], [LogicalMessage(True, Lsn(1), "lockstep.heartbeat", b"")]])
def test_only_a_complete_transaction_moves_the_end(body: list[Message]) -> None:
    follower = assembler()
    *before, commit = History(body).messages(*relations())
    events(follower, before)
    assert (follower.progress.in_transaction, follower.progress.end_lsn) == (True, HANDOFF)
    events(follower, [commit])
    assert (follower.progress.end_lsn, follower.progress.commit_time_ms) == (FIRST + 0x30, COMMIT_TIME_MS)


def test_a_transaction_that_commits_exactly_at_the_handoff_is_published() -> None:
    history = History([insert(b"1", b"x")], first_commit_lsn=HANDOFF)
    (event,) = events(assembler(), history.messages(*relations()))
    assert json.loads(event[2] or b"")["tag"] == str(Tag(EPOCH, HANDOFF, 1))


LONG = History(
    [insert(b"1", b"a"), update(b"2", b"a", key=(b"1", None)), delete(b"9", None)],
    [LogicalMessage(True, Lsn(1), "lockstep.heartbeat", b"")],
    [insert(b"3", b"b"), update(b"3", b"c"), insert(b"1", b"7", of=RELATION_ID + 1)],
    [update(b"1", b"8", key=(b"1", b"7"), of=RELATION_ID + 1), delete(b"3", None)],
)
SHAPES = (table(), ITEMS)


def every_position() -> list[tuple[int, int, int, list[Event]]]:
    """(commit LSN, seq, end LSN, remaining events) after each change of LONG and before the first."""
    follower = assembler(*SHAPES)
    steps: list[tuple[int, int, int, list[Event]]] = [(HANDOFF, 0, HANDOFF, [])]
    for lsn, message in LONG.messages(*relations(*SHAPES)):
        pieces = list(fed(follower, message, lsn))
        for step in steps:
            step[3].extend(pieces)
        steps.append((*follower.progress.position, follower.progress.end_lsn, []))
    return steps


@pytest.mark.parametrize("step", every_position(), ids=lambda step: f"{step[0]:x}-{step[1]}-{step[2]:x}")
def test_a_restart_anywhere_gives_exactly_the_remaining_events(step: tuple[int, int, int, list[Event]]) -> None:
    commit_lsn, seq, end_lsn, remaining = step
    restarted: Assembler = assembler(*SHAPES, at=state(commit_lsn=commit_lsn, seq=seq, end_lsn=end_lsn))
    assert events(restarted, LONG.messages(*relations(*SHAPES), at=end_lsn)) == remaining


@pytest.mark.parametrize(("note", "kept"), [(b"x" * 50, b'"' + b"x" * 50 + b'"'), (b"short", None), (None, None)])
def test_of_a_row_that_was_read_whatever_may_be_out_of_line_is_remembered(
    note: bytes | None, kept: bytes | None
) -> None:
    memory, orders = Memory(), with_rule()
    memory.put(orders.topic, b'{"id":1}', {"note": b'"older"'})
    assembler(memory=memory).rows.toast.remember_read(orders, b'{"id":1}', (b"1", note))
    assert memory.get(orders.topic, b'{"id":1}') == (None if kept is None else {"note": kept})


def test_of_a_transaction_that_was_published_to_its_end_nothing_is_published_again() -> None:
    """A table that was copied since is counted now, so its changes would have other numbers."""
    history = History([insert(b"1", b"x"), insert(b"1", b"7", of=RELATION_ID + 1), insert(b"2", b"y")])
    messages = history.messages(*relations(*SHAPES))
    first = assembler()
    assert len(events(first, messages)) == 2
    commit_lsn, seq = first.progress.position
    again = assembler(*SHAPES, at=state(commit_lsn=commit_lsn, seq=seq, end_lsn=first.progress.end_lsn))
    assert events(again, messages) == []
    assert (again.progress.position, again.progress.end_lsn) == (first.progress.position, first.progress.end_lsn)


def test_which_transaction_was_published_in_part_is_known_until_its_end() -> None:
    messages = History([insert(b"1", b"x")], [insert(b"2", b"y")]).messages(*relations())
    *before, _, row, commit = messages
    begin = messages[-3][1]
    assert isinstance(begin, Begin)
    identity = StreamedTransaction(begin.commit_lsn, begin.xid, begin.commit_time_us, only_local=False)
    first = assembler()
    events(first, before)
    assert first.progress.begun is None
    first.feed(begin, 0)
    assert first.progress.begun is None  # nothing of it is published yet
    events(first, [row])
    assert first.progress.begun == identity._replace(part=PublishedPart(1, 1))
    commit_lsn, seq = first.progress.position
    again = assembler(
        at=state(commit_lsn=commit_lsn, seq=seq, end_lsn=first.progress.end_lsn, begun=first.progress.begun)
    )
    events(again, before)
    assert again.progress.begun == first.progress.begun
    for goes_on in (first, again):
        events(goes_on, [commit] if goes_on is first else messages[-3:])
        assert goes_on.progress.begun is None


def test_a_transaction_without_rows_that_is_in_the_state_only_comes_again() -> None:
    """One that asks for a copy would be obeyed twice."""
    told: list[bool] = []
    asked = LogicalMessage(True, Lsn(1), "own", b"")
    history = History([insert(b"1", b"x")], [asked], [asked])
    first = assembler(notices=["own"])
    before_last = [message for message in history.messages(*relations()) if message[0] < FIRST + 0x1800]
    events(first, before_last, Answers(notices={"own": lambda _: None}))
    commit_lsn, seq = first.progress.position
    again = assembler(
        at=state(commit_lsn=commit_lsn, seq=seq, end_lsn=first.progress.end_lsn),
        notices=["own"],
    )
    answers = Answers(notices={"own": lambda _: told.append(again.progress.comes_again)})
    events(again, history.messages(*relations()), answers)
    assert told == [True, False]


def test_a_restart_between_the_two_halves_of_a_key_change_gives_the_second() -> None:
    begin = state(commit_lsn=FIRST, seq=1)
    history = History([update(b"2", b"x", key=(b"1", None))])
    published = events(assembler(at=begin), history.messages(*relations()))
    assert [parsed(event) for event in published] == [
        {"op": "c", "key": {"id": 2}, "seq": 2, "after": {"id": 2, "note": "x"}}
    ]


def test_the_end_of_a_subtransaction_of_which_no_part_was_asked_for_means_nothing() -> None:
    """PostgreSQL 18 was seen to send it, by others."""
    begin, shape, row, commit = History([insert(b"1", b"x")]).messages(*relations())
    stray = (row[0], StreamAbort(700, 701))
    assert len(events(assembler(), [begin, shape, stray, row, commit])) == 1


_PARTITION = replace(relation(table()), relation_id=77, name="part")


def _partitions_of(body: list[Message], *described: Relation) -> list[tuple[TableName, int]]:
    """The partitions that are told of while the stream describes these, and has these messages."""
    follower = assembler()
    begin, *rest = History(body).messages()
    events(follower, [begin, *((0, one) for one in described), *rest], Answers(log=Log()))
    return follower.relations.new_partitions


def test_a_table_that_is_truncated_beside_another_is_no_partition_of_it() -> None:
    (captured,) = relations()
    both = Truncate((RELATION_ID, 77), cascade=False, restart_identity=False)
    assert _partitions_of([both], captured, _PARTITION) == []
    other = Truncate((77,), cascade=False, restart_identity=False)
    assert _partitions_of([other], captured, _PARTITION) == []


def test_a_partition_is_of_the_table_as_which_its_rows_came() -> None:
    """Also where another relation has that one's name by the end of the transaction: names may be swapped back."""
    follower = assembler(replace(table(), oid=OLD))
    body = [
        relation(table(), OLD),
        _PARTITION,
        insert(b"1", b"x", of=OLD),
        relation(table(), NEW),
        insert(b"2", b"y", of=NEW),
    ]
    events(follower, History(body).messages(), Answers(shapes=Adopting(SWAPPED)))
    assert follower.relations.new_partitions == [(table().name, 77)]


def test_a_partition_is_not_told_of_again_when_its_transaction_comes_again() -> None:
    """The state had it, and may say something newer of the table by now: that it was copied."""
    follower = assembler(at=state(commit_lsn=FIRST, seq=1, end_lsn=FIRST + 0x30))
    events(follower, History([*relations(), _PARTITION, insert(b"1", b"x")]).messages())
    assert follower.relations.new_partitions == []
