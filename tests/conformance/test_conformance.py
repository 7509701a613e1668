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

# The oldest and the newest: three minutes. `make conformance` runs all versions, in about eight.
TESTED = (MAJORS[0], MAJORS[-1])
SUPPORTED = {
    major: [case for case in cases(major) if case.since <= major and case.id not in NOT_YET] for major in TESTED
}


@pytest.fixture(scope="module")
def complaints(request: pytest.FixtureRequest, endpoints: Endpoints) -> Iterator[Complaints]:
    """What came of all cases on one version, run together."""
    major: int = request.param
    with temporary_directory() as directory, source_server(major, directory) as dsn:
        # The time makes names of topics unique on a broker that was up before.
        prefix = f"c{major}_{int(time.time())}"
        yield Runner(dsn, endpoints.kafka_bootstrap, directory, prefix=prefix).run(SUPPORTED[major])


@pytest.mark.live
@pytest.mark.parametrize(
    ("complaints", "case"),
    [pytest.param(major, case, id=f"{case.id} on {major}") for major in TESTED for case in SUPPORTED[major]],
    indirect=["complaints"],
    scope="module",
)
def test_topics_hold_what_the_database_holds(complaints: Complaints, case: Case) -> None:
    assert complaints[case.id] == []


@pytest.mark.parametrize("case_id", sorted(NOT_YET))
def test_a_case_that_is_not_supported_yet(case_id: str) -> None:
    pytest.xfail("not yet")
