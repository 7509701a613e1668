"""The capture loop: when a batch ends, what its state says, and what may be confirmed when."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from cdc.capture.published_table import PublishedTable
from cdc.event_format.messages import MessageChannel
from cdc.model.errors import LockstepError, MalformedMessage, Unavailable
from cdc.model.lsn import Lsn
from cdc.model.table import TableName
from cdc.protocol.control_records import CaptureState, SchemaRecord, ShapeChange
from cdc.protocol.pgoutput import LogicalMessage, Relation, Truncate
from tests.builders import column, table
from tests.edges import STATUS_INTERVAL_S, Capture, Journal, Time, slowest_pace
from tests.history import published, relations, state
from tests.wal import HANDOFF, RELATION_ID, History, data_frame, insert, keepalive_frame, relation

FIRST = HANDOFF + 0x1000
FIRST_END = FIRST + 0x30
SECOND_END = FIRST_END + 0x1000
TRUNCATE = Truncate((RELATION_ID,), cascade=False, restart_identity=False)
FIVE_KEYS = SimpleNamespace(live_keys=lambda _: [b'{"id":%d}' % number for number in range(5)])
IDLE_FOR_25_S: list[list[bytes]] = [[] for _ in range(125)]
"""An empty burst lasts for two waits of a tenth of a second."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch is committed for its age."""
    monkeypatch.setattr("cdc.capture.batch.AGE_MAX_S", 3600.0)


def frames(*bodies: list[object]) -> list[bytes]:
    """The frames of a history of these transactions."""
    history = History(*bodies)  # type: ignore[arg-type]
    return [data_frame(message, lsn) for lsn, message in history.messages(*relations())]


def rows(count: int, note: bytes = b"x") -> list[object]:
    return [insert(str(number).encode(), note) for number in range(count)]


def committed_rows(capture: Capture) -> list[int]:
    return [len(batch) for batch in capture.publisher.batches]


