"""The suite, a test for each case: what topics hold is what the database holds."""

import time
from collections.abc import Iterator

import pytest

from stack.stack import Endpoints
from tests.conformance.case import MAJORS, Case
from tests.conformance.run import Complaints, Runner
from tests.conformance.server import source_server
from tests.conformance.suite import AT_EACH_CHANGE, NOT_YET, cases
from tests.services import temporary_directory

pytestmark = pytest.mark.live

NEWEST = MAJORS[-1]


def _param(major: int, case: Case) -> object:
    marks = [] if major == NEWEST and case.id in AT_EACH_CHANGE else [pytest.mark.soak]
    if case.id in NOT_YET:
        marks.append(pytest.mark.xfail(reason="not supported yet", strict=True))
    return pytest.param(major, case, id=f"{case.id} on {major}", marks=marks)


RUNS = [_param(major, case) for major in reversed(MAJORS) for case in cases(major) if case.since <= major]
"""The cases of a version that are chosen share one run."""


@pytest.fixture(scope="module")
def complaints(request: pytest.FixtureRequest, endpoints: Endpoints) -> Iterator[Complaints]:
    """What came of the cases that are chosen on one version."""
    major = request.param
    params = [
        item.callspec.params
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
    ]
    chosen = [param["case"] for param in params if param["complaints"] == major]
    with temporary_directory() as directory, source_server(major, directory) as dsn:
        # The time makes names of topics unique on a broker that was up before.
        prefix = f"c{major}_{int(time.time())}"
        yield Runner(dsn, endpoints.kafka_bootstrap, directory, prefix=prefix).run(chosen)


@pytest.mark.parametrize(("complaints", "case"), RUNS, indirect=["complaints"], scope="module")
def test_topics_hold_what_the_database_holds(complaints: Complaints, case: Case) -> None:
    assert complaints[case.id] == []
