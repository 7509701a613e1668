"""lockstep.verify.command: what ends it before anything is compared."""

import logging
from pathlib import Path

import pytest

from cdc.model.errors import ConfigurationError
from lockstep.config import read
from lockstep.verify.command import run_verify
from lockstep.verify.options import VerifyOptions
from tests.configurations import SHOP

_FILE = (
    SHOP
    + """[sinks.books]
type = "warehouse"
url = "postgresql+psycopg://warehouse/shop"
[streams.s]
topic = "web.s"
columns = { id = "text", at = "timestamptz" }
time = "at"
late = "1 minute"
[stream_queries.recent]
sink = "books"
key = ["id"]
sql = "select id, at from s"
"""
)


@pytest.mark.parametrize("name", ["recent", "boks"])
def test_of_a_name_that_is_no_sink_nothing_is_said_but_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    (tmp_path / "lockstep.toml").write_text(_FILE)
    with pytest.raises(ConfigurationError, match=name):
        run_verify(read(tmp_path / "lockstep.toml"), VerifyOptions(sink=name), as_json=True)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
