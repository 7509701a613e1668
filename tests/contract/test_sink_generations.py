"""What every sink promises of generations, of coordination records, and of writers."""

import threading
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from cdc.model.errors import DataLost, Fenced, LockstepError
from sinks.contract import OpenedSink, Progress
from tests.builders import batch, column, progress, upsert
from tests.contract.destinations import ITEMS, Destination
from tests.contract.items import counts, item, patiently, rows_of
from tests.examples import examples
from tests.threads import at_once, beside


def test_a_second_generation_is_built_beside_the_first_and_switched(destination: Destination, name: str) -> None:
    old = destination.opened(name, 1, ITEMS)
    new = destination.opened(name, 2, ITEMS)
    old.sink.apply(batch(item(1, "old", 1)))
    assert counts(new.sink.apply(batch(item(1, "rebuilt", 1)))) == (1, 0, 0)
    assert (new.generations.live(), rows_of(old.sink), rows_of(new.sink)) == (1, {"(1,)": "old"}, {"(1,)": "rebuilt"})
    new.generations.switch()
    assert old.generations.live() == 2
    with pytest.raises(LockstepError, match="live"):
        new.generations.drop()
    old.generations.switch()
    assert new.generations.live() == 1
    with pytest.raises(LockstepError, match="doesn't exist"):
        destination.opened(name, 9).generations.switch()


def test_a_dropped_generation_leaves_the_others_alone_and_can_be_built_again(
    destination: Destination, name: str
) -> None:
    old = destination.opened(name, 1, ITEMS)
    new = destination.opened(name, 2, ITEMS)
    old.sink.apply(batch(item(1, "old", 1)))
    old.generations.save_progress(progress())
    new.sink.apply(batch(item(1, "new", 1)))
    new.generations.switch()
    old.generations.drop()
    assert rows_of(new.sink) == {"(1,)": "new"}
    assert destination.opened(name, 1).generations.load_progress() is None
    with pytest.raises(LockstepError):
        destination.sink(name, 1).apply(batch(item(1, "late", 2)))
    again = destination.sink(name, 1, ITEMS)
    assert rows_of(again) == {}
    assert counts(again.apply(batch(item(1, "second try", 1)))) == (1, 0, 0)


def test_a_generation_that_may_not_go_live_does_not(destination: Destination, name: str) -> None:
    opened = destination.opened(name, 1)
    opened.sink.prepare([ITEMS], go_live=False)
    opened.sink.apply(batch(item(1, "a", 1)))
    opened.sink.prepare([ITEMS], go_live=False)
    assert opened.generations.live() is None
    with destination.reader(name) as find:
        with pytest.raises(LookupError):
            find(1)
        opened.generations.switch()
        assert (opened.generations.live(), find(1)) == (1, "a")


def test_a_live_generation_stays_live_whatever_is_prepared(destination: Destination, name: str) -> None:
    live = destination.opened(name, 1, ITEMS)
    destination.sink(name, 2).prepare([ITEMS], go_live=False)
    destination.sink(name, 3, ITEMS)
    live.sink.prepare([ITEMS], go_live=False)
    assert live.generations.live() == 1


def test_generations_are_listed_while_they_exist(destination: Destination, name: str) -> None:
    first = destination.opened(name, 1)
    assert (first.generations.numbers(), first.generations.live(), first.generations.load_progress()) == (
        [],
        None,
        None,
    )
    destination.sink(name, 10, ITEMS)
    destination.sink(name, 2, ITEMS)
    first.sink.prepare([ITEMS])
    assert first.generations.live() == 10, "the first one becomes live by itself"
    assert (first.generations.numbers(), destination.opened(name, 99).generations.numbers()) == ([1, 2, 10], [1, 2, 10])
    destination.opened(name, 2).generations.drop()
    assert first.generations.numbers() == [1, 10]
    assert destination.opened(f"{name}x", 1).generations.numbers() == []


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param(ITEMS.columns, marks=pytest.mark.soak),
        (column("note"), column("id", "int8"), column("number", "int4")),
    ],
)
def test_a_reader_misses_nothing_while_generations_are_switched(
    destination: Destination, name: str, columns: tuple[Any, ...]
) -> None:
    """Even if the other generation has other columns."""
    other = replace(ITEMS, columns=columns)
    sinks = [destination.opened(name, 1, ITEMS), destination.opened(name, 2, other)]
    sinks[0].sink.apply(batch(*(item(n, f"n{n}", 1) for n in range(20))))
    sinks[1].sink.apply(batch(*(upsert({"id": n, "note": f"n{n}"}, 1, of=other) for n in range(20))))
    patient = [patiently(opened, [], time.sleep) for opened in sinks]
    patient[0].generations.switch()
    reads = [0, 0, 0]
    failed = threading.Event()

    def poll(index: int, over: threading.Event) -> None:
        try:
            with destination.reader(name) as find:
                while not over.is_set():
                    number = reads[index] % 20
                    reads[index] += 1
                    assert find(number) == f"n{number}"
        except BaseException:
            failed.set()
            raise

    with beside(*(partial(poll, index) for index in range(len(reads)))):
        for turn in range(examples(3)):
            patient[(turn + 1) % 2].generations.switch()
            assert sinks[0].generations.live() == (turn + 1) % 2 + 1
            seen = sum(reads)
            while sum(reads) < seen + 10 and not failed.is_set():
                time.sleep(0.001)


