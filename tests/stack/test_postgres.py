"""What surrounds the server: whom its files belong to, and the lock of a server that was killed."""

import os
from pathlib import Path

import pytest

from stack import postgres, versions
from stack.errors import StackError
from stack.postgres import Postgres


def test_a_folder_below_a_private_one_is_not_reachable(tmp_path: Path) -> None:
    private = tmp_path / "private"
    inner = private / "stack"
    inner.mkdir(parents=True)
    private.chmod(0o700)
    assert not postgres.is_reachable(inner)


def test_a_folder_that_does_not_exist_yet_is_as_reachable_as_its_parents() -> None:
    assert postgres.is_reachable(Path("/nonexistent/stack"))


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    # Its name is predictable and its place public: somebody else may have made it, to put a server of his own there.
    planted = tmp_path / "lockstep-0123"
    planted.mkdir()
    planted.chmod(0o777)
    with pytest.raises(StackError, match="belongs to somebody else"):
        postgres.own_folder(planted)


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(StackError, match="belongs to somebody else"):
        postgres.own_folder(tmp_path / "link")


def test_the_lock_of_a_dead_server_goes_when_its_number_belongs_to_another_program(tmp_path: Path) -> None:
    lock = tmp_path / "postmaster.pid"
    lock.write_text(f"{os.getpid()}\n{tmp_path}\n")
    postgres.remove_stale_lock(tmp_path)
    assert not lock.exists()


def test_a_damaged_copy_of_the_server_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "bin").write_text("server")
    files, size = postgres.measure(tmp_path)
    (tmp_path / postgres.COMPLETE).write_text(f"{files} {size}")
    assert postgres.is_complete(tmp_path)
    (tmp_path / "bin").unlink()
    assert not postgres.is_complete(tmp_path)


def test_an_older_major_has_its_own_version() -> None:
    # It is part of the data directory's name: a cluster of one major must never meet the server of another.
    names = {
        major: Postgres("source", database="app", settings={}, passfiles=Path(), major=major).version
        for major in (*versions.POSTGRES_OLDER, versions.POSTGRES_MAJOR)
    }
    assert names[versions.POSTGRES_MAJOR] == versions.POSTGRES_SERVER
    assert [int(name.split(".")[0]) for name in names.values()] == list(names)


def test_a_major_that_is_not_packaged_names_those_that_are() -> None:
    with pytest.raises(StackError, match=r"PostgreSQL 9[\s\S]*14, 15, 16, 17, 18"):
        Postgres("source", database="app", settings={}, passfiles=Path(), major=9)
