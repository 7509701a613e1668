"""The contract of a view's state, on every implementation of it."""

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import lmdb
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cdc.model.errors import LockstepError
from views.state import file
from views.state.contract import Reading, State, Step, UnusableState
from views.state.file import FILE_NAME, FileState, WatchedState
from views.state.memory import MemoryState


@pytest.fixture(params=["memory", "file"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[State]:
    opened: State = MemoryState() if request.param == "memory" else FileState(tmp_path, identity="a view")
    yield opened
    opened.close()
    opened.close()


def put(*entries: tuple[bytes, bytes]) -> Callable[[Step], None]:
    def work(step: Step) -> None:
        for key, value in entries:
            step.put(key, value)

    return work


def entries(state: State, prefix: bytes = b"") -> list[tuple[bytes, bytes]]:
    return state.read(lambda reading: list(reading.scan(prefix)))


def test_entries_are_in_the_order_of_their_keys(state: State) -> None:
    state.update(put((b"b", b"2"), (b"a\xff", b"1"), (b"", b"0"), (b"c", b"")))
    assert entries(state) == [(b"", b"0"), (b"a\xff", b"1"), (b"b", b"2"), (b"c", b"")]


def test_a_step_sees_its_own_changes(state: State) -> None:
    def work(step: Step) -> tuple[object, ...]:
        step.put(b"a", b"1")
        step.put(b"a", b"2")
        step.put(b"b", b"3")
        step.delete(b"b")
        step.delete(b"never there")
        return step.get(b"a"), step.get(b"b"), list(step.scan(b"")), list(step.scan_back(b""))

    assert state.update(work) == (b"2", None, [(b"a", b"2")], [(b"a", b"2")])


def test_many_keys_are_put_at_once(state: State) -> None:
    state.update(put((b"b", b"old"), (b"c", b"1")))
    many = {b"b": b"2", b"l" * 900: b"4", b"a": b"3", b"": b""}
    state.update(lambda step: step.put_all(many))
    assert entries(state) == [(b"", b""), (b"a", b"3"), (b"b", b"2"), (b"c", b"1"), (b"l" * 900, b"4")]


def test_entries_are_put_with_what_the_state_has_before_their_keys(state: State) -> None:
    state.update(put((b"b", b"old")))
    many = [(b"a", b"1"), (b"b", b"2"), (b"l" * 447, b"3"), (b"l" * 448, b"4"), (b"l" * 900, b"5")]
    state.update(lambda step: step.put_stored([(state.begin + key, value) for key, value in many]))
    assert entries(state) == many


def test_many_keys_are_deleted_at_once(state: State) -> None:
    state.update(put((b"a", b"1"), (b"b", b"2"), (b"l" * 900, b"3")))
    state.update(lambda step: step.delete_all([b"a", b"never there", b"l" * 900]))
    assert entries(state) == [(b"b", b"2")]


def test_a_state_that_was_cleared_is_empty_and_goes_on(state: State) -> None:
    state.update(put((b"a", b"1"), (b"b" * 600, b"2")))
    state.clear()
    assert (entries(state), state.size().entries) == ([], 0)
    state.update(put((b"c", b"3")))
    assert entries(state) == [(b"c", b"3")]


def test_a_state_that_was_made_compact_holds_the_same_and_goes_on(state: State) -> None:
    many = {number.to_bytes(4, "big") * 2: b"x" * 50 for number in random.Random(1).sample(range(5_000), 5_000)}
    for first in range(0, len(many), 500):
        state.update(lambda step, first=first: step.put_all(dict(list(many.items())[first : first + 500])))  # type: ignore[misc]
    state.update(put((b"long" * 300, b"1"), (b"long" * 300 + b"0", b"2")))
    before, size = entries(state), state.size()
    state.compact()
    assert entries(state) == before
    assert state.size().entries == size.entries
    assert state.size().bytes <= size.bytes
    state.update(put((b"a", b"3")))
    state.compact()
    assert entries(state) == sorted([*before, (b"a", b"3")])


def test_a_step_that_raises_changes_nothing(state: State) -> None:
    state.update(put((b"a", b"1"), (b"b", b"2")))

    def work(step: Step) -> None:
        step.put(b"a", b"other")
        step.delete(b"b")
        step.put(b"c", b"3")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        state.update(work)
    assert entries(state) == [(b"a", b"1"), (b"b", b"2")]


def test_the_size_counts_the_entries(state: State) -> None:
    assert state.size().entries == 0
    state.update(put((b"a", b"1"), (b"b" * 600, b"2")))
    assert state.size().entries == 2
    assert state.size().bytes > 600


# Keys that begin alike for longer than LMDB's keys are long, around the place where they are cut.
_KEYS = st.one_of(
    st.binary(max_size=3),
    st.builds(
        lambda size, end: b"k" * size + end, st.sampled_from([1, 440, 446, 447, 448, 449, 700]), st.binary(max_size=3)
    ),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
# The prefix or the bound is cut, and a key that is whole begins as it does.
@example(keys=[b"k" * 447, b"k" * 449], gone=[], prefix=b"k" * 448, bound=b"")
@example(keys=[b"k" * 447], gone=[], prefix=b"", bound=b"k" * 448)
@given(keys=st.lists(_KEYS, max_size=12), gone=st.lists(_KEYS, max_size=4), prefix=_KEYS, bound=_KEYS)
def test_scans_are_those_of_a_sorted_list(
    state: State, keys: list[bytes], gone: list[bytes], prefix: bytes, bound: bytes
) -> None:
    def work(step: Step) -> None:
        for key, _ in list(step.scan(b"")):
            step.delete(key)
        for key in keys:
            step.put(key, key[-2:])
        for key in gone:
            step.delete(key)

    state.update(work)
    expected = [(key, key[-2:]) for key in sorted(set(keys) - set(gone)) if key.startswith(prefix)]

    def look(reading: Reading) -> list[object]:
        return [
            list(reading.scan(prefix)),
            list(reading.scan_back(prefix)),
            list(reading.scan(prefix, after=bound)),
            list(reading.scan_back(prefix, before=bound)),
            [reading.get(key) for key in keys],
        ]

    assert state.read(look) == [
        expected,
        expected[::-1],
        [entry for entry in expected if entry[0] > bound],
        [entry for entry in expected if entry[0] < bound][::-1],
        [None if key in gone else key[-2:] for key in keys],
    ]


# --- the file ---


def test_a_closed_file_opens_with_all_of_it(tmp_path: Path) -> None:
    state = FileState(tmp_path, identity="a view")
    state.update(put((b"a", b"1"), (b"l" * 900, b"2")))
    state.close()
    assert entries(FileState(tmp_path, identity="a view")) == [(b"a", b"1"), (b"l" * 900, b"2")]


def test_the_map_grows_in_the_middle_of_a_step(tmp_path: Path) -> None:
    state = FileState(tmp_path, identity="a view", map_bytes=128 * 1024)
    numbers = random.Random(1)
    values = [(b"%06d" % index, numbers.randbytes(5000)) for index in range(200)]
    state.update(put((b"first", b"1")))
    state.update(put(*values[:100]))
    state.update(lambda step: step.put_all(dict(values[100:])))
    assert entries(state) == [*values, (b"first", b"1")]


def test_a_file_as_large_as_its_map_opens_again(tmp_path: Path) -> None:
    """Some of these sizes leave no free page in the file."""
    for rows in range(60):
        directory = tmp_path / str(rows)
        state = FileState(directory, identity="a view", map_bytes=16 * 1024)
        state.update(put(*((b"%03d" % number, b"x" * 3000) for number in range(rows))))
        state.close()
        state = FileState(directory, identity="a view", map_bytes=16 * 1024)
        assert len(entries(state)) == rows
        state.close()


@pytest.mark.parametrize(
    ("entry", "value", "why"),
    [(b"sformat", b"0", "another version of Lockstep"), (b"sidentity", b"other", "belongs to another query")],
)
def test_a_state_of_something_else_is_refused_and_left_alone(
    tmp_path: Path, entry: bytes, value: bytes, why: str
) -> None:
    state = FileState(tmp_path, identity="a view")
    state.update(put((b"a", b"1")))
    state.close()
    with (
        lmdb.open(str(tmp_path / FILE_NAME), subdir=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(entry, value)
    with pytest.raises(LockstepError, match=why) as refused:
        FileState(tmp_path, identity="a view")
    assert "build the view anew" in str(refused.value)
    with lmdb.open(str(tmp_path / FILE_NAME), subdir=False) as environment, environment.begin() as transaction:
        assert (transaction.get(entry), transaction.get(b"da")) == (value, b"1")


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"x" * 100_000)
    with pytest.raises(LockstepError, match="can't be opened"):
        FileState(tmp_path, identity="a view")


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    with (
        lmdb.open(str(tmp_path / FILE_NAME), subdir=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"mine", b"too")
    with pytest.raises(LockstepError, match="another program"):
        FileState(tmp_path, identity="a view")


def test_each_opening_knows_whose_the_one_before_was(tmp_path: Path) -> None:
    first = FileState(tmp_path, identity="a view")
    assert first.writer_before is None
    first.clear()
    first.compact()
    first.close()
    second = FileState(tmp_path, identity="a view")
    assert second.writer_before == first.writer != second.writer
    second.close()


# --- who only looks at it ---


def test_who_looks_at_a_file_sees_all_of_it_and_changes_nothing(tmp_path: Path) -> None:
    state = FileState(tmp_path, identity="a view")
    stored = [(b"k%04d" % number, b"v") for number in range(300)] + [(b"l" * 900, b"long")]
    state.update(put(*stored))
    size = state.size()
    state.close()
    watched = WatchedState(tmp_path)
    assert list(watched.entries()) == sorted(stored)
    assert (watched.identity, watched.size()) == ("a view", size)
    assert watched.read(lambda reading: reading.get(b"l" * 900)) == b"long"
    watched.close()
    watched.close()
    state = FileState(tmp_path, identity="a view")  # nobody was shut out
    assert state.size().entries == size.entries
    state.close()


_WRITER = """
import sys
from pathlib import Path
from views.state.file import FileState
state = FileState(Path(sys.argv[1]), identity="a view", map_bytes=1 << 16)
for number, line in enumerate(sys.stdin):
    state.update(lambda step: step.put_all({b"%d.%d" % (number, at): bytes(1000) for at in range(int(line))}))
    print("done", flush=True)
"""


def test_who_looks_at_a_file_goes_on_while_another_process_makes_it_larger(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None

        def write(rows: int) -> None:
            print(rows, file=writer.stdin, flush=True)
            assert writer.stdout.readline() == "done\n"

        write(3)
        watched = WatchedState(tmp_path)
        assert len(list(watched.entries())) == 3
        write(2000)
        assert len(list(watched.entries())) == 2003
        watched.close()
        writer.stdin.close()
    assert writer.returncode == 0


def test_entries_are_read_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = FileState(tmp_path, identity="a view")
    state.update(put(*[(b"k%d" % number, b"v") for number in range(7)]))
    stored = entries(state)
    state.close()
    for portion in (1, 3, 7, 8):
        monkeypatch.setattr("views.state.file.WATCHED_AT_ONCE", portion)
        watched = WatchedState(tmp_path)
        assert list(watched.entries()) == stored
        watched.close()


def test_what_is_no_state_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(UnusableState, match="there is no state of a view"):
        WatchedState(tmp_path)
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1000)
    with pytest.raises(UnusableState, match="can't be read"):
        WatchedState(tmp_path)


def test_a_state_of_another_version_isnt_looked_at(tmp_path: Path) -> None:
    FileState(tmp_path, identity="a view").close()
    with lmdb.open(str(tmp_path / FILE_NAME), subdir=False) as environment, environment.begin(write=True) as written:
        written.put(b"sformat", b"0")
    with pytest.raises(UnusableState, match="another version"):
        WatchedState(tmp_path)


def test_a_file_that_was_made_compact_has_no_free_pages_and_full_ones(tmp_path: Path) -> None:
    state = FileState(tmp_path, identity="a view")
    numbers = random.Random(1).sample(range(20_000), 20_000)
    for first in range(0, len(numbers), 1_000):
        part = {number.to_bytes(8, "big"): b"x" * 92 for number in numbers[first : first + 1_000]}
        state.update(lambda step, part=part: step.put_all(part))  # type: ignore[misc]
    whole = state.size().bytes
    state.compact()
    assert state.size().bytes < min(whole / 2, 1.2 * 20_000 * 100)
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE_NAME, f"{FILE_NAME}-lock"]
    state.close()
    opened = FileState(tmp_path, identity="a view")
    assert opened.size().entries == 20_000
    opened.close()


@pytest.mark.parametrize("count", range(12))
def test_a_file_of_any_number_of_entries_is_copied_whole(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "COPIED_AT_ONCE", 5)
    with closing(FileState(tmp_path, identity="a view")) as state:
        state.update(put(*[(bytes([number]), b"x") for number in range(count)]))
        state.compact()
        assert entries(state) == [(bytes([number]), b"x") for number in range(count)]


def test_a_copy_that_was_killed_is_removed_and_the_state_is_as_it_was(tmp_path: Path) -> None:
    state = FileState(tmp_path, identity="a view")
    state.update(put((b"a", b"1")))
    state.close()
    (tmp_path / f"{FILE_NAME}.compact").write_bytes(b"a part of it")
    (tmp_path / f"{FILE_NAME}.compact-lock").write_bytes(b"")
    state = FileState(tmp_path, identity="a view")
    assert entries(state) == [(b"a", b"1")]
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE_NAME, f"{FILE_NAME}-lock"]
    state.compact()
    assert entries(state) == [(b"a", b"1")]
    state.close()


def test_where_there_is_no_room_for_a_copy_the_state_is_as_it_was(tmp_path: Path) -> None:
    state = FileState(tmp_path, identity="a view", map_bytes=1 << 20)
    state.update(put(*((number.to_bytes(4, "big"), b"x" * 100) for number in range(1_000))))
    before = entries(state)
    state.close()
    state = FileState(tmp_path, identity="a view", map_bytes=1 << 15)
    state.compact()
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE_NAME, f"{FILE_NAME}-lock"]
    assert entries(state) == before
    state.update(put((b"b", b"2")))
    state.close()


_OLDER = """
import sys
from pathlib import Path
from cdc.model.errors import Fenced
from views.state.file import FileState

state = FileState(Path(sys.argv[1]), identity="a view")
state.update(lambda step: step.put(b"a", b"1"))
print("opened", flush=True)
for line in sys.stdin:
    try:
        state.compact() if line == "compact\\n" else state.update(lambda step: step.put(b"a", b"2"))
        print("done", flush=True)
    except Fenced:
        print("fenced", flush=True)
"""


def test_who_was_shut_out_makes_nothing_compact_and_writes_nothing_after_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _OLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as older:
        assert older.stdin is not None
        assert older.stdout is not None
        said = older.stdout

        def asked(what: str) -> str:
            older.stdin.write(f"{what}\n")  # type: ignore[union-attr]
            older.stdin.flush()  # type: ignore[union-attr]
            return said.readline().strip()

        assert said.readline() == "opened\n"
        newer = FileState(tmp_path, identity="a view")
        assert asked("compact") == "fenced"
        newer.compact()
        assert asked("update") == "fenced"
        newer.update(put((b"b", b"2")))
        assert asked("update") == "fenced"
        assert entries(newer) == [(b"a", b"1"), (b"b", b"2")]
        newer.close()
        older.stdin.close()