def test_a_note_is_seen_by_every_generation_and_process(destination: Destination, name: str) -> None:
    writer, reader = destination.opened(name, 1), destination.opened(name, 2)
    assert reader.records.load("g2.state") is None
    writer.records.save("g2.state", "before prepare")
    assert reader.records.load("g2.state") == "before prepare"
    writer.sink.prepare([ITEMS])
    for text in ("", 'odd "text" with 100% \\ ü🙂\n', "x" * 100_000):
        writer.records.save("g2.state", text)
        assert reader.records.load("g2.state") == text
    assert destination.opened(f"{name}x", 2).records.load("g2.state") is None
    writer.records.save("g2.state", None)
    writer.records.save("g2.state", None)
    assert reader.records.load("g2.state") is None
    texts = {"g1.state": "", "last": 'odd "text" 100% \\ ü', "g2.state": "not asked for"}
    for note, text in texts.items():
        writer.records.save(note, text)
    assert reader.records.load_all(["last", "g1.state", "g3.state"]) == {"g1.state": "", "last": texts["last"]}
    assert reader.records.load_all([]) == destination.opened(f"{name}x", 2).records.load_all(["last"]) == {}


def test_a_dropped_generation_takes_its_notes_along(destination: Destination, name: str) -> None:
    destination.sink(name, 1, ITEMS)
    dropped = destination.opened(name, 2, ITEMS)
    notes = ["g2.a", "g2.b.c", "g2", "g20.a", "g1.a", "other-g2.a", "g2_a", "g2-a", "progress", "live", "notes"]
    for note in notes:
        dropped.records.save(note, note)
    dropped.generations.save_progress(progress(7))
    assert dropped.generations.load_progress() == progress(7)
    assert dropped.generations.live() == 1
    dropped.generations.drop()
    assert {note for note in notes if dropped.records.load(note) is None} == {"g2.a", "g2.b.c"}


@pytest.mark.parametrize("note", ["first", pytest.param("second", marks=pytest.mark.soak)])
def test_a_note_is_created_by_one_of_many_at_once(destination: Destination, name: str, note: str) -> None:
    """Even if the sink has nothing yet."""
    if note == "second":
        destination.opened(name, 1).records.save("first", "there")
    together = threading.Barrier(4)
    created: list[str] = []

    def create(text: str) -> None:
        opened = patiently(destination.opened(name, 1), [], time.sleep)
        together.wait(300)
        if opened.records.create(note, text):
            created.append(text)

    at_once(*(partial(create, f"of {number}") for number in range(4)))
    assert len(created) == 1
    assert destination.opened(name, 2).records.load(note) == created[0]


def test_a_note_is_created_again_once_it_was_removed(destination: Destination, name: str) -> None:
    opened = destination.opened(name, 1)
    assert opened.records.create("a", "first")
    assert not opened.records.create("a", "first")
    opened.records.save("a", "changed")
    assert not opened.records.create("a", "second")
    assert opened.records.load("a") == "changed"
    opened.records.save("a", None)
    assert opened.records.create("a", "third")
    assert opened.records.load("a") == "third"


