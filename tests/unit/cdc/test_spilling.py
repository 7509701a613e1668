"""The map that spills: a dict is the judge, whatever of it is in the file."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.model.errors import LockstepError
from cdc.spilling import SpillingMap

LONG = b"k" * 600


Of = Callable[[int], SpillingMap]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "values"


@pytest.fixture
def of(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Of]:
    """Makes one that holds so many bytes in memory."""
    with contextlib.ExitStack() as made:

        def make(memory_bytes: int) -> SpillingMap:
            monkeypatch.setattr("cdc.spilling.MEMORY_BYTES", memory_bytes)
            return made.enter_context(SpillingMap(directory))

        yield make


_KEYS = st.sampled_from([b"", b"a", b"b", LONG, LONG + b"1", b"\xff" * 500])
_CHANGES = st.lists(st.one_of(st.tuples(_KEYS, st.binary(max_size=5)), st.tuples(_KEYS, st.none())), max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example makes a new one
@given(changes=_CHANGES, memory_bytes=st.sampled_from([0, 500, 1000, 10**6]))
def test_it_holds_what_a_dict_holds(of: Of, changes: list[tuple[bytes, bytes | None]], memory_bytes: int) -> None:
    model: dict[bytes, bytes] = {}
    made = of(memory_bytes)
    for key, value in changes:
        if value is None:
            model.pop(key, None)
            made.discard(key)
        else:
            made[key] = model[key] = value
        assert made.get(key) == model.get(key)
    assert {key: made.get(key) for key in made} == model
    assert sorted(made) == sorted(model)


def test_a_set_of_which_much_is_discarded_stays_in_memory(of: Of) -> None:
    made = of(1000)
    for number in range(100):
        made[b"%d" % number] = b""
        made.discard(b"%d" % number)
    assert not made.spilled


def test_its_file_has_no_name_that_outlives_the_process(of: Of, directory: Path) -> None:
    made = of(0)
    made[b"a"] = b"1"
    assert (made.spilled, list(directory.iterdir())) == (True, [])


def test_it_can_be_used_again_after_it_was_cleared(of: Of) -> None:
    made = of(0)
    made[b"a"] = b"1"
    made.clear()
    assert (made.get(b"a"), list(made), made.spilled) == (None, [], False)
    made[b"a"] = b"2"
    assert (made.get(b"a"), made.spilled) == (b"2", True)


def test_its_file_grows_beyond_its_first_size(of: Of, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.spilling.MAP_BYTES", 64 * 1024)
    made = of(100_000)
    for number in range(50):
        made[b"%d" % number] = b"x" * 10_000
    assert [made.get(b"%d" % number) for number in range(50)] == [b"x" * 10_000] * 50


def test_a_directory_that_takes_no_file_is_named(of: Of, directory: Path) -> None:
    directory.write_text("")
    with pytest.raises(LockstepError, match=r"can't be written to .*values"):
        of(0)[b"a"] = b"1"
