"""The log of a job that nobody watches."""

import logging

import pytest

from cdc.model.errors import LockstepError
from jobs.report import (
    BatchGoesOn,
    SinkFailed,
    SinkStarted,
    SinkStopped,
    SinkWaiting,
    StatusReport,
    WatermarkRaised,
    log_report,
)


def test_every_report_is_one_line_with_its_facts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for report in (
        SinkStarted("search", 2, "checkpoints/search/g2"),
        StatusReport("search", 2, 7, 10, 8, 1, 1, 4, 90, 1_700_000_000_000, 0x16_B374D848),
        WatermarkRaised("search", 2, 0x16_B374D848, 0),
        SinkWaiting("search", "redis: connection lost", 0.5),
        BatchGoesOn("search", 2, 8, 15.2),
        SinkFailed("search", 1, LockstepError("the disk is full")),
        SinkStopped("search", 1),
    ):
        log_report(report)
    messages = [record.getMessage() for record in caplog.records]
    assert messages[1] == (
        "batch applied sink=search generation=2 batch=7 rows=10 applied=8 stale=1 rejected=1 duration_ms=90 "
        "watermark=16/B374D848"
    )
    assert messages[4].startswith("batch goes on sink=search generation=2 batch=8 elapsed_s=15")
    assert len(messages) == 7
    assert [record.levelname for record in caplog.records] == [
        "INFO",
        "INFO",
        "DEBUG",
        "WARNING",
        "WARNING",
        "ERROR",
        "INFO",
    ]