@pytest.fixture(autouse=True, params=["off", "auto"])
def _both_encodings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop does the same with the compiled kernel and without it."""
    monkeypatch.setenv("LOCKSTEP_KERNEL", request.param)


def test_transactions_that_come_shortly_after_a_commit_are_one_batch() -> None:
    """Each burst lasts for two waits, so these come within the interval."""
    first, second, third = (frames(*[rows(1)] * 3)[n : n + m] for n, m in ((0, 4), (4, 3), (7, 3)))
    capture = Capture(first, second, third, pace=slowest_pace())
    capture.run(stopping=lambda: len(capture.reports) == 2)
    assert committed_rows(capture) == [1, 2]


def test_nothing_is_confirmed_before_it_is_committed() -> None:
    sent = frames(rows(2), rows(3))
    journal = Capture(sent[:5], sent[5:]).run().journal
    for index, (what, lsn) in enumerate(journal):
        end = {FIRST: FIRST_END, FIRST + 0x1000: SECOND_END}.get(lsn)
        assert what != "confirmed" or lsn == HANDOFF or ("committed", end) in journal[:index]


def test_what_is_confirmed_ends_where_the_last_transaction_commits() -> None:
    """So the next start gets that transaction again, and sees whether it is the one that was published."""
    sent = frames(rows(2), rows(3))
    journal = Capture(sent[:5], sent[5:]).run().journal
    assert sorted(set(journal.of("confirmed"))) == [FIRST, FIRST + 0x1000]


def test_an_idle_capture_tells_up_to_where_everything_is_in_kafka() -> None:
    wal_end = SECOND_END + 0x8000
    capture = Capture(frames(rows(2)), [keepalive_frame(wal_end)], *IDLE_FOR_25_S[:10]).run()
    assert capture.journal.of("complete")[-1] == wal_end
    assert capture.journal.of("confirmed")[-1] == FIRST, "PostgreSQL still has what the next start compares"
    told = capture.journal.of("complete")
    assert told.count(wal_end) <= 2, "once, and when it stops"


def test_what_waits_for_its_commit_is_not_told_to_be_in_kafka() -> None:
    """A keepalive that comes before the commit of what came before it."""
    sent = frames(rows(2))
    wal_end = FIRST_END + 0x8000
    capture = Capture([*sent[:3], keepalive_frame(wal_end)], [*sent[3:], keepalive_frame(wal_end)], []).run()
    for index, (what, lsn) in enumerate(capture.journal):
        assert what != "complete" or lsn <= FIRST or ("committed", FIRST_END) in capture.journal[:index]
    assert capture.journal.of("complete")[-1] == wal_end


def test_nothing_is_told_of_a_source_that_may_be_another_one() -> None:
    wal_end = FIRST + 0x8000
    capture = Capture([keepalive_frame(wal_end)], *IDLE_FOR_25_S[:10], is_resumed=False).run()
    assert wal_end not in capture.journal.of("complete")


@pytest.mark.parametrize("durable", [False, True], ids=["it failed", "nobody knows"])
def test_a_commit_that_fails_is_raised_and_confirms_nothing(durable: bool) -> None:
    capture = Capture(frames(rows(2)), fail_at=0, durable=durable)
    with pytest.raises(Unavailable):
        capture.run()
    assert set(capture.journal.of("confirmed")) <= {HANDOFF}


@pytest.mark.parametrize("asks", [True, False])
def test_a_keepalive_raises_what_was_received_and_never_what_is_confirmed(asks: bool) -> None:
    capture = Capture([keepalive_frame(HANDOFF + 0x8000, reply_requested=asks)], []).run()
    assert set(capture.journal.of("confirmed")) == {HANDOFF}
    assert capture.stream.received[0] == HANDOFF + 0x8000
    sent = frames(rows(2))
    capture = Capture([*sent[:3], keepalive_frame(HANDOFF + 0x8000, reply_requested=True), *sent[3:]]).run()
    assert capture.journal[0] == ("confirmed", HANDOFF), "in the middle of a transaction nothing of it"


def test_a_commit_after_a_keepalive_confirms_its_own_position_and_no_more() -> None:
    sent = frames(rows(2))
    capture = Capture([*sent[:3], keepalive_frame(HANDOFF + 0x8000), *sent[3:]]).run()
    assert set(capture.journal.of("confirmed")) == {FIRST}


def test_a_server_that_asks_without_end_shuts_down_and_is_left() -> None:
    """It would wait for ever: it wants all of its WAL confirmed, and only what Kafka has is."""
    asks = [keepalive_frame(HANDOFF + 8, reply_requested=True)]
    with pytest.raises(Unavailable, match="shuts down"):
        Capture(asks * 30).run()
    assert set(Capture([*asks * 10, *frames(rows(2)), *asks * 15]).run().journal.of("confirmed")) == {HANDOFF, FIRST}


def test_a_batch_of_as_many_rows_as_allowed_is_committed_inside_its_transaction_and_never_confirmed() -> None:
    capture = Capture(frames(rows(5)), batch_rows=2).run()
    assert capture.positions() == [(FIRST, 2, HANDOFF), (FIRST, 4, HANDOFF), (FIRST, 5, FIRST_END)]
    before_the_end = Journal(capture.journal[: capture.journal.index(("committed", FIRST_END))])
    assert before_the_end.of("confirmed") == [HANDOFF, HANDOFF]


def test_the_rest_of_a_transaction_keeps_the_end_of_the_one_before() -> None:
    capture = Capture(frames(rows(1), rows(3)), batch_rows=2).run()
    assert capture.positions() == [
        (FIRST + 0x1000, 1, FIRST_END),
        (FIRST + 0x1000, 3, FIRST_END),
        (FIRST + 0x1000, 3, SECOND_END),
    ]


def test_a_batch_of_as_many_bytes_as_allowed_is_committed() -> None:
    capture = Capture(frames(rows(4, b"x" * 600)), batch_bytes=1024).run()
    assert committed_rows(capture) == [2, 2, 0]


def test_a_batch_that_is_old_is_committed_under_a_backlog() -> None:
    time, sent = Time(), frames(rows(600))
    capture = Capture([*sent[:10], lambda: time.pass_by(0.6), *sent[10:]], time=time).run()
    assert len(capture.publisher.batches) == 2


@pytest.mark.usefixtures("patient")
def test_status_updates_go_out_under_a_backlog() -> None:
    time, sent = Time(), frames(rows(1100))
    capture = Capture([*sent[:600], lambda: time.pass_by(STATUS_INTERVAL_S), *sent[600:]], time=time).run()
    assert [what for what, _ in capture.journal].index("committed") == 2


def test_the_client_is_served_under_a_backlog() -> None:
    assert Capture(frames(rows(1100))).run().publisher.served == 2


def test_an_idle_stream_gets_status_updates_in_time() -> None:
    capture = Capture(*IDLE_FOR_25_S).run()
    assert len(capture.journal) == 4  # at once, after ten seconds, after twenty, and when it stops


def test_a_transaction_without_rows_moves_the_state_on() -> None:
    capture = Capture(frames([LogicalMessage(True, Lsn(1), "lockstep.heartbeat", b"")])).run()
    assert (committed_rows(capture), capture.positions()) == ([0], [(HANDOFF, 0, FIRST_END)])


def test_what_was_published_before_a_restart_is_not_sent_again() -> None:
    first = Capture(frames(rows(5)), batch_rows=2, fail_at=1)
    with pytest.raises(Unavailable):
        first.run()
    second = Capture(frames(rows(5)), state=first.publisher.states[-1]).run()
    assert committed_rows(second) == [3]


def test_stop_publishes_what_came_of_a_transaction() -> None:
    assert Capture(frames(rows(2))[:3]).run(stopping=lambda: True).positions() == [(FIRST, 1, HANDOFF)]
    capture = Capture(frames(rows(2))[:1]).run(stopping=lambda: True)
    assert (capture.positions(), capture.journal) == ([], [("confirmed", HANDOFF)])


def test_an_idle_database_gets_a_heartbeat_after_each_interval() -> None:
    capture = Capture(*IDLE_FOR_25_S, heartbeat_interval_s=10).run()
    assert [round(at - 5000) for at in capture.heartbeats] == [10, 20]


def test_a_frame_of_an_unknown_type_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match="unknown frame type"):
        Capture([b"zzz"]).run()


def test_what_the_stream_raises_ends_the_loop() -> None:
    def lost() -> None:
        raise Unavailable("the connection is gone")

    capture = Capture([*frames(rows(2)), lost])
    with pytest.raises(Unavailable, match="connection is gone"):
        capture.run()
    assert capture.publisher.batches == []


def _has_committed(capture: Capture, times: int) -> bool:
    return capture.stream.exhausted or len(capture.publisher.states) >= times


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("batch_rows", [1, 2, 3, 5])
def test_a_transaction_that_was_published_in_part_goes_on_there_with_another_number_of_changes(batch_rows: int) -> None:
    """The setting counts messages of a prefix as changes before, and doesn't after."""
    told = LogicalMessage(True, Lsn(FIRST), "audit", b"{}")
    nobodys = insert(b"1", b"x", of=RELATION_ID + 1)
    body = [told, *rows(2), nobodys, told, *rows(3), told, nobodys, *rows(4)]
    history = History(body, rows(1))
    described = relations(table(), table(name=TableName("public", "other")))
    sent = [data_frame(message, lsn) for lsn, message in history.messages(*described)]
    audit = MessageChannel(("audit",), "messages", server="shop", database="app", version="1")
    for commits in range(1, 8):
        first = Capture(sent, batch_rows=batch_rows, parts={"messages": audit})
        first.run(stopping=partial(_has_committed, first, commits))
        again = Capture(sent, state=first.publisher.states[-1], batch_rows=batch_rows).run()
        published = [event for batch in (*first.publisher.batches, *again.publisher.batches) for event in batch]
        keys = [key for topic, key, *_ in published if topic != "messages"]
        assert keys == [b'{"id":%d}' % number for count in (2, 3, 4, 1) for number in range(count)]