def test_progress_comes_back_as_it_was_saved(destination: Destination, name: str) -> None:
    opened = destination.opened(name, 1, ITEMS)
    second = destination.opened(name, 2, ITEMS)
    opened.generations.save_progress(progress(1))
    assert second.generations.load_progress() is None
    second.generations.save_progress(progress(2))
    assert opened.generations.load_progress() == progress(1)
    whole = progress(
        0xFFFF_FFFF_FFFF_FFFF,
        skipped={("shop.public.a", 3): 9},
        left_at_ms={"shop.public.b": 7},
        read_at_ms=8,
        joining=("shop.public.b",),
        selection="0123456789abcdef",
    )
    opened.generations.save_progress(whole)
    assert destination.opened(name, 1).generations.load_progress() == whole


def test_a_destination_that_was_put_back_under_a_running_job_is_noticed(destination: Destination, name: str) -> None:
    """Rows applied after its present progress may be gone, so nothing is stored over that."""

    def reached(offset: int) -> Progress:
        return progress(offset, next_offsets={("shop.public.orders", 0): offset})

    job = destination.opened(name, 1, ITEMS)
    job.sink.claim()
    job.generations.save_progress(reached(1))
    put_back = destination.copy(name)
    job.generations.save_progress(reached(2))
    put_back()
    for _ in range(2):
        with pytest.raises(DataLost, match="lacks progress"):
            job.generations.save_progress(reached(3))
    assert job.generations.load_progress() == reached(1)
    job.generations.save_progress(reached(2))
    assert destination.opened(name, 1).generations.load_progress() == reached(2)


def test_a_destination_that_was_put_back_between_a_batch_and_its_progress_is_noticed(
    destination: Destination, name: str
) -> None:
    at = ("shop.public.orders", 0)
    job = destination.opened(name, 1, ITEMS)
    fence = job.sink.claim()
    job.sink.apply(batch(item(1, "a", 1), fence=fence, next_offsets={at: 1}))
    job.generations.save_progress(progress(1, next_offsets={at: 2}), written={at: 1})
    put_back = destination.copy(name)
    job.sink.apply(batch(item(2, "b", 2), fence=fence, next_offsets={at: 3}))
    put_back()
    if not destination.keeps_offsets:
        return  # docs/guarantees.md
    for _ in range(2):
        with pytest.raises(
            DataLost, match=r"lacks rows of shop.public.orders, partition 0.*before offset 1,.*before 3\."
        ):
            job.generations.save_progress(progress(2, next_offsets={at: 4}), written={at: 3})
    job.sink.apply(batch(item(2, "b", 2), fence=fence, next_offsets={at: 3}))
    job.generations.save_progress(progress(2, next_offsets={at: 4}), written={at: 3})


def test_what_was_read_beyond_a_part_that_was_left_out_is_missed_too(destination: Destination, name: str) -> None:
    """After ``--from-lsn``, the offsets before the gap stay as they are for as long as it isn't read."""
    at = ("shop.public.orders", 0)

    def reached(offset: int) -> Progress:
        return progress(5, next_offsets={at: 5}, skipped={at: offset})

    job, other = destination.opened(name, 1, ITEMS), destination.opened(name, 1)
    job.sink.claim()
    job.generations.save_progress(reached(20))
    put_back = destination.copy(name)
    job.generations.save_progress(reached(30))
    put_back()
    with pytest.raises(DataLost, match="lacks progress"):
        job.generations.save_progress(reached(40))
    other.sink.claim()
    other.generations.save_progress(reached(50))
    job.sink.claim()
    with pytest.raises(Fenced, match="another job has applied more"):
        job.generations.save_progress(reached(40))


def test_a_part_that_was_left_out_and_is_read_after_all_is_no_loss(destination: Destination, name: str) -> None:
    at = ("shop.public.orders", 0)
    left_out = progress(5, next_offsets={at: 5}, skipped={at: 20})
    destination.opened(name, 1, ITEMS).generations.save_progress(left_out)
    job = destination.opened(name, 1)
    assert job.generations.load_progress() == left_out
    job.sink.claim()
    for offset in (8, 25):
        read = progress(offset, next_offsets={at: offset})
        job.generations.save_progress(read)
        assert job.generations.load_progress() == read


