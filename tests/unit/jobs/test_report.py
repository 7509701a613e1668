"""The log of a job that nobody watches."""

import logging

import pytest

from cdc.model.errors import LockstepError
from cdc.model.log_message import LogMessage
from jobs.report import (
    BatchApplied,
    BatchGoesOn,
    SinkFailed,
    SinkStarted,
    SinkStopped,
    SinkWaiting,
    UnreadableDeadLetters,
    WatermarkRaised,
    log_report,
)


def test_every_report_is_one_line_with_its_facts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for report in (
        SinkStarted("search", 2),
        BatchApplied("search", 2, 7, 10, 8, 1, 1, 90, 0x16_B374D848, 0),
        WatermarkRaised("search", 2, 0x16_B374D848, 0),
        SinkWaiting("search", "redis: connection lost", 0.5),
        BatchGoesOn("search", 2, 8, 15.2),
        SinkFailed("search", 1, LockstepError("the disk is full")),
        SinkStopped("search", 1),
        UnreadableDeadLetters("search", 1, "shop.__dead_letters", 2, 9, "it lacks tag"),
    ):
        log_report(report)
    messages = [record.getMessage() for record in caplog.records]
    assert messages[1] == (
        "batch applied sink=search generation=2 batch=7 rows=10 applied=8 stale=1 rejected=1 duration_ms=90 "
        "watermark=16/B374D848"
    )
    assert messages[4].startswith("batch goes on sink=search generation=2 batch=8 elapsed_s=15")
    assert "slow" not in messages[4], "its answers are quick"
    assert messages[7] == (
        "dead letters can't be read and stay as they are sink=search generation=1 topic=shop.__dead_letters records=2 "
        "first_offset=9 reason=it lacks tag: `lockstep rejections list search` shows them"
    )
    assert len(messages) == 8
    applied = caplog.records[1].msg
    assert isinstance(applied, LogMessage)
    assert applied.facts == {
        "sink": "search",
        "generation": 2,
        "batch": 7,
        "rows": 10,
        "applied": 8,
        "stale": 1,
        "rejected": 1,
        "duration_ms": 90,
        "watermark": "16/B374D848",
    }
    assert [record.levelname for record in caplog.records] == [
        "INFO",
        "INFO",
        "DEBUG",
        "WARNING",
        "WARNING",
        "ERROR",
        "INFO",
        "WARNING",
    ]


def test_a_batch_that_waits_for_its_server_does_not_say_that_the_server_answers() -> None:
    refused = BatchGoesOn("search", 2, 8, 15.2, 0.01, 0.9, refusal="opensearch doesn't answer at http://h:9200")
    assert refused.why == "the batch waits for the sink's server: opensearch doesn't answer at http://h:9200"


@pytest.mark.parametrize(
    ("answer_s", "wait_share", "words"),
    [
        (0.01, 0.0, "answers"),
        (5.0, 0.0, "its last answer took 5.0 s"),
        (5.0, None, "hangs"),
        (5.0, 0.9, "busy: for 90%"),
    ],
)
def test_a_server_is_blamed_for_its_own_answers_alone(answer_s: float, wait_share: float | None, words: str) -> None:
    assert words in BatchGoesOn("search", 2, 8, 15.2, answer_s, wait_share).why
