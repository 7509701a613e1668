"""What is kept of a comparison, and what becomes of it where the sink doesn't take that."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.model.errors import Unavailable
from cdc.model.table import TableName
from lockstep.config import Config
from lockstep.verify import command, result
from lockstep.verify.options import VerifyOptions
from lockstep.verify.report import BY_TOPIC, Difference, Kind, TableReport, VerifyReport
from lockstep.verify.result import failure_of, keep, result_of
from lockstep.verify.sides.compared_columns import NOT_IN_LOG
from monitor.verification import Verification, VerifyOutcome
from tests.configurations import CACHE, configured

_ORDERS = TableReport(TableName("public", "orders"), 10, 10, 8, 0)
_REPORT = VerifyReport("cache", 1, "source", 0x50, (_ORDERS,), epoch=3)


def _kept(**changes: object) -> Verification:
    return result_of(replace(_REPORT, tables=(replace(_ORDERS, **changes),)), began_ms=1, ended_ms=2)


def test_what_is_equal_is_verified_through_its_lsn_of_its_epoch() -> None:
    assert result_of(_REPORT, began_ms=1, ended_ms=2) == Verification(
        1, 2, VerifyOutcome.EQUAL, through_lsn=0x50, through_ms=1, through_epoch=3
    )


def test_what_is_not_known_to_be_equal_is_verified_through_nothing() -> None:
    found = _kept(differences=(Difference(Kind.MISSING, b'{"id":1}'),))
    assert (found.outcome, found.differing, found.through_lsn) == (VerifyOutcome.DIFFERENT, 1, 0)
    for changes in ({"undecided": (b'{"id":1}',)}, {"is_complete": False}, {"not_compared": "its topic lost rows"}):
        incomplete = _kept(**changes)
        assert (incomplete.outcome, incomplete.through_lsn) == (VerifyOutcome.INCOMPLETE, 0)
    assert result_of(replace(_REPORT, tables=()), began_ms=1, ended_ms=2).outcome is VerifyOutcome.INCOMPLETE


def test_what_a_comparison_does_not_say_is_kept_with_it() -> None:
    log = TableReport(TableName("public", "log"), 5, 5, note=BY_TOPIC)
    left_out = (("added", NOT_IN_LOG), ("hidden", "the sink was built without it (setting exclude)"))
    orders = replace(_ORDERS, left_out=left_out, may_lack_rows=True)
    found = result_of(replace(_REPORT, tables=(orders, log)), began_ms=1, ended_ms=2)
    assert found.through_lsn == 0x50
    assert found.but_for == (
        "append-only tables, compared with their topics (1)",
        "tables that may lack rows (1)",
        "columns without an event so far (1)",
    ), "a column that the sink isn't meant to have isn't missed"
    assert "equal to the source but for append-only tables, compared with their topics (1); " in found.sentence(
        "cache", sink="cache"
    )
    assert found.to_json()["but_for"] == list(found.but_for)


def test_append_only_tables_alone_are_equal_to_their_topics_and_verified_through_no_lsn() -> None:
    log = TableReport(TableName("public", "log"), 5, 5, note=BY_TOPIC)
    found = result_of(VerifyReport("dwh", 1, "topic", None, (log,)), began_ms=1, ended_ms=2)
    assert (found.outcome, found.through_lsn) == (VerifyOutcome.EQUAL, 0)
    assert found.but_for


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return configured(tmp_path, CACHE)


def test_a_sink_that_does_not_take_it_is_asked_again_and_then_the_log_says_so(
    config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(result, "WAITS_S", (0.0, 0.0))
    keep(config, "cache", 1, failure_of(Unavailable("no answer"), began_ms=1, ended_ms=2))
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "the result isn't stored in sink cache" in record.getMessage()


def test_what_was_found_is_shown_before_the_sink_has_to_keep_it(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store of this sink is gone by then."""
    monkeypatch.setattr(result, "WAITS_S", ())
    monkeypatch.setattr(command, "with_built_settings", lambda _, options: options)
    monkeypatch.setattr(command, "verify", lambda *_, **__: _REPORT)
    assert command.run_verify(config, VerifyOptions("cache"), as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["equal"] is True
