"""Directories that can't be there, or can't be written, are told before a process finds out."""

from pathlib import Path

import pytest

from cdc.model.finding import Severity
from lockstep.config import Config, read
from lockstep.doctor.directories import directory_findings
from tests.shop_settings import SHOP

_FILE = (
    SHOP
    + """[sinks.cache]
type = "redis"
url = "redis://127.0.0.1:1"
"""
)


def _config(directory: Path, more: str = "") -> Config:
    (directory / "lockstep.toml").write_text(_FILE + more)
    return read(directory / "lockstep.toml")


def test_what_is_not_there_yet_can_be_made_and_nothing_is_made(tmp_path: Path) -> None:
    assert directory_findings(_config(tmp_path)) == []
    assert [each.name for each in tmp_path.iterdir()] == ["lockstep.toml"]
    url = '[spark]\ncheckpoint_directory = "s3a://bucket/checkpoints"\n'
    assert directory_findings(_config(tmp_path, url)) == []


@pytest.mark.parametrize(
    ("more", "setting"),
    [
        ('[spark]\ncheckpoint_directory = "lockstep.toml/values"\n', "spark.checkpoint_directory"),
        ('[spark]\ncheckpoint_directory = "lockstep.toml"\n', "spark.checkpoint_directory"),
        ('[spark]\ncheckpoint_directory = "a\\u0000b"\n', "spark.checkpoint_directory"),
        (f'[spark]\ncheckpoint_directory = "{"a" * 300}"\n', "spark.checkpoint_directory"),
    ],
)
def test_where_no_directory_can_be_is_an_error(tmp_path: Path, more: str, setting: str) -> None:
    (finding,) = directory_findings(_config(tmp_path, more))
    assert (finding.severity, finding.subject) == (Severity.ERROR, setting)
    assert finding.what.startswith("no directory can be there: ")


def test_a_link_to_nowhere_is_an_error(tmp_path: Path) -> None:
    """As where a volume isn't mounted: no directory is made behind it."""
    (tmp_path / "link").symlink_to(tmp_path / "volume")
    for directory in ("link", "link/values"):
        with pytest.raises(FileExistsError):
            (tmp_path / directory).mkdir(parents=True, exist_ok=True)
        config = _config(tmp_path, f'[spark]\ncheckpoint_directory = "{directory}"\n')
        (finding,) = directory_findings(config)
        assert (finding.severity, finding.what) == (
            Severity.ERROR, f"no directory can be there: {tmp_path / 'link'} is none"
        )  # fmt: skip


def test_where_this_user_may_not_write_is_a_warning_since_another_one_may(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    config = _config(tmp_path, '[spark]\ncheckpoint_directory = "theirs/values"\n')
    findings = directory_findings(config, may_write=lambda path: path != tmp_path / "theirs")
    assert [(each.severity, each.subject) for each in findings] == [(Severity.WARNING, "spark.checkpoint_directory")]
    assert str(tmp_path / "theirs") in findings[0].what
