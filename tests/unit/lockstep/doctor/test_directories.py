"""Directories that can't be there, or can't be written, are told before a process finds out."""

from pathlib import Path

import pytest

from cdc.model.finding import Severity
from lockstep.config import Config, read
from lockstep.doctor.directories import directory_findings
from tests.configurations import SHOP


def _config(directory: Path, data_directory: str = ".lockstep") -> Config:
    (directory / "lockstep.toml").write_text(
        SHOP.replace("[pipeline]", f'[pipeline]\ndata_directory = "{data_directory}"')
    )
    return read(directory / "lockstep.toml")


def test_what_is_not_there_yet_can_be_made_and_nothing_is_made(tmp_path: Path) -> None:
    assert directory_findings(_config(tmp_path)) == []
    assert [each.name for each in tmp_path.iterdir()] == ["lockstep.toml"]


@pytest.mark.parametrize("path", ["lockstep.toml/values", "lockstep.toml", "a\\u0000b", "a" * 300])
def test_where_no_directory_can_be_is_an_error(tmp_path: Path, path: str) -> None:
    (finding,) = directory_findings(_config(tmp_path, path))
    assert (finding.severity, finding.subject) == (Severity.ERROR, "pipeline.data_directory")
    assert finding.what.startswith("no directory can be there: ")


def test_a_link_to_nowhere_is_an_error(tmp_path: Path) -> None:
    """As where a volume isn't mounted: no directory is made behind it."""
    (tmp_path / "link").symlink_to(tmp_path / "volume")
    for directory in ("link", "link/values"):
        with pytest.raises(FileExistsError):
            (tmp_path / directory).mkdir(parents=True, exist_ok=True)
        (finding,) = directory_findings(_config(tmp_path, directory))
        assert (finding.severity, finding.what) == (
            Severity.ERROR, f"no directory can be there: {tmp_path / 'link'} is none"
        )  # fmt: skip


def test_where_this_user_may_not_write_is_a_warning_since_another_one_may(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    config = _config(tmp_path, "theirs/values")
    findings = directory_findings(config, may_write=lambda path: path != tmp_path / "theirs")
    assert [(each.severity, each.subject) for each in findings] == [(Severity.WARNING, "pipeline.data_directory")]
    assert str(tmp_path / "theirs") in findings[0].what
