"""sinks.wrappers.projecting; what it keeps from real destinations is in tests/contract"""

from dataclasses import replace

import pytest

from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.table import Column, Table
from sinks.memory import MemorySink, MemoryStore, open_memory
from sinks.wrappers.masks import Salt
from sinks.wrappers.projecting import ProjectingSink
from sinks.wrappers.projection import Projection
from sinks.wrappers.renaming import Renaming
from tests.builders import batch, column, table, upsert


def numbered(*columns: Column) -> Table:
    """Numbered as the source would do it: from 1, in order."""
    return table(*(replace(held, number=number) for number, held in enumerate(columns, 1)))


PEOPLE = numbered(column("id", "int8"), column("email"), column("note"))


def opened(store: MemoryStore, *exclude: str, generation: int = 1) -> ProjectingSink:
    inner = open_memory(store, generation, refuse=lambda event: "no" if event.key["id"] == 13 else None)
    return ProjectingSink(inner, Projection.parse(exclude), generation)


def test_all_impossible_columns_are_named_at_once_and_nothing_is_prepared() -> None:
    store = MemoryStore()
    with pytest.raises(ConfigurationError) as raised:
        opened(store, "public.orders.id", "public.orders.emial", "public.nowhere.a").prepare([PEOPLE])
    assert raised.value.problems == (
        "exclude: public.orders.id is part of the table's key",
        "exclude: this sink has no table public.nowhere",
        "exclude: table public.orders has no column emial",
    )
    assert (store.generations, store.records) == ({}, {})


def test_a_column_that_the_source_drops_later_is_no_problem() -> None:
    sink = opened(MemoryStore(), "public.orders.email")
    sink.prepare([PEOPLE])
    sink.prepare([replace(PEOPLE, columns=(PEOPLE.columns[0], PEOPLE.columns[2]))])
    sink.apply(batch(upsert({"id": 1, "note": "n"}, 1)))
    assert [stored.row for stored in sink.scan(PEOPLE)] == [{"id": 1, "note": "n"}]


def test_a_column_that_was_renamed_is_not_let_through() -> None:
    store = MemoryStore()
    opened(store, "public.orders.email").prepare([PEOPLE])
    renamed = replace(PEOPLE.columns[1], name="mail")
    after = replace(PEOPLE, columns=(PEOPLE.columns[0], renamed, PEOPLE.columns[2]))
    with pytest.raises(
        LockstepError, match=r"public\.orders\.email, which this sink leaves out, has the name 'mail' now"
    ):
        opened(store, "public.orders.email").prepare([after])
    opened(store, "public.orders.email", "public.orders.mail").prepare([after])
    opened(store, "public.orders.mail", generation=2).prepare([after])


def test_a_rejection_is_the_callers_own_event() -> None:
    sink = opened(MemoryStore(), "public.orders.email")
    sink.prepare([PEOPLE])
    events = [upsert({"id": number, "email": "e", "note": "n"}, 1) for number in (12, 13, 14)]
    (rejection,) = sink.apply(batch(*events)).rejections
    assert rejection.event is events[1]


def test_the_record_goes_with_its_generation() -> None:
    store = MemoryStore()
    opened(store, "public.orders.email").prepare([PEOPLE])
    second = opened(store, "public.orders.email", generation=2)
    second.prepare([PEOPLE])
    assert set(store.records) == {"g1.hidden_columns", "g2.hidden_columns"}
    open_memory(store, 2).generations.drop()
    assert set(store.records) == {"g1.hidden_columns"}


def test_a_hidden_column_that_was_renamed_is_known_though_another_has_its_name() -> None:
    store = MemoryStore()
    opened(store, "public.orders.email").prepare([PEOPLE])
    mail = replace(PEOPLE.columns[1], name="mail")
    email = replace(PEOPLE.columns[1], number=4)
    after = replace(PEOPLE, columns=(PEOPLE.columns[0], mail, PEOPLE.columns[2], email))
    with pytest.raises(LockstepError, match="has the name 'mail' now"):
        opened(store, "public.orders.email").prepare([after])


def test_a_slip_of_the_pen_hides_nothing_in_a_generation_that_is_there_either() -> None:
    store = MemoryStore()
    opened(store).prepare([PEOPLE])
    with pytest.raises(ConfigurationError) as raised:
        opened(store, "public.orders.emial").prepare([PEOPLE])
    assert raised.value.problems == ("no such column: public.orders.emial",)


def test_names_that_the_source_takes_later_are_refused() -> None:
    store = MemoryStore()
    renaming = Renaming({PEOPLE.name: {"note": "x"}})
    computed = Projection(computed={PEOPLE.name: (column("y"),)})
    ProjectingSink(open_memory(store), computed, 1, renaming=renaming).prepare([PEOPLE])
    for name, problem in (("x", "rename: "), ("y", "computed: ")):
        wider = replace(PEOPLE, columns=(*PEOPLE.columns, replace(column(name), number=9)))
        with pytest.raises(ConfigurationError) as raised:
            ProjectingSink(open_memory(store), computed, 1, renaming=renaming).prepare([wider])
        assert raised.value.problems[0].startswith(problem)


@pytest.mark.parametrize("is_there", [False, True], ids=["a new generation", "one of which nothing was hashed"])
def test_whoever_writes_has_the_salt_that_the_generation_was_built_with(*, is_there: bool) -> None:
    store = MemoryStore()
    if is_there:
        open_memory(store).sink.prepare([PEOPLE])

    def hashing(salt: bytes) -> ProjectingSink:
        return ProjectingSink(
            open_memory(store), Projection(masks={PEOPLE.name: {"email": "hash"}}, salt=Salt(salt)), 1
        )

    hashing(b"one").prepare([PEOPLE])
    for number in (1, 2):
        row = upsert({"id": number, "email": "a@b", "note": "n"}, number)
        with pytest.raises(LockstepError, match="another salt"):
            hashing(b"two").apply(batch(row))
        with pytest.raises(LockstepError, match="another salt"):
            hashing(b"two").prepare([PEOPLE])
        hashing(b"one").apply(batch(row))
    assert [stored.row["email"] for stored in MemorySink(store, 1).scan(PEOPLE)] == [Salt(b"one").hash("a@b")] * 2
