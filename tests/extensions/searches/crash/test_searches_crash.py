"""Standing searches: whoever tells of them is killed at any point, and what was reported is right all the same."""

import os
import random
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stack.stack import Endpoints
from tests.extensions.searches.searched_sink import SINK, SearchedSink, matching, settle
from tests.pipeline import Process, wait_until

pytestmark = [pytest.mark.live, pytest.mark.busy]

KILLS, TRANSACTIONS = 4, 30


def test_kill_9_of_whoever_tells_loses_and_repeats_nothing(
    endpoints: Endpoints, tmp_path: Path, spark: SparkSession
) -> None:
    chance = random.Random(3)
    sink = SearchedSink(endpoints, tmp_path, spark, "create table item (id bigint primary key, price int, name text);")
    sink.wait()
    processes: list[Process] = []
    try:
        sink.add("cheap", {"range": {"price": {"lt": 5}}}, "public.item")
        sink.add("red", {"match": {"name": "red"}}, "public.item")
        for number in range(KILLS):
            log = tmp_path / f"watch{number}.log"
            watching = Process(log, "lockstep", "searches", "watch", SINK, "--config", str(sink.captured.path))
            processes.append(watching)
            # Once it has compared it goes along: it is killed while it tells of what comes then.
            wait_until(
                lambda of=watching: of.output().count("search compared") == 2, what="both are compared", timeout_s=300
            )
            for _ in range(TRANSACTIONS):
                key, price, name = chance.randrange(20), chance.randrange(10), chance.choice(("red", "blue"))
                sink.execute(
                    f"delete from item where id = {key}"
                    if chance.random() < 0.3
                    else f"insert into item values ({key}, {price}, '{name}') on conflict (id)"
                    " do update set price = excluded.price, name = excluded.name"
                )
                if chance.random() < 0.1:
                    sink.wait()
            os.killpg(watching.pid, signal.SIGKILL)
            watching.wait()
        follower = sink.follower()
        settle(sink, follower)
        follower.close()
        wanted = {
            name: {
                str(key) for (key,) in sink.source.connection.execute(f"select id from item where {condition}".encode())
            }
            for name, condition in (("cheap", "price < 5"), ("red", "name = 'red'"))
        }
        assert matching(sink.reports()) == wanted
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        sink.close()