def test_a_pause_comes_before_the_first_transaction_that_commits_there() -> None:
    sent = frames(rows(2), rows(3))
    capture = Capture(sent).run(until=FIRST + 0x1000)
    assert capture.pause is not None
    assert (committed_rows(capture), capture.pause.frame) == ([2], sent[5])


def test_after_a_pause_the_stream_goes_on_with_the_frame_that_was_held_back() -> None:
    capture = Capture(frames(rows(2), rows(3))).run(until=FIRST + 0x1000)
    assert capture.pause is not None
    assert capture.loop.run(first=capture.pause.frame) is None
    assert committed_rows(capture) == [2, 3]


def test_what_came_before_a_pause_does_not_come_again_though_it_gave_no_events() -> None:
    """A transaction of a table that waits for its copy. The copy is at the pause, and has its rows."""
    waits = table(key=())
    history = History(rows(2), rows(1))
    sent = [data_frame(message, lsn) for lsn, message in history.messages(*relations(waits))]
    begin = replace(state(), copied={}, memberships={})
    before = Capture(sent, shapes=[], state=begin, parts={"passed_over": published(waits)})
    before.run(until=FIRST + 0x1000)
    assert before.pause is not None
    assert before.positions()[-1][2] == before.pause.state.end_lsn == FIRST_END
    copied = replace(before.pause.state, copied={waits.name: 2}, memberships={waits.name: "1 2"})
    again = Capture(sent, [], shapes=[waits], state=copied).run()
    assert committed_rows(again) == [1]


