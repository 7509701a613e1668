"""Figures of a view beside Flink's, the statements that Flink is given, and that it is left out without its jars."""

from pathlib import Path

import pytest

from bench import flink
from bench.flink import PHASE, Kept, figures_of
from bench.flink_job import AT_LEAST_ONCE, EXACTLY_ONCE, configuration, query, result_table, source_table
from bench.rig import Rig
from bench.sizes import QUICK
from stack import jars
from stack.errors import StackError


def kept(*, p50: float, differing: int = 0) -> Kept:
    return Kept(
        start_s=8.0,
        start_cpu_s=9.0,
        events=1_000,
        build_s=4.0,
        build_cpu_s=2.0,
        visible_ms={"p50": p50, "p99": 2 * p50},
        transactions=500,
        cpu_s={"self": 5.0, "kafka": 1.0},
        memory_mb=700.0,
        rows=10,
        differing=differing,
    )


def test_ours_is_beside_flink_at_least_once_and_equal_rows_are_the_target() -> None:
    figures = figures_of(kept(p50=60), kept(p50=30), kept(p50=600, differing=2), between=0, rate=50)
    by_name = {figure.name: figure for figure in figures}
    assert {figure.phase for figure in figures} == {PHASE}
    assert by_name["commit to visible at 50/s, p50"].ratio == 2.0
    assert by_name["commit to visible at 50/s, p99"].value == 120
    assert by_name["processor time of a transaction at 50/s"].value == 10.0
    assert by_name["building from the backlog"].value == 250.0
    assert by_name["... processor time of an event"].value == 2_000.0
    assert by_name["Flink exactly once: commit to visible, p50"].value == 600
    assert by_name["Flink exactly once: the same"].passed is False
    assert by_name["Flink at least once: the same"].passed is True
    assert by_name["rows that differ between the two"].passed is True


def test_without_its_jars_flink_is_left_out_and_the_reason_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(names: list[str]) -> None:
        raise StackError("can't fetch it", hint="")

    monkeypatch.setattr(jars, "fetch", fetch)
    said: list[str] = []
    rig = Rig(None, say=said.append)
    try:
        figures, details = flink.measure(rig, QUICK, said.append)
    finally:
        rig.close()
    assert figures == []
    assert "can't fetch it" in details["left_out"]
    assert said == [f"Flink isn't measured: {details['left_out']}"]


def test_flink_reads_committed_events_as_they_are() -> None:
    statement = source_table("tweets", topic="shop.public.tweets", servers="127.0.0.1:9092")
    assert statement.startswith("create table tweets (id bigint, ")
    assert "'format' = 'debezium-json'" in statement
    assert "'properties.isolation.level' = 'read_committed'" in statement
    assert "'topic' = 'shop.public.tweets'" in statement


def test_only_exactly_once_has_transactions() -> None:
    least = result_table(topic="result", servers="x", guarantee=AT_LEAST_ONCE)
    exactly = result_table(topic="result", servers="x", guarantee=EXACTLY_ONCE)
    assert "transaction" not in least
    assert "'sink.delivery-guarantee' = 'at-least-once'" in least
    assert "'sink.transactional-id-prefix' = 'result'" in exactly


def test_flink_keeps_the_same_rows_of_each_follower() -> None:
    statement = query()
    assert "order by created_at desc, tweet_id" in statement
    assert statement.endswith("where place <= 10")


def test_flink_gets_settings_for_latency(tmp_path: Path) -> None:
    settings = configuration(tmp_path)
    assert settings["execution.checkpointing.interval"] == "1000 ms"
    assert settings["table.exec.mini-batch.enabled"] == "false"
    assert settings["execution.checkpointing.dir"].startswith("file:///")
