"""jobs.query.job"""

import threading
from typing import Any, cast

import pytest

from cdc.model.errors import Fenced, Unavailable
from jobs.query.job import SinkJob
from jobs.query.sink_plan import SinkPlan
from tests.builders import table


def test_a_job_says_why_it_failed_also_when_the_log_cannot_be_asked_for_newer_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_answer(*_: object) -> bool:
        raise Unavailable("the brokers don't answer")

    monkeypatch.setattr("jobs.query.job.have_shapes_changed", no_answer)
    nothing = cast("Any", None)
    plan = SinkPlan("s", nothing, 1, "p", nothing, (), nothing, once=False)

    class FencedJob(SinkJob):
        def _run_query(self) -> bool:
            self._prepared = {table().name: table()}
            raise Fenced("another job has become the writer")

    with pytest.raises(Fenced, match="another job"):
        FencedJob(plan, nothing, stop=threading.Event(), report=lambda _: None).run()
