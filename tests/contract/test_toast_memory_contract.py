"""What every memory of large values promises, in dicts and on disk."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdc.toast.entries import KEY_BYTES_MAX
from cdc.toast.memory import DurableMemory, MemoryStore
from cdc.toast.store import ToastStore
from tests.examples import examples

TOPICS = ("shop.public.orders", "shop.public.items")
KEYS = [b'{"id":%d}' % number for number in range(4)] + [
    b'{"id":"%b%d"}' % (b"k" * length, number) for length in (KEY_BYTES_MAX - 9, KEY_BYTES_MAX + 9) for number in (1, 2)
]


def open_store(directory: Path) -> ToastStore:
    def complain(sentence: str) -> None:
        raise AssertionError(sentence)

    return ToastStore(directory, identity="shop", say=complain, map_bytes=1024 * 1024)


@pytest.fixture(params=["dicts", "disk"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DurableMemory]:
    if request.param == "dicts":
        yield MemoryStore()
    else:
        store = open_store(tmp_path)
        yield store
        store.close()


def test_later_changes_of_the_caller_dont_matter(memory: DurableMemory) -> None:
    values = {"a": b"1"}
    memory.put("t", b"k", values)
    values["a"] = b"2"
    assert memory.get("t", b"k") == {"a": b"1"}


@pytest.mark.parametrize("committed", [False, True])
def test_a_topic_may_have_rows_once_one_was_put_and_has_none_once_it_was_cleared(
    memory: DurableMemory, *, committed: bool
) -> None:
    memory.commit((1, 1), {("t", 0): 3, ("u", 0): 3})
    memory.put("t", b"k", {"a": b"1"})
    if committed:
        memory.commit((1, 2), {("t", 0): 4, ("u", 0): 4})
    has = memory.may_have("t"), memory.may_have("u")
    memory.clear("t")
    cleared = memory.may_have("t")
    memory.commit((1, 3))
    assert (has, cleared, memory.may_have("t")) == ((True, False), False, False)


def test_a_topic_may_have_rows_in_a_store_that_is_opened_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put("t", b"k", {"a": b"1"})
    store.commit((1, 1), {("t", 0): 3, ("u", 0): 3})
    store.close()
    store = open_store(tmp_path)
    assert (store.may_have("t"), store.may_have("u"), store.get("t", b"k")) == (True, False, {"a": b"1"})
    store.close()


def test_position_and_offsets_are_those_of_the_last_commit(memory: DurableMemory) -> None:
    memory.put("t", b"k", {"a": b"1"})
    memory.commit((2**60, 2**31), {("t", 0): 1, ("t", 1): 2**40})
    memory.commit((2**60, 2**31 + 1), {("t", 0): 5})
    memory.commit((2**60 + 8, 1))
    assert (memory.position(), memory.offsets()) == ((2**60 + 8, 1), {("t", 0): 5, ("t", 1): 2**40})


def test_a_commit_without_a_position_says_that_it_isnt_complete(memory: DurableMemory) -> None:
    memory.commit((1, 1))
    memory.commit(None, {("t", 0): 7})
    assert (memory.position(), memory.offsets()) == (None, {("t", 0): 7})


@pytest.mark.parametrize("length", [KEY_BYTES_MAX, KEY_BYTES_MAX + 1, 70_000])
def test_keys_have_any_length(memory: DurableMemory, length: int) -> None:
    for last in (b"1", b"2"):
        memory.put("t", b"k" * (length - 1) + last, {"a": last})
    memory.commit((1, 1))
    memory.forget("t", b"k" * (length - 1) + b"1")
    memory.commit((1, 2))
    assert [memory.get("t", b"k" * (length - 1) + last) for last in (b"1", b"2")] == [None, {"a": b"2"}]


def test_values_have_any_length(memory: DurableMemory) -> None:
    values = {"empty": b"", "large": b'"' + b"x" * 1_000_000 + b'"', "larger": bytes(range(256)) * 20_000}
    memory.put("t", b"k", values)
    memory.commit((1, 1))
    assert memory.get("t", b"k") == values


rows = (st.sampled_from(TOPICS), st.sampled_from(KEYS), st.sampled_from(["a", "größe"]), st.binary(max_size=20))
step = st.one_of(
    st.tuples(st.just("put"), *rows),
    st.tuples(st.just("put"), *rows),
    st.tuples(st.just("forget"), st.sampled_from(TOPICS), st.sampled_from(KEYS)),
    st.tuples(st.just("clear"), st.sampled_from(TOPICS)),
    st.tuples(st.just("commit")),
    st.tuples(st.just("discard")),
    st.tuples(st.just("crash")),
    st.tuples(st.just("close")),
)


ROW, BESIDE = (TOPICS[0], KEYS[0]), (TOPICS[0], KEYS[4])
ALL_KINDS = [
    ("put", *ROW, "a", b"1"), ("put", *BESIDE, "a", b"1"), ("put", TOPICS[1], KEYS[0], "a", b"1"), ("forget", *BESIDE),
    ("forget", *BESIDE), ("commit",), ("put", *ROW, "größe", b"2"), ("commit",), ("put", *BESIDE, "a", b"3"),
    ("commit",), ("forget", *ROW), ("commit",), ("clear", TOPICS[0]), ("put", *ROW, "a", b"4"), ("commit",),
    ("put", *ROW, "a", b"5"), ("put", *BESIDE, "a", b"5"), ("discard",), ("forget", *ROW), ("discard",),
    ("put", *BESIDE, "a", b"6"), ("clear", TOPICS[0]), ("put", *BESIDE, "a", b"7"), ("discard",), ("crash",),
    ("close",),
]  # fmt: skip
"""Each kind of step on rows that are stored, new or not there."""


def position_of(memory: DurableMemory) -> int:
    """The commit that it knows of; position and offsets must agree."""
    position = memory.position()
    assert memory.offsets().get((TOPICS[0], 0), 0) == (position or (0, 1))[0]
    return (position or (0, 1))[0]


def follow(steps: list[tuple[object, ...]], memory: DurableMemory, reopened: Callable[..., DurableMemory]) -> None:
    """Take the steps beside two dicts: what is committed, and what is seen."""
    committed: dict[tuple[object, object], object] = {}
    seen = dict(committed)
    commits = kept = 0
    assert (memory.position(), memory.offsets()) == (None, {})
    for name, *arguments in steps:
        match name:
            case "put":
                topic, key, column, value = arguments
                memory.put(topic, key, {column: value, "b": b"null"})  # type: ignore[arg-type]
                seen[topic, key] = {column: value, "b": b"null"}
            case "forget":
                memory.forget(*arguments)  # type: ignore[arg-type]
                seen.pop(tuple(arguments), None)  # type: ignore[arg-type]
            case "clear":
                memory.clear(*arguments)  # type: ignore[arg-type]
                seen = {row: values for row, values in seen.items() if row[0] != arguments[0]}
            case "commit":
                commits += 1
                memory.commit((commits, 1), {(TOPICS[0], 0): commits})
                assert position_of(memory) == commits
                if seen != committed:
                    kept = commits
                committed = dict(seen)
            case "discard":
                memory.discard()
                assert position_of(memory) == commits
                seen = dict(committed)
            case _:
                # A crash may forget commits without changes, and must not know of more than there were.
                known = position_of(memory)
                memory = reopened(memory, name)
                assert (known if name == "close" else kept) <= position_of(memory) <= known
                commits = position_of(memory)
                seen = dict(committed)
        values_by_row = {(topic, key): memory.get(topic, key) for topic in TOPICS for key in KEYS}
        assert {row: values for row, values in values_by_row.items() if values is not None} == seen
    with suppress(AttributeError):
        memory.close()  # type: ignore[attr-defined]


@example(steps=ALL_KINDS)
@given(steps=st.lists(step, max_size=40))
@settings(deadline=None, max_examples=examples(60))
def test_a_history_in_dicts(steps: list[tuple[object, ...]]) -> None:
    memory = MemoryStore()

    def reopened(memory: MemoryStore, _: str) -> MemoryStore:
        memory.discard()
        return memory

    follow(steps, memory, reopened)


@example(steps=ALL_KINDS)
@given(steps=st.lists(step, max_size=40))
@settings(deadline=None, max_examples=examples(50))
def test_a_history_on_disk_with_crashes(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as name:

        def reopened(store: ToastStore, how: str) -> ToastStore:
            if how == "close":
                store.close()
            else:
                store.file.close()  # as at the end of the process
            return open_store(Path(name))

        follow(steps, open_store(Path(name)), reopened)
