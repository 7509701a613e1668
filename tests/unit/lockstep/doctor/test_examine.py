"""What is found where a part doesn't answer."""

from pathlib import Path

import pytest

from cdc.model.errors import Unavailable
from cdc.model.finding import Finding, Severity
from lockstep.doctor.examine import examine
from tests.configurations import CACHE, configured


@pytest.fixture
def nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Unavailable("no answer")

    for part in ("connect", "check_kafka", "check_sink"):
        monkeypatch.setattr(f"lockstep.doctor.examine.{part}", refuse)


@pytest.mark.usefixtures("nobody_answers")
def test_every_part_that_does_not_answer_has_a_way_out(tmp_path: Path) -> None:
    findings = examine(configured(tmp_path, CACHE))
    assert [(finding.subject, finding.fix) for finding in findings if finding.severity is Severity.ERROR] == [
        ("source", "check host and port in source.dsn, and that the server runs"),
        ("Kafka", "check kafka.bootstrap_servers, and that the brokers run"),
        ("sink cache", "check the address in [sinks.cache], and that its server runs"),
    ]


@pytest.mark.usefixtures("nobody_answers")
def test_a_view_whose_store_does_not_answer_has_its_own_section_named(tmp_path: Path) -> None:
    view = '[views.totals]\nsink = "cache"\nprefix = "totals"\nkey = ["id"]\nsql = "select id from orders"\n'
    (found,) = [each for each in examine(configured(tmp_path, CACHE, view)) if each.subject == "sink totals"]
    assert found.fix == "check the address in [views.totals] or [sinks.cache], and that its server runs"


def test_a_source_that_stops_answering_in_the_middle_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was reached, and is gone when its tables are looked at."""

    def refuse(*_: object, **__: object) -> None:
        raise Unavailable("PostgreSQL can't be reached")

    def nothing(*_: object, **__: object) -> list[Finding]:
        return []

    for part in ("_source", "check_kafka", "check_position", "check_sink"):
        monkeypatch.setattr(f"lockstep.doctor.examine.{part}", nothing)
    monkeypatch.setattr("lockstep.doctor.examine.source_shapes", refuse)
    (lost,) = [each for each in examine(configured(tmp_path, CACHE)) if each.severity is Severity.ERROR]
    assert (lost.subject, lost.what) == ("source", "PostgreSQL can't be reached")
    assert lost.fix == "check source.dsn, and that its server runs"