@pytest.mark.parametrize(("wal_end", "pauses"), [(FIRST_END, False), (FIRST + 0x1000, True)])
def test_a_pause_comes_when_the_server_has_nothing_before_it(wal_end: int, pauses: bool) -> None:
    capture = Capture(frames(rows(2)), [keepalive_frame(wal_end)], []).run(until=FIRST + 0x1000)
    assert (capture.pause is not None, committed_rows(capture)) == (pauses, [2])


def test_the_server_may_be_at_the_pause_while_a_transaction_arrives_that_belongs_before_it() -> None:
    sent = frames(rows(2))
    capture = Capture([*sent[:3], keepalive_frame(FIRST + 0x9000)], [*sent[3:], keepalive_frame(FIRST + 0x9000)])
    assert committed_rows(capture.run(until=FIRST + 0x1000)) == [2]


@pytest.mark.usefixtures("patient")
def test_a_look_that_is_due_is_taken_under_a_backlog_of_full_batches() -> None:
    """A batch is full in the middle of a transaction; tables that wait for a copy wait for an end."""
    time, sent = Time(), frames(*[rows(600)] * 3)
    looks = []

    def inspect(state: CaptureState) -> CaptureState:
        looks.append(state.commit_lsn)
        return replace(state, copied={})

    capture = Capture(
        [*sent[:10], lambda: time.pass_by(3600), *sent[10:]],
        time=time,
        batch_rows=100,
        heartbeat_interval_s=60,
        inspect=inspect,
    ).run()
    assert looks == [FIRST]
    assert capture.pause is not None


@pytest.mark.usefixtures("patient")
def test_a_message_that_something_was_altered_has_it_looked_at_before_the_next_transaction() -> None:
    """Also under a backlog, and though the time for a look hasn't come."""
    looks = []

    def inspect(state: CaptureState) -> CaptureState:
        looks.append(state.end_lsn)
        return state

    told = LogicalMessage(True, Lsn(FIRST), "told", b"ALTER TABLE")
    capture = Capture(
        frames(rows(1), [insert(b"5", b"x"), told, insert(b"6", b"x")], rows(1), rows(1)),
        batch_rows=100,
        heartbeat_interval_s=3600,
        inspect=inspect,
        parts={"notices": ["told"]},
        answers={"notices": {"told": lambda _: True}},
    )
    capture.run()
    assert looks == [FIRST_END + 0x1000]


