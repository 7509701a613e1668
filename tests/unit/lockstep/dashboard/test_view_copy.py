import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from lockstep.dashboard.view_copy import GONE_S, At, CopyReader, ViewCopy
from monitor.view_feed import ViewRecord
from tests.pipeline import ROOT


def record(offset: int, one: int, other: str, row: bytes | None = b"{}") -> ViewRecord:
    return ViewRecord(offset, orjson.dumps({"one": one, "other": other}), row)


def at(number: int, end: int) -> At:
    return At(number, end, 1, 100 + number)


def keys(reader: CopyReader, **wanted: str) -> list[tuple[int, str]]:
    found = [orjson.loads(key) for portion in reader.rows(wanted, portion=2) for key, _ in portion]
    return sorted((key["one"], key["other"]) for key in found)


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[ViewCopy]:
    made = ViewCopy(tmp_path, ["one", "other"])
    made.add([record(0, 1, "a"), record(1, 1, "b"), record(2, 2, "a")], now_s=0)
    made.commit(at(1, 3), now_s=0)
    yield made
    made.close()


def test_a_reader_sees_the_rows_of_one_step(copy: ViewCopy) -> None:
    with copy.reader() as before:
        copy.add([record(3, 1, "a", None), record(4, 3, "c")], now_s=0)
        with copy.reader() as between:
            assert between.at == at(1, 3)
            assert keys(between) == [(1, "a"), (1, "b"), (2, "a")]
        copy.commit(at(2, 5), now_s=0)
        assert before.at == at(1, 3)
        assert keys(before) == [(1, "a"), (1, "b"), (2, "a")]
    with copy.reader() as after:
        assert after.at == at(2, 5)
        assert keys(after) == [(1, "b"), (2, "a"), (3, "c")]


def test_who_closes_a_reader_that_another_thread_uses_waits_for_it(tmp_path: Path) -> None:
    """A follower leaves at any moment, and SQLite's module crashes where a connection is closed that is in use."""
    program = """
import sys, threading
from contextlib import suppress
from pathlib import Path
from sqlite3 import OperationalError
from lockstep.dashboard.view_copy import At, ViewCopy
from monitor.view_feed import ViewRecord

copy = ViewCopy(Path(sys.argv[1]), ["a"])
copy.add([ViewRecord(number, b'{"a":%d}' % number, b"{}") for number in range(3_000)], now_s=0)
copy.commit(At(1, 3_000, 1, 1), now_s=0)
sys.setswitchinterval(1e-6)
for number in range(1_000):
    reader = copy.reader()
    found = reader.rows({}, portion=500)

    def read():
        with suppress(OperationalError):  # interrupted
            next(found, None)

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(number % 60):
        pass
    reader.close()
    thread.join()
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_columns_of_the_key_are_filters(copy: ViewCopy) -> None:
    with copy.reader() as reader:
        assert keys(reader, one="1") == [(1, "a"), (1, "b")]
        assert keys(reader, other="a") == [(1, "a"), (2, "a")]
        assert keys(reader, other="a", one="2") == [(2, "a")]
        assert keys(reader, one="x' or 1 = 1 --") == []


def test_what_has_changed_since_comes_once(copy: ViewCopy) -> None:
    copy.add([record(3, 1, "a", b'{"v":1}'), record(4, 1, "a", b'{"v":2}'), record(5, 2, "a", None)], now_s=0)
    copy.commit(at(2, 6), now_s=0)
    with copy.reader() as reader:
        changed = [one for portion in reader.since(3, {}, portion=10) for one in portion]
        of_one = [one for portion in reader.since(3, {"one": "2"}, portion=10) for one in portion]
    assert sorted(changed) == [('{"one":1,"other":"a"}', '{"v":2}'), ('{"one":2,"other":"a"}', None)]
    assert of_one == [('{"one":2,"other":"a"}', None)]


def test_rows_that_are_gone_are_forgotten_after_a_day(copy: ViewCopy) -> None:
    copy.add([record(3, 1, "a", None)], now_s=10)
    copy.commit(at(2, 4), now_s=10)
    copy.commit(at(3, 4), now_s=11 + GONE_S)
    with copy.reader() as reader:
        assert list(reader.since(3, {}, portion=10)) == []
