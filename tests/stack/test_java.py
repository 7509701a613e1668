"""Which Java is taken, and the wrapper for Spark."""

import os
import subprocess
from pathlib import Path

import pytest

from stack import java
from stack.java import Java, choose, installed, java_home_for_spark

# A launcher that shows its arguments.
ECHO = '#!/bin/sh\nprintf "%s\\n" "$@"\n'


def fake_java(home: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(ECHO)
    launcher.chmod(0o755)
    (home / "lib").mkdir()
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def environment(**entries: Path) -> dict[str, str]:
    return {"PATH": "/nonexistent"} | {name: str(path) for name, path in entries.items()}


def test_java_home_comes_first(tmp_path: Path) -> None:
    system = tmp_path / "system"
    fake_java(system / "25", "25.0.2")
    mine = fake_java(tmp_path / "mine", "17.0.15")
    assert choose(environment=environment(JAVA_HOME=mine), system=system).home == mine


def test_java_on_the_path_comes_before_the_systems(tmp_path: Path) -> None:
    system = tmp_path / "system"
    fake_java(system / "17", "17.0.15")
    mine = fake_java(tmp_path / "mine", "21.0.8")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(mine / "bin" / "java")
    assert choose(environment=environment(PATH=tmp_path / "bin"), system=system).home == mine


def test_opensearch_gets_a_later_java_where_there_is_one(tmp_path: Path) -> None:
    fake_java(tmp_path / "25", "25.0.2")
    mine = fake_java(tmp_path / "mine" / "17", "17.0.15")
    chosen = choose(prefer=21, environment=environment(JAVA_HOME=mine), system=tmp_path)
    assert (chosen.major, chosen.runs_opensearch_3) == (25, True)


def test_opensearch_gets_java_17_where_there_is_no_later_one(tmp_path: Path) -> None:
    fake_java(tmp_path / "17", "17.0.15")
    chosen = choose(prefer=21, environment=environment(), system=tmp_path)
    assert (chosen.major, chosen.runs_opensearch_3) == (17, False)


@pytest.mark.parametrize("version", ["1.8.0_412", "11.0.23", "26"])
def test_a_java_that_was_never_run_with_this_is_left_alone(tmp_path: Path, version: str) -> None:
    fake_java(tmp_path / "other", version)
    assert list(installed(environment(), tmp_path)) == []


def test_the_same_java_under_two_names_counts_once(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "17", "17.0.15")
    (tmp_path / "default").symlink_to(home)
    assert [java.home for java in installed(environment(JAVA_HOME=home), tmp_path)] == [home]


def test_java_is_fetched_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = Java(home=tmp_path, major=21, has_vector_module=False)
    monkeypatch.setattr(java, "fetch", lambda: fetched)
    assert choose(environment=environment(), system=tmp_path / "none") == fetched


def test_spark_gets_a_launcher_that_drops_the_missing_module(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "small", "21.0.8", modules="java.base")
    wrapped = java_home_for_spark(Java(home=home, major=21, has_vector_module=False), cache=tmp_path / "cache")
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-modules=java.sql", "Main"]
    done = subprocess.run([str(wrapped / "bin" / "java"), *arguments], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["-cp", "a b", "--add-modules=java.sql", "Main"]
    assert (wrapped / "lib").resolve() == home / "lib"


def test_spark_gets_a_complete_java_as_it_is(tmp_path: Path) -> None:
    complete = Java(home=tmp_path, major=17, has_vector_module=True)
    assert java_home_for_spark(complete) == tmp_path


@pytest.mark.live
def test_the_fetched_java_runs(tmp_path: Path) -> None:
    java = choose(environment=environment(), system=tmp_path / "none")
    wrapped = java_home_for_spark(java, cache=tmp_path)
    command = [str(wrapped / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ))
    assert 'version "21.' in done.stderr
