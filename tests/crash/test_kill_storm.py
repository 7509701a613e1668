"""A whole pipeline in a storm of kills. `python -m tests.crash.kill_storm` runs longer ones."""

import time

import pytest

from stack.stack import Stack
from tests.crash.kill_storm import storm
from tests.services import KAFKA_OVERRIDES, temporary_directory

pytestmark = [pytest.mark.live, pytest.mark.crash, pytest.mark.alone, pytest.mark.soak]

_SECONDS = 600.0


def test_after_a_storm_of_kills_each_sink_equals_the_source_and_no_row_came_back() -> None:
    with temporary_directory() as servers, temporary_directory() as directory:
        stack = Stack(servers, durable=False, light=True, kafka_overrides=KAFKA_OVERRIDES)
        try:
            storm(_SECONDS, int(time.time()), stack, directory)
        finally:
            stack.remove()
