"""The store on disk: what it survives, what it refuses, and what it costs."""

import random
import subprocess
import sys
import time
from pathlib import Path

import lmdb
import pytest

from cdc.model.errors import Fenced, LockstepError, Unavailable
from cdc.toast import entries, store
from cdc.toast.store import FILE_NAME, LAZY_RECORDS, ToastStore

ROOT = Path(__file__).parents[4]


@pytest.fixture
def said() -> list[str]:
    return []


def opened(directory: Path, said: list[str] | None = None, identity: str = "shop") -> ToastStore:
    return ToastStore(directory, identity=identity, say=(said if said is not None else []).append)


def filled(directory: Path) -> None:
    store = opened(directory)
    for number in range(200):
        store.put("t", b"%d" % number, {"a": b"x" * 3000})
    store.commit((7, 1), {("t", 0): 200})
    store.close()


def test_the_map_grows_when_it_is_full(tmp_path: Path) -> None:
    store = ToastStore(tmp_path, identity="shop", say=[].append, map_bytes=128 * 1024)
    for number in range(50):
        store.get("t", b"0")
        store.put("t", b"%d" % number, {"a": b"%03d" % number * 50_000})
        store.commit((number + 1, 1))
    assert [store.get("t", b"%d" % number) for number in range(50)] == [
        {"a": b"%03d" % number * 50_000} for number in range(50)
    ]
    store.close()
    store = ToastStore(tmp_path, identity="shop", say=[].append, map_bytes=128 * 1024)
    assert (store.get("t", b"49"), store.position()) == ({"a": b"049" * 50_000}, (50, 1))


