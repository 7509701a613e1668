"""The suite, a test for each case: what topics hold is what the database holds."""

import time
from collections.abc import Iterator

import pytest

from stack.stack import Endpoints
from tests.conformance.case import MAJORS, Case
from tests.conformance.run import Complaints, Runner
from tests.conformance.server import source_server
from tests.conformance.suite import NOT_YET, cases
from tests.services import temporary_directory

pytestmark = pytest.mark.live

*OLDER, NEWEST = MAJORS


def _supported(major: int) -> list[Case]:
    return [case for case in cases(major) if case.since <= major]


def _params(major: int, *marks: pytest.MarkDecorator) -> list[object]:
    """A test for each case of a version; they share one run."""
    return [
        pytest.param(major, case, id=f"{case.id} on {major}", marks=(*marks, *_not_yet(case)))
        for case in _supported(major)
    ]


def _not_yet(case: Case) -> list[pytest.MarkDecorator]:
    return [pytest.mark.xfail(reason="not supported yet", strict=True)] if case.id in NOT_YET else []


RUNS = [
    *_params(NEWEST),
    *(param for major in OLDER for param in _params(major, pytest.mark.soak)),
]


@pytest.fixture(scope="module")
def complaints(request: pytest.FixtureRequest, endpoints: Endpoints) -> Iterator[Complaints]:
    """What came of the cases on one version."""
    major = request.param
    with temporary_directory() as directory, source_server(major, directory) as dsn:
        # The time makes names of topics unique on a broker that was up before.
        prefix = f"c{major}_{int(time.time())}"
        yield Runner(dsn, endpoints.kafka_bootstrap, directory, prefix=prefix).run(_supported(major))


@pytest.mark.parametrize(("complaints", "case"), RUNS, indirect=["complaints"], scope="module")
def test_topics_hold_what_the_database_holds(complaints: Complaints, case: Case) -> None:
    assert complaints[case.id] == []
