"""A few rounds of random statements; `python -m tests.random_statements` runs as many as one has time for."""

import time
from pathlib import Path

import pytest

from stack.stack import Endpoints
from tests.random_statements import OwnServer, prepared
from tests.services import temporary_directory

pytestmark = pytest.mark.live


@pytest.mark.parametrize(
    "seed",
    [
        1795232856,  # rows that changed places under a column that was dropped in the same transaction
        1795232860,  # a partition that came, and a column that was added to the partitioned table
        pytest.param(None, marks=pytest.mark.soak),  # another one at each run
    ],
)
def test_topics_hold_what_the_tables_hold(endpoints: Endpoints, tmp_path: Path, seed: int | None) -> None:
    number = int(time.time()) if seed is None else seed
    told = " --told" if seed is not None else ""
    print(f"seed {number}: python -m tests.random_statements --seed {number}{told} --stack DIRECTORY")
    untold = seed is None
    with prepared(number, endpoints.source_dsn, endpoints.kafka_bootstrap, tmp_path, untold=untold) as made:
        made.run(150)


@pytest.mark.parametrize("seed", [1, pytest.param(None, marks=pytest.mark.soak)])
def test_topics_hold_what_the_tables_hold_after_a_restore(
    endpoints: Endpoints, tmp_path: Path, seed: int | None
) -> None:
    number = int(time.time()) if seed is None else seed
    print(f"seed {number}")
    with temporary_directory() as directory:
        server = OwnServer(directory)
        try:
            with prepared(number, server.dsn, endpoints.kafka_bootstrap, tmp_path) as made:
                made.run_over_a_restore(90, server)
        finally:
            server.remove()
