"""lockstep.verify.command: what ends it before anything is compared."""

import logging
from pathlib import Path

import pytest

from cdc.model.errors import ConfigurationError
from lockstep.config import read
from lockstep.verify.command import run_verify
from lockstep.verify.options import VerifyOptions
from tests.configurations import CACHE, SHOP


def test_of_a_name_that_is_no_sink_nothing_is_said_but_that(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "lockstep.toml").write_text(SHOP + CACHE)
    with pytest.raises(ConfigurationError, match="boks"):
        run_verify(read(tmp_path / "lockstep.toml"), VerifyOptions(sink="boks"), as_json=True)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
