"""The suite, a test for each case: what topics hold is what the database holds."""

import time
from collections.abc import Iterator, Sequence

import pytest

from stack.stack import Endpoints
from tests.conformance.case import MAJORS, Case
from tests.conformance.run import Complaints, Runner
from tests.conformance.server import source_server
from tests.conformance.suite import NOT_YET, cases
from tests.services import temporary_directory

pytestmark = pytest.mark.live

OLDEST, *BETWEEN, NEWEST = MAJORS

# A few of each kind on the oldest server, for every change; `make soak` runs the others and the versions between.
REPRESENTATIVES = (
    "PG-001b",
    "PG-100b",
    "PG-013a",
    "DBZ-types",
    "DBZ-add",
    "DBZ-rewrite",
    "DBZ-toast-d",
    "OWN-pk2",
    "OWN-trunc",
    "ETL-part",
)


def _supported(major: int) -> list[Case]:
    return [case for case in cases(major) if case.since <= major]


def _params(major: int, run: Sequence[Case], *marks: pytest.MarkDecorator) -> list[object]:
    """A test for each case of one run, which the cases share."""
    shared = (major, tuple(case.id for case in run))
    return [pytest.param(shared, case, id=f"{case.id} on {major}", marks=(*marks, *_not_yet(case))) for case in run]


def _not_yet(case: Case) -> list[pytest.MarkDecorator]:
    return [pytest.mark.xfail(reason="not supported yet", strict=True)] if case.id in NOT_YET else []


def _on_oldest(*, representative: bool) -> list[Case]:
    return [case for case in _supported(OLDEST) if (case.id in REPRESENTATIVES) == representative]


RUNS = [
    *_params(NEWEST, _supported(NEWEST)),
    *_params(OLDEST, _on_oldest(representative=True)),
    *_params(OLDEST, _on_oldest(representative=False), pytest.mark.soak),
    *(param for major in BETWEEN for param in _params(major, _supported(major), pytest.mark.soak)),
]


@pytest.fixture(scope="module")
def complaints(request: pytest.FixtureRequest, endpoints: Endpoints) -> Iterator[Complaints]:
    """What came of the cases of one run on one version."""
    major, ids = request.param
    run = [case for case in _supported(major) if case.id in ids]
    with temporary_directory() as directory, source_server(major, directory) as dsn:
        # The time makes names of topics unique on a broker that was up before.
        prefix = f"c{major}_{int(time.time())}"
        yield Runner(dsn, endpoints.kafka_bootstrap, directory, prefix=prefix).run(run)


@pytest.mark.parametrize(("complaints", "case"), RUNS, indirect=["complaints"], scope="module")
def test_topics_hold_what_the_database_holds(complaints: Complaints, case: Case) -> None:
    assert complaints[case.id] == []


def test_every_representative_is_a_case_of_the_oldest_server() -> None:
    assert {case.id for case in _on_oldest(representative=True)} == set(REPRESENTATIVES)