@pytest.mark.parametrize("begins", [pytest.param("with nothing", marks=pytest.mark.soak), "later"])
def test_a_job_that_was_overtaken_hides_nothing_of_what_the_other_has_applied(
    destination: Destination, name: str, begins: str
) -> None:
    """It wakes up, and its destination can't fence it: what it stores would be behind the other's checkpoint."""

    def reached(offset: int) -> Progress:
        return progress(offset, next_offsets={("shop.public.orders", 0): offset})

    zombie, other = destination.opened(name, 1, ITEMS), destination.opened(name, 1)
    zombie.sink.claim()
    assert zombie.generations.load_progress() is None
    if begins == "later":
        zombie.generations.save_progress(reached(1))
    assert other.generations.load_progress() == (reached(1) if begins == "later" else None)
    other.sink.claim()
    other.generations.save_progress(reached(5))
    zombie.sink.claim()
    with pytest.raises(Fenced, match="another job has applied more"):
        zombie.generations.save_progress(reached(2))
    other.sink.claim()
    other.generations.save_progress(reached(6))


@pytest.mark.writers
def test_a_writer_that_was_replaced_is_fenced(destination: Destination, name: str) -> None:
    zombie = destination.opened(name, 1, ITEMS)
    old_fence = zombie.sink.claim()
    zombie.sink.apply(batch(item(1, "a", 1), fence=old_fence))
    fence = destination.sink(name, 1).claim()
    if destination.fences:
        with pytest.raises(Fenced):
            zombie.sink.apply(batch(item(1, "zombie", 2), fence=old_fence))
        with pytest.raises(Fenced):
            zombie.generations.save_progress(progress())
        assert rows_of(zombie.sink) == {"(1,)": "a"}
    else:
        assert (old_fence, fence) == (0, 0)
    assert counts(destination.sink(name, 1).apply(batch(item(1, "heir", 2), fence=fence))) == (1, 0, 0)


@pytest.mark.writers
def test_what_a_writer_notes_stays_when_one_that_was_replaced_notes_it_too(destination: Destination, name: str) -> None:
    if not destination.fences:
        return
    zombie, heir = destination.opened(name, 1, ITEMS), destination.opened(name, 1)
    old_fence = zombie.sink.claim()
    zombie.records.save("g1.note", "first", fence=old_fence)
    zombie.records.save("g1.note", "second", fence=old_fence)
    fence = heir.sink.claim()
    assert heir.records.load("g1.note") == "second"
    heir.records.save("g1.note", "of the heir", fence=fence)
    with pytest.raises(Fenced):
        zombie.records.save("g1.note", "third", fence=old_fence)
    assert heir.records.load("g1.note") == zombie.records.load("g1.note") == "of the heir"
    heir.records.save("g1.note", "newer", fence=fence)
    assert zombie.records.load("g1.note") == "newer"


@pytest.mark.writers
def test_who_writes_beside_the_writer_takes_nobodys_place(destination: Destination, name: str) -> None:
    writer, beside = destination.sink(name, 1, ITEMS), destination.sink(name, 1)
    claimed = writer.claim()
    assert beside.fence() == claimed
    assert counts(beside.apply(batch(item(1, "beside", 1), fence=beside.fence()))) == (1, 0, 0)
    assert counts(writer.apply(batch(item(2, "writer", 2), fence=claimed))) == (1, 0, 0)
    assert rows_of(writer) == {"(1,)": "beside", "(2,)": "writer"}
    assert destination.sink(name, 1).claim() == beside.fence()


def test_a_sink_that_is_called_like_a_generation_of_another_one_takes_nothing_of_it(
    destination: Destination, name: str
) -> None:
    """Whichever comes first, it is refused or both go on: dropping a generation never takes rows of another sink."""
    first = destination.opened(name, 1, ITEMS)
    assert first.sink.apply(batch(item(1, "first", 1))).applied == 1
    others = [destination.opened(f"{name}_g{number}", 1) for number in (1, 2)]
    kept = [other for other in others if _prepared(other)]
    for other in kept:
        assert other.sink.apply(batch(item(1, "other", 1))).applied == 1
    second = destination.opened(name, 2)
    refused = [other for other in others if other not in kept]
    if _prepared(second):
        assert second.sink.apply(batch(item(1, "second", 1))).applied == 1
        second.generations.switch()
        first.generations.drop()
        assert rows_of(second.sink) == {"(1,)": "second"}
    else:
        refused.append(second)
    for opened in refused:
        opened.generations.drop()
    assert [rows_of(other.sink) for other in kept] == [{"(1,)": "other"}] * len(kept)


def _prepared(opened: OpenedSink) -> bool:
    told = ""
    try:
        opened.sink.prepare([ITEMS])
    except LockstepError as refused:
        told = str(refused)
    assert not told or "give the sink another schema" in told
    return not told
