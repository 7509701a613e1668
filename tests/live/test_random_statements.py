"""A few rounds of random statements; `python -m tests.random_statements` runs more."""

import itertools
import time
from pathlib import Path

import pytest

from stack.stack import Endpoints, Stack
from tests.own_server import OwnServer
from tests.random_statements import prepared, rounds
from tests.services import KAFKA_OVERRIDES, temporary_directory

pytestmark = pytest.mark.live

_SOAK_MINUTES = 20.0


def test_topics_hold_what_the_tables_hold(endpoints: Endpoints, tmp_path: Path) -> None:
    with prepared(1, endpoints.source_dsn, endpoints.kafka_bootstrap, tmp_path) as made:
        made.run(70)


@pytest.mark.soak
def test_topics_hold_what_the_tables_hold_after_a_restore(endpoints: Endpoints, tmp_path: Path, own: OwnServer) -> None:
    with prepared(3, own.dsn, endpoints.kafka_bootstrap, tmp_path) as made:
        made.run_over_a_restore(45, own)


@pytest.mark.soak
def test_many_rounds_with_faults_of_their_own_servers() -> None:
    with temporary_directory() as directory:
        stack = Stack(directory, durable=False, light=True, kafka_overrides=KAFKA_OVERRIDES)
        try:
            assert rounds(_SOAK_MINUTES, stack, itertools.count(int(time.time())), statements=150) == 0
        finally:
            stack.remove()
