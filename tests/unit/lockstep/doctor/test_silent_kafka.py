"""A Kafka that doesn't answer is waited for once by all checks together."""

from pathlib import Path

import pytest

from cdc.model.errors import Unavailable
from lockstep.doctor.examine import examine
from tests.configurations import configured

_SILENT = Unavailable("Kafka doesn't answer within 15 s")


def test_who_has_asked_for_the_tables_of_patterns_is_not_answered_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def ask(of: object) -> None:
        asked.append("Kafka")
        raise _SILENT

    monkeypatch.setattr("lockstep.doctor.patterns.recorded_state", ask)
    monkeypatch.setattr("lockstep.doctor.examine.check_kafka", ask)
    config = configured(tmp_path, tables=["public.*"])
    findings = [finding for finding in examine(config) if finding.subject == "Kafka"]
    assert [finding.what for finding in findings] == [_SILENT.message]
    assert asked == ["Kafka"]