def test_a_commit_between_two_runs_takes_new_shapes_along() -> None:
    capture = Capture(frames(rows(2)), [keepalive_frame(FIRST + 0x1000)], []).run(until=FIRST + 0x1000)
    shape = table(column("id", "int8"), column("note"), column("more"))
    capture.assembler.relations.new_shapes.append(
        SchemaRecord(shape, 0, ShapeChange(rewritten="its key is another one"))
    )
    before = capture.loop.state
    capture.loop.commit()
    assert [record.table for record in capture.publisher.shapes] == [shape]
    assert capture.publisher.states[-1] == replace(before, copied={})
    assert capture.assembler.relations.new_shapes == []


class _Widened:
    """Another shape from the second description on, after which the table has to be copied."""

    def adopt(self, relation: Relation, known: PublishedTable, xid: int | None = None) -> PublishedTable:
        if len(relation.columns) == len(known.table.columns):
            return known
        shape = table(column("id", "int8"), column("note"), column("more"))
        published = PublishedTable(known.topic, known.encoder.of(shape))
        published.unrecorded = SchemaRecord(shape, 0, ShapeChange(rewritten="its key is another one"))
        return published


def test_a_rewritten_table_leaves_the_ledger_in_the_commit_of_its_first_row() -> None:
    wider = table(column("id", "int8"), column("note"), column("more"))
    body = [insert(b"1", b"x"), relation(wider), insert(b"2", b"y", b"z")]
    capture = Capture(frames(body), answers={"shapes": _Widened()}).run()
    assert [record.table for record in capture.publisher.shapes] == [wider]
    assert [dict(state.copied) for state in capture.publisher.states] == [{}]
    assert capture.pause is not None


def test_a_truncate_of_many_rows_is_committed_in_parts_that_a_restart_can_tell() -> None:
    capture = Capture(frames([insert(b"9", b"x"), TRUNCATE]), answers={"log": FIVE_KEYS}, batch_rows=4).run()
    assert committed_rows(capture) == [1, 4, 4, 2]
    assert [state.seq for state in capture.publisher.states] == [1, 1, 1, 2]
    assert [state.end_lsn for state in capture.publisher.states] == [HANDOFF, HANDOFF, HANDOFF, FIRST_END]


def test_a_transaction_of_which_nothing_was_published_has_not_begun() -> None:
    """What was committed so that the topic can be asked is of the transaction before it."""
    capture = Capture(frames(rows(1), [TRUNCATE]), answers={"log": FIVE_KEYS}).run()
    assert committed_rows(capture) == [1, 10]
    assert [state.begun for state in capture.publisher.states] == [None, None]


def test_a_truncate_whose_deletes_take_long_is_committed_meanwhile() -> None:
    class Log:
        def live_keys(self, topic: str) -> Iterator[bytes]:
            for number in range(5):
                capture.time.pass_by(0.4)
                yield b'{"id":%d}' % number

    capture = Capture(frames([insert(b"9", b"x"), TRUNCATE]), answers={"log": Log()})
    capture.run()
    assert committed_rows(capture) == [1, 6, 4]


def test_a_malformed_message_is_reported_with_its_lsn_and_type() -> None:
    frame = data_frame(insert(b"1", b"secret"), 0x16B374D848)[:-3]
    with pytest.raises(MalformedMessage, match="type byte 49, at LSN 16/B374D848") as caught:
        Capture([frame]).run()
    assert "secret" not in str(caught.value)


def test_a_row_of_a_table_that_nobody_captures_isnt_decoded() -> None:
    other = data_frame(insert(b"1", b"x", of=RELATION_ID + 1))
    described = relation(table(name=TableName("public", "other")), RELATION_ID + 1)
    history = History([insert(b"1", b"x"), insert(b"2", b"y")])
    frames = [data_frame(message, lsn) for lsn, message in history.messages(*relations())]
    captured = Capture([*frames[:2], data_frame(described), other[:-9], *frames[2:]]).run()
    assert len(captured.publisher.events) == 2


def test_a_row_of_a_relation_that_wasnt_described_stops_the_loop() -> None:
    history = History([insert(b"1", b"x", of=RELATION_ID + 1)])
    with pytest.raises(LockstepError, match="didn't describe"):
        Capture([data_frame(message, lsn) for lsn, message in history.messages()]).run()
