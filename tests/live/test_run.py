"""``lockstep run``: one supervised group."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline import Pipeline, traffic, wait_until

pytestmark = [pytest.mark.live, pytest.mark.busy, pytest.mark.soak]


_numbers = itertools.count(1)


@pytest.fixture
def pipeline(stack: Any, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(stack.endpoints(), tmp_path, f"run{os.getpid()}_{next(_numbers)}", sinks=True)
    with made.path.open("a") as file:
        file.write('[dashboard]\nlisten = "127.0.0.1:0"\n')
    yield made
    made.close()


def test_a_capture_of_the_group_that_was_replaced_comes_back_when_the_other_one_ends(pipeline: Pipeline) -> None:
    group = pipeline.start("lockstep", "run", "--config", str(pipeline.path))
    log = group.log  # type: ignore[attr-defined]
    wait_until(lambda: "streaming from" in log.read_text(), what="capture streams")
    other = pipeline.start("lockstep", "capture", "--config", str(pipeline.path))
    wait_until(lambda: "standing by" in log.read_text(), what="the group's capture stands by")
    assert pipeline.stop(other) == 0
    with traffic(pipeline, pause_s=0.05):
        wait_until(lambda: log.read_text().count("streaming from") == 2, what="the group's capture streams again")
    pipeline.wait_applied(group)
    pipeline.assert_sinks_equal()
    assert pipeline.stop(group) == 0, log.read_text()