def test_the_file_doesnt_grow_with_every_update(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(300):
        store.put("t", b"k", {"a": b"%d" % number * 10_000})
        store.commit((number, 1))
    assert (tmp_path / FILE_NAME).stat().st_size < 2_000_000


def test_another_identity_empties_it(tmp_path: Path, said: list[str]) -> None:
    filled(tmp_path)
    store = opened(tmp_path, said, identity="shop again")
    assert (store.get("t", b"1"), store.position(), store.offsets()) == (None, None, {})
    assert "belongs to another" in said[0]


@pytest.mark.parametrize(
    "content", [b"no database", b"x" * 100_000, b"\0" * 8192], ids=["a text", "a long text", "zeros"]
)
def test_a_foreign_file_is_emptied(tmp_path: Path, said: list[str], content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    store = opened(tmp_path, said)
    store.put("t", b"k", {"a": b"1"})
    store.commit((1, 1))
    store.close()
    assert (opened(tmp_path).get("t", b"k"), len(said)) == ({"a": b"1"}, 1)


def test_a_database_of_something_else_is_emptied(tmp_path: Path, said: list[str]) -> None:
    with (
        lmdb.open(str(tmp_path / FILE_NAME), subdir=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"mine", b"too")
    assert opened(tmp_path, said).position() is None
    assert "something else" in said[0]


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_a_file_that_was_cut_off_is_emptied(tmp_path: Path, said: list[str], kept: float) -> None:
    filled(tmp_path)
    content = (tmp_path / FILE_NAME).read_bytes()
    (tmp_path / FILE_NAME).write_bytes(content[: int(len(content) * kept)])
    store = opened(tmp_path, said)
    assert (store.get("t", b"1"), store.position(), len(said)) == (None, None, 1)


def test_a_value_that_was_altered_on_disk_is_never_used(tmp_path: Path, said: list[str]) -> None:
    filled(tmp_path)
    content = (tmp_path / FILE_NAME).read_bytes()
    (tmp_path / FILE_NAME).write_bytes(content.replace(b"x" * 2000, b"x" * 1000 + b"y" + b"x" * 999))
    store = opened(tmp_path, said)
    with pytest.raises(Unavailable, match="was damaged"):
        store.get("t", b"1")
    assert opened(tmp_path, said).position() is None


def test_a_file_that_cant_be_opened_is_the_operators_turn(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(LockstepError, match="can't be opened"):
        opened(tmp_path)
    with pytest.raises(LockstepError, match="can't be opened"):
        opened(Path(__file__))


def test_nobody_else_can_read_the_rows(tmp_path: Path) -> None:
    opened(tmp_path / "new").close()
    assert (tmp_path / "new").stat().st_mode & 0o77 == 0
    assert (tmp_path / "new" / FILE_NAME).stat().st_mode & 0o77 == 0


def test_a_process_that_was_held_up_is_fenced(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from cdc.toast.store import ToastStore\n"
        "store = ToastStore(Path(sys.argv[1]), identity='shop', say=print)\n"
        "store.put('t', b'k', {'a': b'newer'}); store.commit((2, 1))"
    )
    store = opened(tmp_path)
    store.put("t", b"k", {"a": b"older"})
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, check=True)
    with pytest.raises(Fenced):
        store.commit((1, 1))
    store.close()
    store = opened(tmp_path)
    assert (store.get("t", b"k"), store.position()) == ({"a": b"newer"}, (2, 1))


def test_long_keys_with_the_same_hash_are_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "digest", lambda key: b"the same")
    store = opened(tmp_path)
    keys = [b"%d" % number * 600 for number in range(4)]
    for key in keys[:3]:
        store.put("t", key, {"a": key})
    store.commit((1, 1))
    assert [store.get("t", key) for key in keys] == [*({"a": key} for key in keys[:3]), None]
    store.forget("t", keys[0])
    store.put("t", keys[1], {"a": b"new"})
    store.commit((1, 2))
    assert [store.get("t", key) for key in keys] == [None, {"a": b"new"}, {"a": keys[2]}, None]


def test_a_commit_without_changes_writes_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put("t", b"k", {"a": b"1"})
    store.commit((1, 1), {("t", 0): 1})
    store.forget("t", b"unknown")
    store.forget("u", b"unknown")
    store.put("u", b"k", {"a": b"1"})
    store.forget("u", b"k")
    environment = store.file.opened
    before = environment.info()["last_txnid"]
    for number in range(100):
        store.commit((2, number), {("t", 0): number})
    assert environment.info()["last_txnid"] == before
    store.file.close()
    assert opened(tmp_path).position() == (1, 1)


def test_but_the_position_doesnt_lag_for_ever(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.commit((1, 1), {("t", 0): LAZY_RECORDS // 2})
    store.commit((2, 1), {("t", 1): LAZY_RECORDS // 2})
    store.commit((3, 1), {("t", 1): LAZY_RECORDS // 2 + 1})
    store.file.close()
    reopened = opened(tmp_path)
    assert (reopened.position(), reopened.offsets()) == (
        (2, 1),
        {("t", 0): LAZY_RECORDS // 2, ("t", 1): LAZY_RECORDS // 2},
    )


def test_closing_writes_the_position_and_no_change(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.commit((1, 1), {("t", 0): 5})
    store.put("t", b"k", {"a": b"1"})
    store.close()
    store = opened(tmp_path)
    assert (store.position(), store.offsets(), store.get("t", b"k")) == ((1, 1), {("t", 0): 5}, None)


def test_a_fill_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put("t", b"k", {"a": b"1"})
    store.commit(None, {("t", 0): 5})
    store.file.close()
    store = opened(tmp_path)
    assert (store.position(), store.offsets()) == (None, {("t", 0): 5})


def batch(number: int) -> list[tuple[bytes, dict[str, bytes] | None]]:
    """The changes of the ``number``-th commit, the same in every process; the first one is never without effect."""
    chosen = random.Random(number)
    return [
        (
            b"%d" % chosen.randrange(40) * chosen.choice((1, 300)),
            {"a": b"%d" % number * chosen.randrange(4000)} if index == 0 or chosen.random() < 0.7 else None,
        )
        for index in range(chosen.randrange(1, 8))
    ]


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
import test_store
from pathlib import Path
store = test_store.opened(Path(sys.argv[1]))
number = (store.position() or (0, 0))[0]
while True:
    number += 1
    for key, values in test_store.batch(number):
        store.forget("t", key) if values is None else store.put("t", key, values)
    store.commit((number, 1), {("t", 0): number})
    print(number, flush=True)
"""


def test_a_killed_process_leaves_whole_commits(tmp_path: Path) -> None:
    last = 0
    for attempt in (0, 2, 5):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path, Path(__file__).parent],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05 + 0.037 * attempt)
        process.kill()
        lines = [line for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        process.stdout.close()
        process.wait()
        said: list[str] = []
        store = opened(tmp_path, said)
        position = store.position()
        assert position is not None
        assert int(lines[-1] if lines else 0) <= position[0]
        assert position[0] > last
        last = position[0]
        expected: dict[bytes, dict[str, bytes]] = {}
        for number in range(1, last + 1):
            for key, values in batch(number):
                if values is None:
                    expected.pop(key, None)
                else:
                    expected[key] = values
        keys = {b"%d" % number * times for number in range(40) for times in (1, 300)}
        values_by_key = {key: store.get("t", key) for key in keys}
        assert {key: values for key, values in values_by_key.items() if values is not None} == expected
        assert (store.offsets(), said) == ({("t", 0): last}, [])
        store.close()


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_store = opened(tmp_path)

    def full(*_: object) -> None:
        raise lmdb.DiskError("no space left on device")

    monkeypatch.setattr(store, "number_of", full)
    opened_store.put("t", b"k", {"a": b"1"})
    with pytest.raises(LockstepError, match="can't be written: no space left"):
        opened_store.commit((1, 1))
    opened_store.close()


def test_a_file_as_large_as_its_map_opens_again(tmp_path: Path) -> None:
    """Some of these sizes leave no free page in the file."""
    for rows in range(60):
        directory = tmp_path / str(rows)
        store = ToastStore(directory, identity="shop", say=[].append, map_bytes=16 * 1024)
        for number in range(rows):
            store.put("t", b"%d" % number, {"a": b"%03d" % number * 1000})
        store.commit((rows + 1, 1))
        store.close()
        store = ToastStore(directory, identity="shop", say=[].append, map_bytes=16 * 1024)
        assert store.position() == (rows + 1, 1)
        store.close()
